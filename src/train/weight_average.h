// A running mean of the values that a run trains: the value after each step counts by decay^age. It stands nearer to
// the bottom of the valley whose walls the steps go to and fro between.
#pragma once

#include <span>

#include "base/aligned.h"
#include "train/trainable.h"

namespace cairn {

class WeightAverage {
 public:
  // `trainable` outlives this. decay: from 0, the latest values alone, to below 1.
  WeightAverage(double decay, Trainable& trainable)
      : decay_(decay), trainable_(trainable), average_(trainable.size()) {}

  // After an update of the values; `step` counts from 0.
  void Add(uint64_t step);
  // Exchanges the average with the values, and the weights follow. A second call takes it back.
  void Swap();

  std::span<float> values() { return average_.span(); }

 private:
  const double decay_;
  Trainable& trainable_;
  AlignedBuffer<float> average_;
};

}  // namespace cairn
