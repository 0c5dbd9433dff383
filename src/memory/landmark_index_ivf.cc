// The index of FAISS: keys in lists around centroids (IVF flat, inner product), trained on the landmarks as they come
// and built anew whenever their number has doubled. Twin of landmark_index_no_ivf.cc.
#include <faiss/Clustering.h>
#include <faiss/IndexFlat.h>
#include <faiss/IndexIVFFlat.h>
#include <faiss/clone_index.h>
#include <faiss/impl/IDSelector.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/threads.h"
#include "memory/landmark_index.h"

namespace cairn {

namespace {

using FaissNumber = faiss::Index::idx_t;

// Keys wait until so many can be added at once; until then they are scanned.
constexpr size_t kBatch = 256;
// Asked of FAISS beyond k: its sums are rounded otherwise, and order near the k-th place may change.
constexpr size_t kSpare = 4;

// Keys are known to FAISS by their number since the beginning, which erasing at the front does not change. They stand
// there less their mean: it adds the same to all scores of a query, and without it the lists differ more. A key goes to
// the list whose centroid is nearest, a query to the lists whose centroids it scores best.
class IvfIndex : public LandmarkIndex {
 public:
  IvfIndex(LandmarkPanels keys, const IvfOptions& options) : LandmarkIndex(std::move(keys)), options_(options) {
    Added();
  }
  IvfIndex(const IvfIndex& other)
      : LandmarkIndex(other),
        options_(other.options_),
        erased_(other.erased_),
        removed_(other.removed_),
        covered_(other.covered_),
        built_for_(other.built_for_),
        centre_(other.centre_),
        nearest_(other.nearest_) {
    if (other.lists_) lists_.reset(dynamic_cast<faiss::IndexIVFFlat*>(faiss::clone_index(other.lists_.get())));
    CAIRN_CHECK(!other.lists_ || lists_);
  }

  IndexKind kind() const override { return IndexKind::kIvf; }
  std::unique_ptr<LandmarkIndex> Clone() const override { return std::make_unique<IvfIndex>(*this); }
  void Search(size_t first, size_t last, size_t count, const float* queries, BestBlocks* best) const override;

 private:
  size_t ExtraBytes() const override {
    if (!lists_) return 0;
    const auto stored = static_cast<size_t>(lists_->ntotal) * (keys_.dim() * sizeof(float) + sizeof(FaissNumber));
    return stored + lists_->nlist * keys_.dim() * sizeof(float);
  }
  size_t end() const { return erased_ + keys_.size(); }
  void Added() override;
  void Truncated() override;
  void ErasedFront(size_t count, size_t panels) override;
  void Build();
  void AddKeys();
  std::vector<float> Centred(size_t begin, size_t end) const;

