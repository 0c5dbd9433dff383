#include "train/model_growth.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace cairn {

namespace {

bool IsEmbedding(const std::string& name) { return name == "model.embed_tokens.weight" || name == "lm_head.weight"; }

}  // namespace

GrownModel GrowModel(const ModelSource& base, std::shared_ptr<const Tokenizer> tokenizer,
                     const std::optional<std::string>& section, const std::string& name) {
  GrownModel grown;
  grown.config = base.config();
  grown.config.rotary_layout = RotaryLayout::kHalf;  // LoadWeights puts the rows so
  grown.config.torch_dtype = "float32";
  const size_t ordinary = tokenizer->vocab_size() - (tokenizer->landmark() ? 1 : 0);
  if (ordinary > base.config().vocab_size) {
    Fail("the tokenizer '{}' has {} tokens, but '{}' knows {}; name the model's own tokenizer",
         tokenizer->spec().origin, ordinary, base.name(), base.config().vocab_size);
  }
  grown.tokenizer = tokenizer;
  if (!section) {
    if (base.config().has_landmark()) grown.tokenizer = WithLandmark(tokenizer);
    return grown;
  }
  LandmarkConfig landmark = ParseLandmark(nlohmann::json::parse(*section), name);
  // A vocabulary ends with the tokens that were added last, so new ones go behind it.
  const auto take_token = [&](int64_t wanted) {
    const auto vocab = static_cast<int64_t>(grown.config.vocab_size);
    if (wanted > vocab)
      Fail("'{}': the token {} would leave a gap after the {} tokens of '{}'", name, wanted, vocab, base.name());
    grown.config.vocab_size = static_cast<size_t>(std::max(vocab, wanted + 1));
    grown.new_tokens.push_back(wanted);
    return wanted;
  };
  const LandmarkConfig& old = base.config().landmark;
  if (landmark.attention == AttentionKind::kLandmark) {
    grown.tokenizer = WithLandmark(tokenizer);
    const int64_t id = *grown.tokenizer->landmark();
    if (landmark.landmark_id >= 0 && landmark.landmark_id != id) {
      Fail("'{}': landmark.landmark_id is {}, but the tokenizer '{}' has it at {}", name, landmark.landmark_id,
           tokenizer->spec().origin, id);
    }
    if (old.landmark_id >= 0 && old.landmark_id != id) {
      Fail("'{}' has its landmark at {}, but the tokenizer '{}' has it at {}", base.name(), old.landmark_id,
           tokenizer->spec().origin, id);
    }
    landmark.landmark_id = old.landmark_id >= 0 ? old.landmark_id : take_token(id);
  } else {
    landmark.landmark_id = old.landmark_id;
  }
  if (ContextMissConfig& miss = landmark.context_miss; miss.enabled) {
    if (old.context_miss.token_id >= 0) {
      miss.token_id = old.context_miss.token_id;
    } else {
      miss.token_id = take_token(miss.token_id >= 0 ? miss.token_id : static_cast<int64_t>(grown.config.vocab_size));
    }
  }
  grown.config.landmark = landmark;
  ValidateModelConfig(grown.config, name);
  return grown;
}

void CheckSameArchitecture(const ModelSource& base, const ModelConfig& config, const std::string& name) {
  ModelConfig same = config;
  same.vocab_size = base.config().vocab_size;
  const auto wanted = ExpectedTensors(same), present = ExpectedTensors(base.config());
  bool fits = wanted.size() == present.size() && config.vocab_size >= base.config().vocab_size;
  for (size_t i = 0; fits && i < wanted.size(); ++i) {
    fits = wanted[i].name == present[i].name && wanted[i].shape == present[i].shape;
  }
  if (!fits) Fail("'{}' was made for a model of another shape than '{}'", name, base.name());
}

void LoadWeights(const ModelSource& base, const ModelConfig& config, const std::vector<int64_t>& new_tokens,
                 Parameters& weights) {
  for (const ParameterSlot& slot : weights.layout().slots()) {
    const Tensor tensor = base.ReadFloats(slot.name, RotaryLayout::kHalf);
    const std::span<float> values = weights.Get(slot);
    CAIRN_CHECK(tensor.size() <= values.size());
    std::copy(tensor.span().begin(), tensor.span().end(), values.begin());
    if (!IsEmbedding(slot.name) || new_tokens.empty()) continue;
    const size_t hidden = config.hidden_size;
    const auto is_new = [&](size_t row) {
      return std::find(new_tokens.begin(), new_tokens.end(), static_cast<int64_t>(row)) != new_tokens.end();
    };
    std::vector<double> mean(hidden, 0);
    size_t count = 0;
    for (size_t row = 0; row < base.config().vocab_size; ++row) {
      if (is_new(row)) continue;
      for (size_t c = 0; c < hidden; ++c) mean[c] += values[row * hidden + c];
      ++count;
    }
    for (const int64_t token : new_tokens) {
      for (size_t c = 0; c < hidden; ++c) {
        values[static_cast<size_t>(token) * hidden + c] =
            static_cast<float>(mean[c] / static_cast<double>(std::max<size_t>(count, 1)));
      }
    }
    // A context-miss token competes with local keys as landmarks do, for them: it begins as a landmark of nothing.
    const LandmarkConfig& landmark = config.landmark;
    if (landmark.context_miss.enabled && landmark.landmark_id >= 0 &&
        is_new(static_cast<size_t>(landmark.context_miss.token_id))) {
      std::copy_n(&values[static_cast<size_t>(landmark.landmark_id) * hidden], hidden,
                  &values[static_cast<size_t>(landmark.context_miss.token_id) * hidden]);
    }
  }
}

std::shared_ptr<const ModelSource> SourceOf(const ModelConfig& config, const Parameters& weights) {
  std::map<std::string, Tensor> tensors;
  for (const ParameterSlot& slot : weights.layout().slots()) {
    Tensor tensor(slot.shape);
    const std::span<const float> values = weights.Get(slot);
    std::copy(values.begin(), values.end(), tensor.data());
    tensors[slot.name] = std::move(tensor);
  }
  return MakeModelSource(config, std::move(tensors));
}

}  // namespace cairn
