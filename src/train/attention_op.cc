#include "train/attention_op.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/fused.h"
#include "base/aligned.h"
#include "base/error.h"
#include "base/threads.h"
#include "kernels/elementwise.h"
#include "model/rotary_table.h"
#include "train/choice_loss.h"
#include "train/memory_op.h"

namespace cairn {

namespace {

// What all kinds share: sizes, and q, k, v inside the joined rows.
class FusedOp : public AttentionOp {
 public:
  FusedOp(const ModelConfig& config, size_t max_rows, size_t max_time)
      : config_(config),
        width_(config.query_size() + 2 * config.key_size()),
        max_rows_(max_rows),
        max_time_(max_time),
        rotary_(config) {}

  void Begin(const AttentionBatch& batch) override {
    CAIRN_CHECK(batch.rows <= max_rows_ && batch.time <= max_time_);
    batch_ = batch;
    rotary_.Set(batch.positions, batch.rows, batch.time, has_miss());
  }

 protected:
  bool has_miss() const { return config_.landmark.context_miss.enabled; }
  size_t miss_row() const { return batch_.rows * batch_.time; }

  AttentionShape ShapeFor(size_t rows, size_t time, size_t prefix) const {
    AttentionShape shape;
    shape.batch = rows;
    shape.query_heads = config_.num_attention_heads;
    shape.kv_heads = config_.num_key_value_heads;
    shape.time = time;
    shape.prefix = prefix;
    shape.dim = config_.head_dim;
    shape.block_length =
        config_.landmark.attention == AttentionKind::kLandmark ? config_.landmark.block_length : kNoLandmarks;
    return shape;
  }

  // Views into rows of `width_`, beginning at position `first` of every batch row.
  template <typename T>
  HeadsView<T> Part(T* qkv, size_t offset, size_t first) const {
    return {qkv + first * width_ + offset, batch_.time * width_, config_.head_dim, width_};
  }
  template <typename T>
  HeadsView<T> Queries(T* qkv, size_t first = 0) const {
    return Part(qkv, 0, first);
  }
  template <typename T>
  HeadsView<T> Keys(T* qkv, size_t first = 0) const {
    return Part(qkv, config_.query_size(), first);
  }
  template <typename T>
  HeadsView<T> Values(T* qkv, size_t first = 0) const {
    return Part(qkv, config_.query_size() + config_.key_size(), first);
  }
  template <typename T>
  HeadsView<T> Outputs(T* out, size_t first = 0) const {
    const size_t n = config_.query_size();
    return {out + first * n, batch_.time * n, config_.head_dim, n};
  }

  void Rotate(float* qkv, bool inverse) const {
    const size_t rows = batch_.rows * batch_.time + (has_miss() ? 1 : 0);
    rotary_.Apply(qkv, width_, config_.num_attention_heads + config_.num_key_value_heads, rows, inverse);
  }

  const ModelConfig config_;
  const size_t width_;
  const size_t max_rows_, max_time_;
  RotaryTable rotary_;
  AttentionBatch batch_{};
};

// Plain causal and landmark attention.
class CausalOp : public FusedOp {
 public:
  using FusedOp::FusedOp;

  size_t SavedFloats() const override { return cairn::SavedFloats(ShapeFor(max_rows_, max_time_, 0), has_miss()); }

  void Forward(size_t, float* qkv, float* out, float* saved_memory) override {
    Rotate(qkv, false);
    const AttentionShape shape = ShapeFor(batch_.rows, batch_.time, 0);
    const FusedSaved saved = LayOutSaved(shape, has_miss(), saved_memory);
    FusedForward(shape, Input(qkv), Outputs(out), &saved);
    // The context-miss token itself attends to nothing.
    if (has_miss()) std::fill_n(out + miss_row() * config_.query_size(), config_.query_size(), 0.0f);
  }

  void Backward(size_t layer, const float* qkv, const float* out, const float* dout, const float* saved_memory,
                float* dqkv) override {
    const AttentionShape shape = ShapeFor(batch_.rows, batch_.time, 0);
    const FusedSaved saved = LayOutSaved(shape, has_miss(), const_cast<float*>(saved_memory));
    std::vector<float> dmiss(has_miss() ? batch_.rows * config_.key_size() : 0);
    FusedBackward(shape, Input(qkv), Outputs(out), Outputs(dout), saved,
                  {Queries(dqkv), Keys(dqkv), Values(dqkv), dmiss.data()});
    if (has_miss()) {
      // One token serves every row of the batch.
      float* row = dqkv + miss_row() * width_;
      std::fill_n(row, width_, 0.0f);
      float* dkey = row + config_.query_size();
      for (size_t r = 0; r < batch_.rows; ++r) {
        for (size_t i = 0; i < config_.key_size(); ++i) dkey[i] += dmiss[r * config_.key_size() + i];
      }
    }
    if (batch_.choice != nullptr) batch_.choice->Add(layer, qkv, dqkv);
    Rotate(dqkv, true);
  }

