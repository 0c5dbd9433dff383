#include "formats/grow.h"

#include <cmath>

#include "base/error.h"
#include "base/random.h"

namespace cairn {

namespace {

uint64_t Larger(const char* what, uint64_t before, uint64_t wanted) {
  if (wanted == 0) return before;
  if (wanted < before) Fail("{} is {}, and {} would be less: a model can only grow", what, before, wanted);
  return wanted;
}

double WidthRatio(const ModelConfig& before, const ModelConfig& after) {
  return static_cast<double>(before.hidden_size) / static_cast<double>(after.hidden_size);
}

ModelConfig LargerConfig(const ModelConfig& before, const GrowOptions& options) {
  ModelConfig config = before;
  config.hidden_size = Larger("the width", before.hidden_size, options.hidden_size);
  config.num_attention_heads = Larger("the number of heads", before.num_attention_heads, options.num_attention_heads);
  config.num_key_value_heads =
      Larger("the number of KV heads", before.num_key_value_heads, options.num_key_value_heads);
  config.intermediate_size = Larger("the feed-forward width", before.intermediate_size, options.intermediate_size);
  if (config.num_attention_heads * before.num_key_value_heads !=
      before.num_attention_heads * config.num_key_value_heads) {
    Fail("{} heads with {} KV heads: each KV head must keep the {} heads it has now", config.num_attention_heads,
         config.num_key_value_heads, before.num_attention_heads / before.num_key_value_heads);
  }
  // A norm divides by the root of the mean square plus this, and new coordinates are zero.
  config.rms_norm_eps *= WidthRatio(before, config);
  return config;
}

}  // namespace

std::shared_ptr<const ModelSource> GrowModel(const ModelSource& from, const GrowOptions& options) {
  const ModelConfig config = LargerConfig(from.config(), options);
  const auto norm = static_cast<float>(std::sqrt(WidthRatio(from.config(), config)));
  const auto deviation = static_cast<float>(1 / std::sqrt(static_cast<double>(config.hidden_size)));
  Random random(options.seed);
  std::map<std::string, Tensor> tensors;
  for (const ExpectedTensor& expected : ExpectedTensors(config)) {
    const Tensor old = from.ReadFloats(expected.name);
    Tensor grown(expected.shape);
    const std::string_view name = expected.name;
    const bool is_norm = name.ends_with("norm.weight");
    const bool writes = name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight") ||
                        name.ends_with("embed_tokens.weight") || name.ends_with("bias");
    const size_t columns = expected.shape.back(), old_columns = old.shape().back();
    for (size_t i = 0; i < grown.size(); ++i) {
      const size_t row = i / columns, column = i % columns;
      const bool is_old = column < old_columns && row * old_columns < old.size();
      if (is_norm) {
        grown[i] = norm * (is_old ? old[column] : 1.0f);
      } else if (is_old) {
        grown[i] = old[row * old_columns + column];
      } else if (!writes) {
        grown[i] = deviation * static_cast<float>(random.Normal());
      }
    }
    tensors.emplace(expected.name, std::move(grown));
  }
  return MakeModelSource(config, std::move(tensors));
}

}  // namespace cairn
