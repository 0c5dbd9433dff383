#include "train/optimizer.h"

#include <cmath>

#include "kernels/elementwise.h"

namespace cairn {

Optimizer::Optimizer(const TrainingConfig& config, Trainable& trainable)
    : config_(config), trainable_(trainable), first_(trainable.size()), second_(trainable.size()) {}

double Optimizer::Norm(const float* gradient) const { return std::sqrt(RunSumOfSquares(trainable_.size(), gradient)); }

void Optimizer::Step(uint64_t step, const float* gradient, double norm) {
  const double t = static_cast<double>(step + 1);
  AdamW args{};
  args.learning_rate = static_cast<float>(LearningRate(config_, step));
  args.beta1 = static_cast<float>(config_.beta1);
  args.beta2 = static_cast<float>(config_.beta2);
  args.eps = static_cast<float>(config_.eps);
  args.bias1 = static_cast<float>(1 - std::pow(config_.beta1, t));
  args.bias2 = static_cast<float>(1 - std::pow(config_.beta2, t));
  args.gradient_scale =
      config_.clip_norm > 0 && norm > config_.clip_norm ? static_cast<float>(config_.clip_norm / norm) : 1.0f;
  for (const TrainableTensor& tensor : trainable_.tensors()) {
    args.weight_decay = tensor.decays ? static_cast<float>(config_.weight_decay) : 0.0f;
    const size_t at = tensor.offset;
    RunAdamW(tensor.size, args, gradient + at, trainable_.values() + at, first_.data() + at, second_.data() + at);
  }
}

}  // namespace cairn
