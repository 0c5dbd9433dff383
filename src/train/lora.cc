#include "train/lora.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/checked.h"
#include "base/error.h"
#include "base/random.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "kernels/gemm.h"
#include "train/model_growth.h"

namespace cairn {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

bool IsTarget(const std::string& name, const std::vector<std::string>& targets) {
  return std::any_of(targets.begin(), targets.end(),
                     [&](const std::string& target) { return name.ends_with("." + target + ".weight"); });
}

// Tensor of the embeddings of new tokens; PEFT knows nothing like it.
std::string RowsName(const std::string& table) {
  return "base_model.model." + table.substr(0, table.size() - 7) + ".cairn_new_rows";
}

}  // namespace

std::string LoraTensorName(const std::string& weight, char matrix) {
  return fmt::format("base_model.model.{}.lora_{}.weight", weight.substr(0, weight.size() - 7), matrix);
}

LoraTrainable::LoraTrainable(Parameters& weights, const LoraConfig& config, const std::vector<int64_t>& new_tokens,
                             uint64_t seed)
    : weights_(weights), config_(config), base_(weights.size()) {
  std::copy(weights.data(), weights.data() + weights.size(), base_.begin());
  size_t size = 0;
  const auto add = [&](std::string name, Shape shape, bool decays) {
    const size_t offset = size;
    const size_t count = *CheckedProduct(shape);
    tensors_.push_back({std::move(name), std::move(shape), offset, count, decays});
    size = RoundUp(size + count, 16);
    return offset;
  };
  for (const ParameterSlot& slot : weights.layout().slots()) {
    if (!IsTarget(slot.name, config.targets)) continue;
    const size_t a = add(LoraTensorName(slot.name, 'A'), {config.rank, slot.shape[1]}, true);
    const size_t b = add(LoraTensorName(slot.name, 'B'), {slot.shape[0], config.rank}, true);
    pairs_.push_back({&slot, a, b});
  }
  for (const ParameterSlot& slot : weights.layout().slots()) {
    if (new_tokens.empty() || (slot.name != kEmbedding && slot.name != kHead)) continue;
    hidden_ = slot.shape[1];
    const size_t offset = add(RowsName(slot.name), {new_tokens.size(), hidden_}, false);
    for (size_t i = 0; i < new_tokens.size(); ++i) {
      rows_.push_back({slot.offset + static_cast<size_t>(new_tokens[i]) * hidden_, offset + i * hidden_});
    }
  }
  values_ = AlignedBuffer<float>(size);
  gradient_ = AlignedBuffer<float>(size);
  Random random(seed ^ 0x6c6f7261u);
  for (const Pair& pair : pairs_) {
    const size_t in = pair.slot->shape[1];
    const double bound = 1 / std::sqrt(static_cast<double>(in));  // PEFT's
    for (size_t i = 0; i < config.rank * in; ++i) {
      values_[pair.a + i] = static_cast<float>((2 * random.Uniform() - 1) * bound);
    }
  }
  for (const Row& row : rows_) std::copy_n(&base_[row.weight], hidden_, &values_[row.value]);
}

const float* LoraTrainable::Gradient(const Parameters& weight_gradients) {
  const float scale = static_cast<float>(config_.alpha / static_cast<double>(config_.rank));
  for (const Pair& pair : pairs_) {
    const size_t out = pair.slot->shape[0], in = pair.slot->shape[1], rank = config_.rank;
    const float* dw = weight_gradients.At(pair.slot->offset);
    RunMatMul({.m = rank, .n = in, .k = out, .transpose_a = true}, &values_[pair.b], dw, &gradient_[pair.a]);
    RunMatMul({.m = out, .n = rank, .k = in, .transpose_b = true}, dw, &values_[pair.a], &gradient_[pair.b]);
    for (size_t i = 0; i < rank * in; ++i) gradient_[pair.a + i] *= scale;
    for (size_t i = 0; i < out * rank; ++i) gradient_[pair.b + i] *= scale;
  }
  for (const Row& row : rows_) std::copy_n(weight_gradients.At(row.weight), hidden_, &gradient_[row.value]);
  return gradient_.data();
}

void LoraTrainable::Apply() {
  const float scale = static_cast<float>(config_.alpha / static_cast<double>(config_.rank));
  for (const Pair& pair : pairs_) {
    const size_t out = pair.slot->shape[0], in = pair.slot->shape[1], rank = config_.rank;
    scaled_.resize(out * rank);
    for (size_t i = 0; i < out * rank; ++i) scaled_[i] = scale * values_[pair.b + i];
    std::copy_n(&base_[pair.slot->offset], out * in, weights_.At(pair.slot->offset));
    RunMatMul({.m = out, .n = in, .k = rank, .accumulate = true}, scaled_.data(), &values_[pair.a],
              weights_.At(pair.slot->offset));
  }
  for (const Row& row : rows_) std::copy_n(&values_[row.value], hidden_, weights_.At(row.weight));
}

