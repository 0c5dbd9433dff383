// LoRA: the weights of some matrices are W + (alpha / rank) B A with W fixed, and only A, B and the embeddings of new
// tokens are trained. Adapters are written the way PEFT names them.
#pragma once

#include <filesystem>
#include <memory>

#include "base/aligned.h"
#include "formats/model_source.h"
#include "tokenizer/tokenizer.h"
#include "train/run_config.h"
#include "train/trainable.h"

namespace cairn {

// Trains the adapter and keeps `weights` equal to base + adapter.
class LoraTrainable : public Trainable {
 public:
  // `weights` holds the base and outlives this. The embeddings (input and output) of the tokens `new_tokens` are
  // trained too. B starts as 0, so that the first weights are the base's.
  LoraTrainable(Parameters& weights, const LoraConfig& config, const std::vector<int64_t>& new_tokens, uint64_t seed);

  size_t size() const override { return values_.size(); }
  float* values() override { return values_.data(); }
  const float* Gradient(const Parameters& weight_gradients) override;
  void Apply() override;

 private:
  struct Pair {
    const ParameterSlot* slot;  // [out][in]
    size_t a, b;                // offsets of A [rank][in] and B [out][rank]
  };
  struct Row {
    size_t weight, value;  // offsets of `hidden` floats
  };
  Parameters& weights_;
  const LoraConfig config_;
  size_t hidden_ = 0;
  std::vector<Pair> pairs_;
  std::vector<Row> rows_;
  AlignedBuffer<float> base_;  // the weights without adapter
  AlignedBuffer<float> values_, gradient_;
  std::vector<float> scaled_;  // (alpha / rank) B
};

// Name of an adapter's tensor: "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight" for 'A'.
std::string LoraTensorName(const std::string& weight, char matrix);

struct AdapterToWrite {
  const LoraConfig& config;
  const ModelConfig& model;  // with the new tokens
  std::string base;          // path of the base model
  std::vector<int64_t> new_tokens;
  Trainable& trainable;
  const Tokenizer* tokenizer;
};

// adapter_config.json, adapter_model.safetensors, config.json (of the model with its new tokens) and the tokenizer.
void WriteAdapter(const std::filesystem::path& directory, const AdapterToWrite& adapter);

// The base with an adapter put into its weights.
std::shared_ptr<const ModelSource> MergeAdapter(const ModelSource& base, const std::filesystem::path& adapter);

}  // namespace cairn
