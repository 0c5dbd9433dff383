// The whole model's loss in f64, naively: the oracle of the training engine. Its gradient is taken by finite
// differences.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "model/parameters.h"
#include "train/engine.h"

namespace cairn {

class ReferenceModel {
 public:
  ReferenceModel(const ModelConfig& config, const ParameterLayout& layout) : config_(config), layout_(layout) {}

  // Keys and values of every layer, [layer][rows * time (+ 1)][key_size].
  struct Cache {
    std::vector<std::vector<double>> keys, values;
  };

  // Sum of the losses. `values` has layout.size() numbers. Transformer-XL takes what it reads of an earlier segment
  // from `frozen` when that is given, since no gradient flows through it. `keep`, when given, receives this run's own.
  double Loss(std::span<const double> values, const EngineBatch& batch, const Cache* frozen = nullptr,
              Cache* keep = nullptr) const;

 private:
  struct Layer;
  std::vector<double> Attend(const Layer& layer, const EngineBatch& batch) const;
  void MemoryRow(const Layer& layer, const EngineBatch& batch, size_t row, size_t head, size_t time, double* out) const;

  const ModelConfig config_;
  const ParameterLayout& layout_;
};

}  // namespace cairn
