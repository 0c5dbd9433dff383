#include "memory/layer_memory.h"

#include <algorithm>

#include "base/error.h"
#include "base/random.h"
#include "base/threads.h"

namespace cairn {

LayerMemory::LayerMemory(const BlockShape& shape, size_t kv_heads, std::optional<IndexKind> index)
    : shape_(shape), kv_heads_(kv_heads) {
  if (!index || !shape.landmark) return;
  landmarks_.assign(kv_heads, OwnedLandmarkIndex(*index, shape.dim, shape.format != BlockFormat::kF32));
}

float* LayerMemory::LocalKeys(size_t rows) {
  if (keys_.size() < rows * row_floats()) {
    keys_.resize(rows * row_floats());
    values_.resize(rows * row_floats());
  }
  return keys_.data();
}

float* LayerMemory::LocalValues(size_t rows) {
  LocalKeys(rows);
  return values_.data();
}

void LayerMemory::Finish(size_t rows) {
  const size_t columns = shape_.columns();
  const size_t finished = rows / columns;
  const size_t row = row_floats();
  std::vector<std::shared_ptr<AlignedBuffer<std::byte>>> fresh(finished);
  for (auto& data : fresh) data = std::make_shared<AlignedBuffer<std::byte>>(kv_heads_ * shape_.bytes());
  ParallelFor(finished * kv_heads_, [&](size_t index, int) {
    const size_t b = index / kv_heads_;
    const size_t h = index % kv_heads_;
    const size_t at = b * columns * row + h * shape_.dim;
    StoreBlock(shape_, &keys_[at], &values_[at], row, fresh[b]->data() + h * shape_.bytes());
  });
  // An index that is built anew uses all threads, so its head is not one of a parallel loop.
  for (size_t h = 0; h < landmarks_.size(); ++h) {
    for (size_t b = 0; b < finished; ++b) {
      landmarks_[h].Add(&keys_[(b * columns + shape_.tokens) * row + h * shape_.dim]);
    }
  }
  for (auto& data : fresh) blocks_.push_back(std::move(data));
  unfinished_ = rows - finished * columns;
  if (finished == 0) return;
  const auto begin = static_cast<ptrdiff_t>(finished * columns * row);
  const auto end = static_cast<ptrdiff_t>(rows * row);
  std::copy(keys_.begin() + begin, keys_.begin() + end, keys_.begin());
  std::copy(values_.begin() + begin, values_.begin() + end, values_.begin());
}

void LayerMemory::Attach(const std::shared_ptr<BlockCache>& cache, size_t layer, std::span<const uint32_t> stored,
                         std::span<const float> landmarks) {
  CAIRN_CHECK(forgotten_ == 0 && blocks_.empty() && unfinished_ == 0);
  CAIRN_CHECK((stored_.empty() || cache_ == cache));
  CAIRN_CHECK(landmarks.size() == (landmarks_.empty() ? 0 : stored.size() * row_floats()));
  cache_ = cache;
  layer_ = layer;
  stored_.insert(stored_.end(), stored.begin(), stored.end());
  for (size_t b = 0; b < stored.size(); ++b) {
    for (size_t h = 0; h < landmarks_.size(); ++h) landmarks_[h].Add(&landmarks[(b * kv_heads_ + h) * shape_.dim]);
  }
}

void LayerMemory::MoveToFile(size_t count, size_t first) {
  CAIRN_CHECK(cache_ != nullptr && count <= blocks_.size());
  for (size_t i = 0; i < count; ++i) stored_.push_back(static_cast<uint32_t>(first + i));
  blocks_.erase(blocks_.begin(), blocks_.begin() + static_cast<ptrdiff_t>(count));
}

void LayerMemory::Prefetch(std::span<const int32_t> indexes, size_t kv_head) const {
  if (cache_ == nullptr) return;
  std::vector<uint32_t> wanted;
  for (const int32_t index : indexes) {
    if (static_cast<size_t>(index) < stored_.size()) wanted.push_back(stored_[static_cast<size_t>(index)]);
  }
  if (!wanted.empty()) cache_->Prefetch(layer_ * kv_heads_ + kv_head, wanted);
}

void LayerMemory::KeepLatest(size_t limit) {
  if (size() <= limit) return;
  const size_t extra = size() - limit;
  const size_t from_file = std::min(extra, stored_.size());
  stored_.erase(stored_.begin(), stored_.begin() + static_cast<ptrdiff_t>(from_file));
  blocks_.erase(blocks_.begin(), blocks_.begin() + static_cast<ptrdiff_t>(extra - from_file));
  forgotten_ += extra;
  for (OwnedLandmarkIndex& index : landmarks_) index.EraseFront(extra);
}

void LayerMemory::Truncate(size_t blocks, size_t unfinished) {
  CAIRN_CHECK(blocks >= forgotten_ && blocks <= total());
  const size_t kept = blocks - forgotten_;
  if (kept == size()) {
    CAIRN_CHECK(unfinished <= unfinished_);
    unfinished_ = unfinished;
    return;
  }
  CAIRN_CHECK(unfinished < shape_.columns());
  LocalKeys(shape_.columns());
  for (size_t h = 0; h < kv_heads_; ++h) {
    if (unfinished > 0) {
      const BlockPin pin = Pin(kept, h);
      LoadBlock(shape_, pin.data(), unfinished, row_floats(), &keys_[h * shape_.dim], &values_[h * shape_.dim]);
    }
    if (indexed()) landmarks_[h].Truncate(kept);
  }
  blocks_.resize(kept - std::min(kept, stored_.size()));
  stored_.resize(std::min(kept, stored_.size()));
  unfinished_ = unfinished;
}

void LayerMemory::FillWithCopies(size_t blocks, uint64_t seed) {
  const size_t originals = blocks_.size();
  CAIRN_CHECK(originals > 0 && stored_.empty());
  const size_t wanted = std::max(blocks, originals) - originals;
  std::vector<std::shared_ptr<AlignedBuffer<std::byte>>> copies(wanted);
  ParallelFor(wanted, [&](size_t index, int) {
    auto copy = std::make_shared<AlignedBuffer<std::byte>>(kv_heads_ * shape_.bytes());
    std::copy(blocks_[index % originals]->begin(), blocks_[index % originals]->end(), copy->begin());
    copies[index] = std::move(copy);
  });
  Random random(seed);
  std::vector<float> key(shape_.dim);
  for (size_t index = 0; index < wanted; ++index) {
    for (size_t h = 0; h < landmarks_.size(); ++h) {
      landmarks(h).Read(index % originals, key.data());
      for (float& x : key) x *= 1.0f + 0.5f * static_cast<float>(random.Uniform() - 0.5);
      landmarks_[h].Add(key.data());
    }
    blocks_.push_back(std::move(copies[index]));
  }
}

size_t LayerMemory::fixed_bytes() const {
  size_t sum = stored_.capacity() * sizeof(uint32_t);
  for (const OwnedLandmarkIndex& index : landmarks_) sum += index->bytes();
  return sum;
}

size_t LayerMemory::bytes() const {
  return fixed_bytes() + blocks_.size() * kv_heads_ * shape_.bytes() +
         (keys_.capacity() + values_.capacity()) * sizeof(float);
}

}  // namespace cairn
