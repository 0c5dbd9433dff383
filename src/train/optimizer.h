// AdamW over a trainable set, with its two moments and clipping by the global norm.
#pragma once

#include "base/aligned.h"
#include "train/run_config.h"
#include "train/trainable.h"

namespace cairn {

class Optimizer {
 public:
  // `trainable` outlives this.
  Optimizer(const TrainingConfig& config, Trainable& trainable);

  // The length of the whole gradient; not finite when a part of it is not.
  double Norm(const float* gradient) const;
  // One update; `step` counts from 0 and decides the learning rate and the bias correction. `norm` as Norm gave it.
  void Step(uint64_t step, const float* gradient, double norm);

  std::span<float> first() { return first_.span(); }
  std::span<float> second() { return second_.span(); }

 private:
  const TrainingConfig config_;
  Trainable& trainable_;
  AlignedBuffer<float> first_, second_;
};

}  // namespace cairn