void WriteAdapter(const fs::path& directory, const AdapterToWrite& adapter) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) Fail("cannot create '{}': {}", directory.string(), error.message());
  fs::remove(directory / "adapter_config.json", error);  // not an adapter while it is being written
  std::vector<TensorToWrite> tensors;
  for (const TrainableTensor& tensor : adapter.trainable.tensors()) {
    const std::span<const float> values(adapter.trainable.values() + tensor.offset, tensor.size);
    tensors.push_back({tensor.name, DType::kF32, tensor.shape, std::as_bytes(values)});
  }
  WriteSafetensors(directory / "adapter_model.safetensors", tensors, {{"format", "pt"}});
  WriteFileAtomically(directory / "config.json", ToJson(adapter.model));
  if (adapter.tokenizer != nullptr) adapter.tokenizer->Save(directory);
  Json config;
  config["peft_type"] = "LORA";
  config["task_type"] = "CAUSAL_LM";
  config["base_model_name_or_path"] = adapter.base;
  config["r"] = adapter.config.rank;
  config["lora_alpha"] = adapter.config.alpha;
  config["lora_dropout"] = 0.0;
  config["target_modules"] = adapter.config.targets;
  config["bias"] = "none";
  config["fan_in_fan_out"] = false;
  config["inference_mode"] = true;
  config["cairn_new_tokens"] = adapter.new_tokens;
  WriteFileAtomically(directory / "adapter_config.json", config.dump(2) + "\n");
}

std::shared_ptr<const ModelSource> MergeAdapter(const ModelSource& base, const fs::path& adapter) {
  const std::string name = (adapter / "adapter_config.json").string();
  const nlohmann::json root = ParseJson(ReadTextFile(name, 1 << 20), name);
  LoraConfig config;
  std::vector<int64_t> new_tokens;
  try {
    if (root.at("peft_type") != "LORA") Fail("'{}': peft_type is not \"LORA\"", name);
    config.rank = root.at("r").get<size_t>();
    config.alpha = root.at("lora_alpha").get<double>();
    config.targets = root.at("target_modules").get<std::vector<std::string>>();
    if (root.contains("cairn_new_tokens")) new_tokens = root.at("cairn_new_tokens").get<std::vector<int64_t>>();
  } catch (const nlohmann::json::exception& error) {
    Fail("'{}' is not the description of a LoRA adapter: {}", name, error.what());
  }
  if (config.rank < 1 || config.rank > 65536) Fail("'{}': r is {}, which is not from 1 to 65536", name, config.rank);
  if (!std::isfinite(config.alpha)) Fail("'{}': lora_alpha is not a number", name);
  // An adapter of other tools has no config: the model's own is right, then.
  std::error_code ignored;
  ModelConfig model = base.config();
  if (fs::exists(adapter / "config.json", ignored)) {
    model = ParseModelConfig(ReadTextFile(adapter / "config.json", 1 << 20), (adapter / "config.json").string());
  }
  for (const int64_t token : new_tokens) {
    if (token < 0 || static_cast<size_t>(token) >= model.vocab_size) {
      Fail("'{}': cairn_new_tokens has {}, but the vocabulary has {} tokens", name, token, model.vocab_size);
    }
  }
  CheckSameArchitecture(base, model, adapter.string());
  model.rotary_layout = RotaryLayout::kHalf;
  const ParameterLayout layout(model);
  Parameters weights(layout);
  LoadWeights(base, model, new_tokens, weights);
  LoraTrainable lora(weights, config, new_tokens, 0);
  if (lora.tensors().empty()) Fail("'{}': target_modules names no matrix of the model", name);
  const SafetensorsFile file(adapter / "adapter_model.safetensors");
  for (const TrainableTensor& tensor : lora.tensors()) {
    const Tensor read = file.ReadFloats(tensor.name);
    if (read.shape() != tensor.shape) {
      Fail("'{}': tensor '{}' has shape {}, but the model asks for {}", file.name(), tensor.name,
           ToString(read.shape()), ToString(tensor.shape));
    }
    std::copy(read.span().begin(), read.span().end(), lora.values() + tensor.offset);
  }
  lora.Apply();
  return SourceOf(model, weights);
}

}  // namespace cairn