  IvfOptions options_;
  size_t erased_ = 0;     // number of the first key
  size_t removed_ = 0;    // of the first that FAISS may still have
  size_t covered_ = 0;    // the first that it has not
  size_t built_for_ = 0;  // keys when the lists were trained
  std::vector<float> centre_;
  std::shared_ptr<const faiss::IndexFlatL2> nearest_;  // the centroids, by distance; shared by clones
  std::unique_ptr<faiss::IndexIVFFlat> lists_;         // null: too few keys
};

std::vector<float> IvfIndex::Centred(size_t begin, size_t end) const {
  const size_t dim = keys_.dim();
  std::vector<float> rows((end - begin) * dim);
  for (size_t n = begin; n < end; ++n) {
    float* row = &rows[(n - begin) * dim];
    keys_.Read(n - erased_, row);
    for (size_t i = 0; i < dim; ++i) {
      row[i] -= centre_[i];
      if (!std::isfinite(row[i])) row[i] = 0.0f;  // FAISS takes none
    }
  }
  return rows;
}

void IvfIndex::Added() {
  if (keys_.size() < options_.exact_below) return;
  if (!lists_ || keys_.size() >= 2 * built_for_) {
    Build();
  } else if (end() - covered_ >= kBatch) {
    AddKeys();
  }
}

void IvfIndex::Build() {
  const size_t dim = keys_.dim();
  const size_t size = keys_.size();
  std::vector<double> sum(dim, 0.0);
  std::vector<float> key(dim);
  for (size_t b = 0; b < size; ++b) {
    keys_.Read(b, key.data());
    for (size_t i = 0; i < dim; ++i) sum[i] += key[i];
  }
  centre_.assign(dim, 0.0f);
  for (size_t i = 0; i < dim; ++i) {
    const double mean = sum[i] / static_cast<double>(size);
    if (std::abs(mean) < 1e30) centre_[i] = static_cast<float>(mean);
  }
  const auto count = static_cast<size_t>(options_.lists * std::sqrt(static_cast<double>(size)));
  const size_t lists = std::clamp<size_t>(count, 1, size);
  ShareThreadCount();
  const std::vector<float> rows = Centred(erased_, end());
  faiss::ClusteringParameters parameters;
  parameters.niter = 6;
  parameters.min_points_per_centroid = 1;
  parameters.max_points_per_centroid = 48;
  faiss::Clustering clustering(static_cast<int>(dim), static_cast<int>(lists), parameters);
  auto nearest = std::make_shared<faiss::IndexFlatL2>(static_cast<FaissNumber>(dim));
  clustering.train(static_cast<FaissNumber>(size), rows.data(), *nearest);
  nearest->reset();
  nearest->add(static_cast<FaissNumber>(lists), clustering.centroids.data());
  nearest_ = std::move(nearest);
  auto quantizer = std::make_unique<faiss::IndexFlatIP>(static_cast<FaissNumber>(dim));
  quantizer->add(static_cast<FaissNumber>(lists), clustering.centroids.data());
  lists_ = std::make_unique<faiss::IndexIVFFlat>(quantizer.get(), dim, lists, faiss::METRIC_INNER_PRODUCT);
  lists_->own_fields = true;
  quantizer.release();
  lists_->is_trained = true;
  built_for_ = size;
  removed_ = covered_ = erased_;
  AddKeys();
}

void IvfIndex::AddKeys() {
  const std::vector<float> rows = Centred(covered_, end());
  std::vector<FaissNumber> numbers;
  for (size_t n = covered_; n < end(); ++n) numbers.push_back(static_cast<FaissNumber>(n));
  const auto count = static_cast<FaissNumber>(numbers.size());
  std::vector<FaissNumber> where(numbers.size());
  nearest_->assign(count, rows.data(), where.data());
  lists_->add_core(count, rows.data(), numbers.data(), where.data());
  covered_ = end();
}

void IvfIndex::Truncated() {
  if (!lists_) return;
  if (keys_.size() < options_.exact_below / 2) {
    lists_.reset();
    return;
  }
  if (end() >= covered_) return;
  lists_->remove_ids(faiss::IDSelectorRange(static_cast<FaissNumber>(end()), static_cast<FaissNumber>(covered_)));
  covered_ = end();
}

void IvfIndex::ErasedFront(size_t count, size_t) {
  erased_ += count;
  covered_ = std::max(covered_, erased_);
  Truncated();
  if (!lists_ || erased_ - removed_ < std::max<size_t>(1024, keys_.size() / 8)) return;
  lists_->remove_ids(faiss::IDSelectorRange(static_cast<FaissNumber>(removed_), static_cast<FaissNumber>(erased_)));
  removed_ = erased_;
}

void IvfIndex::Search(size_t first, size_t last, size_t count, const float* queries, BestBlocks* best) const {
  const size_t covered = covered_ - erased_;
  const size_t middle = lists_ && last > first ? std::clamp(covered, first, last) : first;
  // A small part of the memory is scanned: its keys may all be in lists that are not probed.
  if (count == 0 || middle - first < std::max(options_.exact_below, keys_.size() / 2)) {
    SearchLandmarks(keys_, first, last, count, queries, best);
    return;
  }
  const faiss::IDSelectorRange range(static_cast<FaissNumber>(erased_ + first),
                                     static_cast<FaissNumber>(erased_ + middle));
  faiss::SearchParametersIVF parameters;
  parameters.nprobe =
      std::max<size_t>(1, static_cast<size_t>(std::ceil(options_.probed * static_cast<double>(lists_->nlist))));
  const bool whole = removed_ == erased_ && first == 0 && middle == covered;
  if (!whole) parameters.sel = const_cast<faiss::IDSelectorRange*>(&range);
  const size_t wanted = best[0].k() + kSpare;
  std::vector<float> scores(count * wanted);
  std::vector<FaissNumber> numbers(count * wanted);
  lists_->search(static_cast<FaissNumber>(count), queries, static_cast<FaissNumber>(wanted), scores.data(),
                 numbers.data(), &parameters);
  std::vector<int32_t> found;
  for (size_t q = 0; q < count; ++q) {
    found.clear();
    for (size_t i = 0; i < wanted; ++i) {
      const FaissNumber number = numbers[q * wanted + i];
      if (number >= 0) found.push_back(static_cast<int32_t>(static_cast<size_t>(number) - erased_));
    }
    std::sort(found.begin(), found.end());
    OfferLandmarks(keys_, found, queries + q * keys_.dim(), count == 1, best[q]);
  }
  SearchLandmarks(keys_, middle, last, count, queries, best);
}

}  // namespace

bool HasIvf() { return true; }

std::unique_ptr<LandmarkIndex> MakeIvfIndex(LandmarkPanels keys, const IvfOptions& options) {
  return std::make_unique<IvfIndex>(std::move(keys), options);
}

}  // namespace cairn
