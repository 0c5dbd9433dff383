#include "memory/landmark_index.h"

#include "attention/landmark_codes.h"
#include "base/error.h"

namespace cairn {

namespace {

// From so many landmarks on the bytes pay.
constexpr size_t kInt8From = 512;
// From so many on the hierarchy does: see docs/landmark-index.md for the measurements.
constexpr size_t kHierarchicalFrom = 4096;
// When an index of kAuto grows beyond its kind, it is looked at again every so many landmarks.
constexpr size_t kReviewEvery = 64;

class ExactIndex : public LandmarkIndex {
 public:
  explicit ExactIndex(LandmarkPanels keys) : LandmarkIndex(std::move(keys)) {}

  IndexKind kind() const override { return IndexKind::kExact; }
  std::unique_ptr<LandmarkIndex> Clone() const override { return std::make_unique<ExactIndex>(*this); }
  void Search(size_t first, size_t last, size_t count, const float* queries, BestBlocks* best) const override {
    SearchLandmarks(keys_, first, last, count, queries, best);
  }
};

constexpr size_t kManyQueries = 32;

class Int8Index : public LandmarkIndex {
 public:
  explicit Int8Index(LandmarkPanels keys) : LandmarkIndex(std::move(keys)), codes_(keys_.dim()) {
    codes_.Follow(keys_);
  }

  IndexKind kind() const override { return IndexKind::kInt8; }
  std::unique_ptr<LandmarkIndex> Clone() const override { return std::make_unique<Int8Index>(*this); }
  void Search(size_t first, size_t last, size_t count, const float* queries, BestBlocks* best) const override {
    // Bytes save reading. Many queries share what is read, and the plain product may be faster for them; both give
    // the same.
    if (count >= kManyQueries && !CodesServeManyQueries()) {
      SearchLandmarks(keys_, first, last, count, queries, best);
    } else {
      SearchCodes(codes_, keys_, first, last, count, queries, best);
    }
  }

 private:
  size_t ExtraBytes() const override { return codes_.bytes(); }
  void Added() override { codes_.Follow(keys_); }
  void Truncated() override { codes_.Follow(keys_); }
  void ErasedFront(size_t, size_t panels) override { codes_.Follow(keys_, panels); }

  LandmarkCodes codes_;
};

}  // namespace

std::string_view NameOf(IndexKind kind) {
  constexpr std::string_view kNames[] = {"exact", "int8", "hierarchical", "ivf", "auto"};
  return kNames[static_cast<size_t>(kind)];
}

std::optional<IndexKind> IndexKindNamed(std::string_view name) {
  for (const auto kind :
       {IndexKind::kExact, IndexKind::kInt8, IndexKind::kHierarchical, IndexKind::kIvf, IndexKind::kAuto}) {
    if (NameOf(kind) == name) return kind;
  }
  return std::nullopt;
}

IndexKind ChooseKind(size_t size) {
  return size < kInt8From ? IndexKind::kExact : size < kHierarchicalFrom ? IndexKind::kInt8 : IndexKind::kHierarchical;
}

std::unique_ptr<LandmarkIndex> LandmarkIndex::Make(IndexKind kind, LandmarkPanels keys) {
  switch (kind == IndexKind::kAuto ? ChooseKind(keys.size()) : kind) {
    case IndexKind::kInt8:
      return MakeInt8Index(std::move(keys));
    case IndexKind::kHierarchical:
      return MakeHierarchicalIndex(std::move(keys));
    case IndexKind::kIvf:
      return MakeIvfIndex(std::move(keys));
    default:
      return MakeExactIndex(std::move(keys));
  }
}

std::unique_ptr<LandmarkIndex> LandmarkIndex::Make(IndexKind kind, size_t dim, bool half) {
  return Make(kind, LandmarkPanels(dim, half));
}

void LandmarkIndex::Add(const float* key) {
  keys_.Append(key);
  Added();
}

void LandmarkIndex::Truncate(size_t size) {
  CAIRN_CHECK(size <= keys_.size());
  if (size == keys_.size()) return;
  keys_.Truncate(size);
  Truncated();
}

void LandmarkIndex::EraseFront(size_t count) {
  if (count == 0) return;
  const size_t panels = keys_.EraseFront(count);
  ErasedFront(count, panels);
}

std::unique_ptr<LandmarkIndex> MakeExactIndex(LandmarkPanels keys) {
  return std::make_unique<ExactIndex>(std::move(keys));
}

std::unique_ptr<LandmarkIndex> MakeInt8Index(LandmarkPanels keys) {
  return std::make_unique<Int8Index>(std::move(keys));
}

OwnedLandmarkIndex::OwnedLandmarkIndex(IndexKind kind, size_t dim, bool half)
    : automatic_(kind == IndexKind::kAuto), index_(LandmarkIndex::Make(kind, dim, half)) {}

void OwnedLandmarkIndex::Add(const float* key) {
  index_->Add(key);
  // Never back: a memory that shrinks will grow again, and every kind serves few keys well.
  if (!automatic_ || index_->size() % kReviewEvery != 0) return;
  const IndexKind kind = ChooseKind(index_->size());
  if (kind > index_->kind()) index_ = LandmarkIndex::Make(kind, std::move(*index_).TakeKeys());
}

}  // namespace cairn
