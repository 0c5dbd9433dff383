// What an optimizer changes: the weights themselves, or something from which they are made (LoRA). One flat stretch of
// f32 with named tensors in it.
#pragma once

#include <string>
#include <vector>

#include "model/parameters.h"

namespace cairn {

struct TrainableTensor {
  std::string name;
  Shape shape;
  size_t offset;  // in floats
  size_t size;
  bool decays;  // takes part in weight decay
};

// Not thread-safe.
class Trainable {
 public:
  virtual ~Trainable() = default;

  const std::vector<TrainableTensor>& tensors() const { return tensors_; }
  virtual size_t size() const = 0;  // floats, padding included
  virtual float* values() = 0;
  // The gradient of the values, out of that of the weights; lives until the next call.
  virtual const float* Gradient(const Parameters& weight_gradients) = 0;
  // Makes the weights out of the values. To be called after every change of them.
  virtual void Apply() = 0;

 protected:
  std::vector<TrainableTensor> tensors_;
};

// Every weight of the model.
class FullTrainable : public Trainable {
 public:
  // `weights` outlives this.
  FullTrainable(Parameters& weights, bool decay_norms) : weights_(weights) {
    for (const ParameterSlot& slot : weights.layout().slots()) {
      tensors_.push_back({slot.name, slot.shape, slot.offset, slot.size, decay_norms || slot.shape.size() > 1});
    }
  }
  size_t size() const override { return weights_.size(); }
  float* values() override { return weights_.data(); }
  const float* Gradient(const Parameters& weight_gradients) override { return weight_gradients.data(); }
  void Apply() override {}

 private:
  Parameters& weights_;
};

}  // namespace cairn
