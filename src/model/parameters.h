// The weights of a model in one flat stretch of f32, or anything of the same shape: gradients, optimizer state.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "model/config.h"

namespace cairn {

// One tensor of the model inside the flat stretch.
struct ParameterSlot {
  std::string name;  // Hugging Face's
  Shape shape;
  size_t offset;  // in floats
  size_t size;
  size_t group;  // ParameterLayout::groups: tensors whose gradients are ready together
};

// Where everything is. q, k and v lie one after the other and so do gate and up: each is one matrix for the products.
// Order: embeddings, the layers, final norm and head. Immutable.
class ParameterLayout {
 public:
  explicit ParameterLayout(const ModelConfig& config);

  const std::vector<ParameterSlot>& slots() const { return slots_; }
  const ParameterSlot& Find(const std::string& name) const;  // BugError when there is none
  size_t size() const { return size_; }                      // floats, padding between tensors included
  // Group 0 is the embeddings, 1 + l is layer l, the last one is final norm and head.
  size_t groups() const { return group_begin_.size() - 1; }
  size_t group_begin(size_t group) const { return group_begin_[group]; }

  struct Layer {
    size_t input_norm, qkv, o, post_norm, gate_up, down;  // offsets
  };
  const Layer& layer(size_t index) const { return layers_[index]; }
  size_t embedding() const { return 0; }
  size_t final_norm() const { return final_norm_; }
  size_t head() const { return head_; }  // the embedding's when tied

 private:
  std::vector<ParameterSlot> slots_;
  std::vector<Layer> layers_;
  std::vector<size_t> group_begin_;
  size_t final_norm_ = 0;
  size_t head_ = 0;
  size_t size_ = 0;
};

// Values in that layout.
class Parameters {
 public:
  explicit Parameters(const ParameterLayout& layout) : layout_(&layout), values_(layout.size()) {}

  const ParameterLayout& layout() const { return *layout_; }
  float* data() { return values_.data(); }
  const float* data() const { return values_.data(); }
  size_t size() const { return values_.size(); }
  float* At(size_t offset) { return values_.data() + offset; }
  const float* At(size_t offset) const { return values_.data() + offset; }
  std::span<float> Get(const ParameterSlot& slot) { return {values_.data() + slot.offset, slot.size}; }
  std::span<const float> Get(const ParameterSlot& slot) const { return {values_.data() + slot.offset, slot.size}; }
  std::span<float> Get(const std::string& name) { return Get(layout_->Find(name)); }
  std::span<const float> Get(const std::string& name) const { return Get(layout_->Find(name)); }
  void SetZero() { std::fill(values_.begin(), values_.end(), 0.0f); }

 private:
  const ParameterLayout* layout_;  // outlives this
  AlignedBuffer<float> values_;
};

}  // namespace cairn
