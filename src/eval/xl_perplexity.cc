#include "eval/xl_perplexity.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "train/engine.h"
#include "train/model_growth.h"

namespace cairn {

PerplexityResult MeasureXlPerplexity(const ModelSource& model, size_t segment, size_t cache,
                                     const PerplexityOptions& options, std::span<const int32_t> text,
                                     const std::function<void(size_t tokens)>& progress) {
  if (model.config().landmark.attention != AttentionKind::kXl) {
    Fail("'{}' was not trained as a Transformer-XL", model.name());
  }
  if (options.max_tokens != 0) text = text.first(std::min(text.size(), options.max_tokens));
  if (text.size() < 2) Fail("the text has {} tokens; at least 2 are needed", text.size());
  const size_t length = std::min(options.length != 0 ? options.length : text.size(), text.size());
  for (const int32_t id : text) {
    if (id < 0 || static_cast<size_t>(id) >= model.config().vocab_size) {
      Fail("token {} is not in the model's vocabulary of {}", id, model.config().vocab_size);
    }
  }
  ModelConfig config = model.config();
  config.rotary_layout = RotaryLayout::kHalf;  // LoadWeights puts the rows so
  config.landmark.xl_segment_length = segment;
  config.landmark.xl_cache_length = cache;
  const ParameterLayout layout(config);
  Parameters weights(layout);
  LoadWeights(model, config, {}, weights);
  const size_t first_token = options.bos >= 0 ? 1 : 0;
  EngineOptions engine_options;
  engine_options.time = length + first_token;
  Engine engine(config, layout, engine_options);

  PerplexityResult result;
  const auto begin = std::chrono::steady_clock::now();
  double sum = 0;
  for (size_t first = 0; first < text.size(); first += length) {
    const std::span<const int32_t> window = text.subspan(first, std::min(length, text.size() - first));
    std::vector<int32_t> ids(window.begin(), window.end());
    if (options.bos >= 0) ids.insert(ids.begin(), options.bos);
    if (ids.size() < 2) continue;
    std::vector<int32_t> targets(ids.begin() + 1, ids.end());
    targets.push_back(-1);
    EngineBatch batch;
    batch.rows = 1;
    batch.time = ids.size();
    batch.input_ids = ids.data();
    batch.targets = targets.data();
    sum += engine.Evaluate(weights, batch);
    result.tokens += ids.size() - 1;
    ++result.windows;
    if (progress) progress(std::min(first + length, text.size()));
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  result.loss = sum / static_cast<double>(result.tokens);
  return result;
}

}  // namespace cairn
