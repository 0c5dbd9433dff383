// One training step's forward and backward pass of a LLaMA-style model over one planned arena. Hand-derived; no graph.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/aligned.h"
#include "model/parameters.h"
#include "train/attention_op.h"
#include "train/choice_loss.h"

namespace cairn {

struct EngineOptions {
  size_t rows = 1;          // largest batch
  size_t time = 1;          // longest row, landmarks included
  bool recompute = false;   // keep only each layer's input and compute the rest again in the backward pass
  int32_t padding_id = -1;  // a token whose input embedding gets no gradient (PyTorch's padding_idx); -1: none
  std::optional<ChoiceConfig> choice = {};  // teaches the choice of blocks
};

// input_ids and targets are [rows][time]; a negative target carries no loss.
struct EngineBatch {
  size_t rows = 0;
  size_t time = 0;
  const int32_t* input_ids = nullptr;
  const int32_t* targets = nullptr;
  const int32_t* positions = nullptr;                          // see AttentionBatch
  const uint8_t* controlled = nullptr;                         // see AttentionBatch
  uint64_t bank_key = 0;                                       // see AttentionBatch
  std::span<const std::array<int32_t, 2>> answer_blocks = {};  // see Batch; needed where the choice is taught
  float choice_scale = 1;                                      // of its loss
};

// Where the time of a step goes; seconds since construction or Reset.
enum class Operation { kEmbedding, kNorm, kLinear, kAttention, kSwiGlu, kHead, kOptimizer, kCount };
std::string_view NameOf(Operation operation);
using OperationTimes = std::array<double, static_cast<size_t>(Operation::kCount)>;

// Not thread-safe; uses all threads inside.
class Engine {
 public:
  Engine(const ModelConfig& config, const ParameterLayout& layout, const EngineOptions& options);

  // Adds the gradient of scale * (sum of the losses) to `gradients` and returns the sum of the losses. `ready(group)`,
  // when given, is called as soon as a parameter group's gradient is complete, from the last group to the first.
  double Train(const Parameters& parameters, const EngineBatch& batch, float scale, Parameters& gradients,
               const std::function<void(size_t group)>& ready = nullptr);

  // Sum of the losses, no gradients.
  double Evaluate(const Parameters& parameters, const EngineBatch& batch);

  // logits [rows * time][vocab_size].
  void Logits(const Parameters& parameters, const EngineBatch& batch, float* logits);

  // Bytes of the arena, and what of it grows with each token of the batch.
  size_t ArenaBytes() const { return arena_.size() * sizeof(float); }
  size_t BytesPerToken() const { return ArenaBytes() / (options_.rows * options_.time); }

  // What outlives a batch: banks of blocks (see AttentionOp) and of landmarks.
  std::vector<float> BankState() const;
  void RestoreBanks(std::span<const float> state);

  // Of the last batch of Train; null when the choice is not taught.
  const ChoiceLoss* choice() const { return choice_.get(); }

  OperationTimes& times() { return times_; }

 private:
  // What a layer keeps for its backward pass.
  struct Saved {
    float* input;          // [M][C] residual stream
    float* rstd1;          // [M]
    float* qkv;            // [M][Q + 2 KV], rotated
    float* attention;      // AttentionOp::SavedFloats
    float* attention_out;  // [M][Q]
    float* middle;         // [M][C] residual stream after attention
    float* rstd2;          // [M]
    float* gate_up;        // [M][2 F]
  };

  void PlanArena();
  void Start(const Parameters& parameters, const EngineBatch& batch);
  void ForwardLayer(const Parameters& parameters, size_t layer, bool again);
  void ForwardAll(const Parameters& parameters, const EngineBatch& batch);
  void BackwardLayer(const Parameters& parameters, size_t layer, Parameters& gradients);
  double Head(const Parameters& parameters, const EngineBatch& batch, float scale, Parameters* gradients);
  void Product(size_t n, size_t k, const float* a, const float* weight, float* c);           // c = a weight^T
  void ProductBack(size_t n, size_t k, const float* dc, const float* weight, float* da);     // da = dc weight
  void ProductWeights(size_t n, size_t k, const float* dc, const float* a, float* dweight);  // dweight += dc^T a

  const ModelConfig config_;
  const ParameterLayout& layout_;
  const EngineOptions options_;
  std::unique_ptr<AttentionOp> attention_;
  std::unique_ptr<ChoiceLoss> choice_;
  size_t max_tokens_;   // rows of the matrices: rows * time, and one for the context-miss token
  size_t head_rows_;    // rows of logits at a time; the last chunk is padded
  size_t head_chunks_;  // of a batch in which every token is scored
  size_t tokens_ = 0;   // rows of the matrices in this batch

  AlignedBuffer<float> arena_;
  std::vector<Saved> saved_;
  float* final_input_;  // [M][C] residual stream after the last layer
  float* final_rstd_;
  float* normed_;      // [M][C]
  float* delta_;       // [M][C] a layer's contribution, not yet added to the residual stream
  float* act_;         // [M][F]
  float* dx_;          // [M][C]
  float* dnormed_;     // [M][C]
  float* dgate_up_;    // [M][2 F]
  float* dact_;        // [M][F]
  float* dqkv_;        // [M][Q + 2 KV]
  float* dattention_;  // [M][Q]
  float* head_in_;     // [head_chunks * head_rows][C] rows that carry loss
  float* logits_;      // [head_rows][V]
  std::vector<int32_t> scored_rows_, scored_targets_;
  std::vector<int32_t> embedded_ids_;
  std::vector<double> losses_;
  OperationTimes times_{};
};

}  // namespace cairn