 private:
  FusedInput Input(const float* qkv) {
    FusedInput in{Queries(qkv), Keys(qkv), Values(qkv), {}};
    if (!has_miss()) return in;
    const float* key = qkv + miss_row() * width_ + config_.query_size();
    miss_keys_.resize(batch_.rows * config_.key_size());
    for (size_t r = 0; r < batch_.rows; ++r) std::copy_n(key, config_.key_size(), &miss_keys_[r * config_.key_size()]);
    in.miss = {miss_keys_.data(), batch_.controlled};
    return in;
  }

  std::vector<float> miss_keys_;  // the same key for every row of the batch
};

// Transformer-XL: a row is cut into segments; each sees itself and the cached end of the segment before it, through
// which no gradient flows.
class XlOp : public FusedOp {
 public:
  XlOp(const ModelConfig& config, size_t max_rows, size_t max_time)
      : FusedOp(config, max_rows, max_time),
        segment_(config.landmark.xl_segment_length != 0 ? config.landmark.xl_segment_length : max_time),
        cache_(config.landmark.xl_cache_length != 0 ? std::min(config.landmark.xl_cache_length, segment_) : segment_) {}

  size_t SavedFloats() const override {
    return (max_time_ + segment_ - 1) / segment_ * cairn::SavedFloats(ShapeFor(max_rows_, segment_, 0), false);
  }

  void Forward(size_t, float* qkv, float* out, float* saved_memory) override {
    Rotate(qkv, false);
    ForSegments([&](size_t index, size_t first, size_t prefix, const AttentionShape& shape) {
      const FusedSaved saved = Saved(index, saved_memory);
      const FusedInput in{Queries(std::as_const(qkv), first),
                          Keys(std::as_const(qkv), first - prefix),
                          Values(std::as_const(qkv), first - prefix),
                          {}};
      FusedForward(shape, in, Outputs(out, first), &saved);
    });
  }

  void Backward(size_t, const float* qkv, const float* out, const float* dout, const float* saved_memory,
                float* dqkv) override {
    const size_t n = config_.key_size();
    ForSegments([&](size_t index, size_t first, size_t prefix, const AttentionShape& shape) {
      const FusedSaved saved = Saved(index, const_cast<float*>(saved_memory));
      const FusedInput in{Queries(qkv, first), Keys(qkv, first - prefix), Values(qkv, first - prefix), {}};
      // The cached keys get gradients of their own, which are dropped.
      const size_t keys = shape.keys();
      scratch_.resize(2 * batch_.rows * keys * n);
      const HeadsView<float> dk{scratch_.data(), keys * n, config_.head_dim, n};
      const HeadsView<float> dv{scratch_.data() + batch_.rows * keys * n, keys * n, config_.head_dim, n};
      FusedBackward(shape, in, Outputs(out, first), Outputs(dout, first), saved, {Queries(dqkv, first), dk, dv});
      for (size_t r = 0; r < batch_.rows; ++r) {
        for (size_t t = 0; t < shape.time; ++t) {
          float* to = dqkv + (r * batch_.time + first + t) * width_ + config_.query_size();
          std::copy_n(dk.data + (r * keys + prefix + t) * n, n, to);
          std::copy_n(dv.data + (r * keys + prefix + t) * n, n, to + n);
        }
      }
    });
    Rotate(dqkv, true);
  }

 private:
  template <class Body>
  void ForSegments(const Body& body) const {
    for (size_t first = 0, index = 0; first < batch_.time; first += segment_, ++index) {
      const size_t prefix = std::min(first, cache_);
      body(index, first, prefix, ShapeFor(batch_.rows, std::min(segment_, batch_.time - first), prefix));
    }
  }

  FusedSaved Saved(size_t index, float* memory) const {
    const AttentionShape shape = ShapeFor(max_rows_, segment_, 0);
    return LayOutSaved(shape, false, memory + index * cairn::SavedFloats(shape, false));
  }

  const size_t segment_, cache_;
  std::vector<float> scratch_;
};

}  // namespace

void AttentionOp::Restore(std::span<const float> state) {
  if (!state.empty()) Fail("the checkpoint has a bank of earlier blocks, but the run's attention has none");
}

std::unique_ptr<AttentionOp> MakeAttentionOp(const ModelConfig& config, size_t max_rows, size_t max_time) {
  if (config.landmark.attention == AttentionKind::kXl) return std::make_unique<XlOp>(config, max_rows, max_time);
  if (config.landmark.memory_training.enabled) return MakeMemoryOp(config, max_rows, max_time);
  if (config.landmark.local_layers > 0) {
    Fail("landmark.local_layers is {}, which needs landmark.memory_training: only there rows have chunks",
         config.landmark.local_layers);
  }
  return std::make_unique<CausalOp>(config, max_rows, max_time);
}

}  // namespace cairn
