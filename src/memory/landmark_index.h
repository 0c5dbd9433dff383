// How the best landmarks of a memory are found: one interface over the keys of a layer and KV head, served by a scan of
// all of them, by a scan of their bytes with the same result, and by two searches that look at a part of them.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "attention/landmark_panels.h"

namespace cairn {

enum class IndexKind {
  kExact,         // every key is scored
  kInt8,          // every key is bounded by its bytes; the result is the exact one
  kHierarchical,  // leaves of similar keys, sketches of the keys in them; the most promising are scored
  kIvf,           // FAISS: lists of keys around centroids; the nearest lists are searched
  kAuto,          // by the number of landmarks: see ChooseKind
};

std::string_view NameOf(IndexKind kind);  // "exact", "int8", "hierarchical", "ivf", "auto"
std::optional<IndexKind> IndexKindNamed(std::string_view name);
bool HasIvf();  // whether FAISS was there when Cairn was built

// What kAuto uses for so many landmarks: kinds whose result is exact while they are not many, then the hierarchical
// one.
IndexKind ChooseKind(size_t size);

// Holds the keys too: whatever a kind keeps beside them, scores come from them. Search may run on several threads at
// once; nothing else may.
class LandmarkIndex {
 public:
  // Throws Error for kIvf when Cairn was built without FAISS.
  static std::unique_ptr<LandmarkIndex> Make(IndexKind kind, size_t dim, bool half);
  // The same over keys that exist.
  static std::unique_ptr<LandmarkIndex> Make(IndexKind kind, LandmarkPanels keys);

  virtual ~LandmarkIndex() = default;
  LandmarkIndex& operator=(const LandmarkIndex&) = delete;

  virtual IndexKind kind() const = 0;  // never kAuto
  std::string_view name() const { return NameOf(kind()); }
  virtual std::unique_ptr<LandmarkIndex> Clone() const = 0;
  const LandmarkPanels& keys() const { return keys_; }
  size_t size() const { return keys_.size(); }

  void Add(const float* key);  // amortised O(1)
  void Truncate(size_t size);
  void EraseFront(size_t count);  // the others are numbered anew from 0
  // Offers the best of landmarks [first, last) to the lists of `count` queries, [count][dim].
  virtual void Search(size_t first, size_t last, size_t count, const float* queries, BestBlocks* best) const = 0;
  // One key, as fast as the kind allows.
  virtual void ReadKey(size_t index, float* key) const { keys_.Read(index, key); }
  // Keys included.
  size_t bytes() const { return keys_.bytes() + ExtraBytes(); }

  // Takes the keys away to build another index of them.
  LandmarkPanels TakeKeys() && { return std::move(keys_); }

 protected:
  explicit LandmarkIndex(LandmarkPanels keys) : keys_(std::move(keys)) {}
  LandmarkIndex(const LandmarkIndex&) = default;

  virtual size_t ExtraBytes() const { return 0; }
  // Called after the keys have changed: added, truncated, or `count` of them erased at the front, which removed
  // `panels` panels.
  virtual void Added() {}
  virtual void Truncated() {}
  virtual void ErasedFront([[maybe_unused]] size_t count, [[maybe_unused]] size_t panels) {}

  LandmarkPanels keys_;
};

// An index that is copied with its owner. Under kAuto it is replaced as it grows.
class OwnedLandmarkIndex {
 public:
  OwnedLandmarkIndex(IndexKind kind, size_t dim, bool half);
  OwnedLandmarkIndex(const OwnedLandmarkIndex& other) : automatic_(other.automatic_), index_(other.index_->Clone()) {}
  OwnedLandmarkIndex(OwnedLandmarkIndex&&) noexcept = default;
  OwnedLandmarkIndex& operator=(OwnedLandmarkIndex other) noexcept {
    automatic_ = other.automatic_;
    index_ = std::move(other.index_);
    return *this;
  }

  void Add(const float* key);
  void Truncate(size_t size) { index_->Truncate(size); }
  void EraseFront(size_t count) { index_->EraseFront(count); }
  const LandmarkIndex& operator*() const { return *index_; }
  const LandmarkIndex* operator->() const { return index_.get(); }

 private:
  bool automatic_;
  std::unique_ptr<LandmarkIndex> index_;
};

// The single kinds. `keys` may hold keys already.
std::unique_ptr<LandmarkIndex> MakeExactIndex(LandmarkPanels keys);
std::unique_ptr<LandmarkIndex> MakeInt8Index(LandmarkPanels keys);

// How much of the memory the searches that look at a part of it look at. The defaults find at least 98 of 100 of the
// four best among the landmarks of books and among the clustered random keys of the tests; `--audit` measures it on
// yours.
struct HierarchicalOptions {
  double visited = 0.8;           // leaves that a single query visits at most, as a part of all of them
  size_t visited_min = 48;        // or so many
  double visited_first = 0.03;    // those that it visits first, and half of visited_min at least;
  float reach = 6;                // of the others those that so many deviations above their mean reach the k-th best
  size_t clustered_from = 65536;  // keys among which leaves are chosen; fewer are all scanned
  double left_out = 0.001;        // part of the keys' variance that sketches may leave out
  size_t shortlist = 384;         // keys that are looked at again after their sketches
  size_t shortlist_part = 128;    // and at least one of so many
};
std::unique_ptr<LandmarkIndex> MakeHierarchicalIndex(LandmarkPanels keys, const HierarchicalOptions& options = {});

struct IvfOptions {
  double probed = 0.6;        // lists, as a part of all of them
  double lists = 4;           // for each square root of a landmark
  size_t exact_below = 4096;  // landmarks that need no lists
};
// Twins: landmark_index_ivf.cc with FAISS, landmark_index_no_ivf.cc, which throws Error.
std::unique_ptr<LandmarkIndex> MakeIvfIndex(LandmarkPanels keys, const IvfOptions& options = {});

}  // namespace cairn
