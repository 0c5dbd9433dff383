// What one layer of a session remembers: finished blocks and their landmarks, and the unfinished block.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "attention/block_kernels.h"
#include "base/aligned.h"
#include "memory/block_cache.h"
#include "memory/landmark_index.h"

namespace cairn {

// Copying shares the finished blocks, which never change; the rest is copied. Whole blocks are found by an index of
// their landmarks.
class LayerMemory {
 public:
  // Without an index nothing is chosen here, and landmarks are not kept in RAM.
  LayerMemory(const BlockShape& shape, size_t kv_heads, std::optional<IndexKind> index = IndexKind::kAuto);

  const BlockShape& shape() const { return shape_; }
  size_t kv_heads() const { return kv_heads_; }
  size_t row_floats() const { return kv_heads_ * shape_.dim; }

  // Finished blocks that are kept, the oldest first, and how many have been forgotten before them.
  size_t size() const { return stored_.size() + blocks_.size(); }
  size_t forgotten() const { return forgotten_; }
  size_t total() const { return forgotten_ + size(); }
  // One KV head of a block, shape().bytes().
  BlockPin Pin(size_t index, size_t kv_head) const {
    return index < stored_.size() ? cache_->Get(layer_ * kv_heads_ + kv_head, stored_[index])
                                  : PinHere(blocks_[index - stored_.size()], kv_head * shape_.bytes());
  }
  // Whether it can be pinned: of local layers files keep few blocks.
  bool Has(size_t index) const {
    return index >= stored_.size() || cache_->file()->HasRecord(stored_[index], layer_ * kv_heads_);
  }
  // Starts to read blocks that are not in RAM.
  void Prefetch(std::span<const int32_t> indexes, size_t kv_head) const;
  // Only of blocks with landmarks, and with an index.
  bool indexed() const { return !landmarks_.empty(); }
  const LandmarkIndex& index(size_t kv_head) const { return *landmarks_[kv_head]; }
  const LandmarkPanels& landmarks(size_t kv_head) const { return landmarks_[kv_head]->keys(); }

  // The unfinished block, rows of [kv_head][dim].
  size_t unfinished() const { return unfinished_; }
  float* LocalKeys(size_t rows);    // makes room for that many rows
  float* LocalValues(size_t rows);  // after LocalKeys

  // `rows` local rows, keys as they are to be stored, become finished blocks and the new unfinished block.
  void Finish(size_t rows);

  // The memory begins with blocks of a file, of which this is layer `layer`: their numbers there, and their landmarks,
  // [block][kv_head][dim], where there is an index. May be called for some blocks after the other, while there are no
  // blocks of its own.
  void Attach(const std::shared_ptr<BlockCache>& cache, size_t layer, std::span<const uint32_t> stored,
              std::span<const float> landmarks);
  // The first `count` blocks in RAM are now in the file, from block `first` on, and leave RAM.
  void MoveToFile(size_t count, size_t first);
  size_t stored() const { return stored_.size(); }

  // Forgets the oldest blocks beyond `limit`.
  void KeepLatest(size_t limit);
  // Back to an earlier state: `blocks` finished ones in total (none of them forgotten) and `unfinished` rows, of a
  // block that it has.
  void Truncate(size_t blocks, size_t unfinished);

  // For benchmarks: appends copies of the finished blocks, their landmarks disturbed, until there are `blocks`.
  void FillWithCopies(size_t blocks, uint64_t seed);

  size_t bytes() const;        // shared blocks included
  size_t fixed_bytes() const;  // the same without blocks: landmarks and their index, numbers of blocks in the file

 private:
  using Data = std::shared_ptr<const AlignedBuffer<std::byte>>;
  static BlockPin PinHere(const Data& data, size_t offset) {
    return BlockPin(std::shared_ptr<const std::byte>(data, data->data() + offset));
  }

  BlockShape shape_;
  size_t kv_heads_;
  std::shared_ptr<BlockCache> cache_;  // null: no file
  size_t layer_ = 0;                   // in the file
  std::vector<uint32_t> stored_;       // blocks in the file, before those in RAM
  std::vector<Data> blocks_;           // [kv_head][shape().bytes()] each
  size_t forgotten_ = 0;
  std::vector<OwnedLandmarkIndex> landmarks_;  // one a KV head, or none
  size_t unfinished_ = 0;
  std::vector<float> keys_, values_;
};

}  // namespace cairn
