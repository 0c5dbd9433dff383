// The attention of one layer in training, whatever its kind: plain causal, landmarks (with context-miss token), or
// Transformer-XL segments. Works on the rows of the joined q, k, v projection.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/config.h"

namespace cairn {

class ChoiceLoss;

// A batch as the attention sees it. `qkv` rows are [query_size + 2 * key_size]; with a context-miss token one more row
// follows the rows * time ordinary ones: its key is the token's.
struct AttentionBatch {
  size_t rows;
  size_t time;
  const int32_t* positions;      // [rows][time], or null: 0, 1, 2, ... in every row
  const uint8_t* controlled;     // [rows][blocks]: landmarks under the context-miss token; null without one
  uint64_t bank_key = 0;         // training with memory: which distractors to draw
  ChoiceLoss* choice = nullptr;  // gets its gradients in the backward pass; null without one
};

class AttentionOp {
 public:
  virtual ~AttentionOp() = default;

  // Floats that a layer keeps for the backward pass.
  virtual size_t SavedFloats() const = 0;
  // Called once a batch, before the layers.
  virtual void Begin(const AttentionBatch& batch) = 0;
  // Rotates q and k in place; out [rows * time (+ 1)][query_size].
  virtual void Forward(size_t layer, float* qkv, float* out, float* saved) = 0;
  // qkv as Forward left it; dqkv gets gradients before rotation.
  virtual void Backward(size_t layer, const float* qkv, const float* out, const float* dout, const float* saved,
                        float* dqkv) = 0;

  // What outlives a batch and changes later ones: the bank of training with memory. Empty when there is nothing.
  virtual std::vector<float> State() const { return {}; }
  // Throws Error when the values are not the State of such an operation.
  virtual void Restore(std::span<const float> state);
};

std::unique_ptr<AttentionOp> MakeAttentionOp(const ModelConfig& config, size_t max_rows, size_t max_time);

}  // namespace cairn
