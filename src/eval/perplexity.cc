#include "eval/perplexity.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "kernels/elementwise.h"

namespace cairn {

namespace {

double NegativeLogProbability(std::span<const float> logits, int32_t id) {
  double loss = 0;
  // With scale 0 the logits are only read.
  RunCrossEntropy({1, logits.size()}, const_cast<float*>(logits.data()), &id, 0.0f, &loss);
  return loss;
}

}  // namespace

double PerplexityResult::perplexity() const { return std::exp(loss); }

PerplexityResult MeasurePerplexity(const std::shared_ptr<const InferenceModel>& model, const SessionOptions& settings,
                                   const PerplexityOptions& options, std::span<const int32_t> text,
                                   const std::function<void(size_t tokens)>& progress) {
  if (options.max_tokens != 0) text = text.first(std::min(text.size(), options.max_tokens));
  const size_t length = options.length != 0 ? options.length : text.size();
  if (text.size() < 2) Fail("the text has {} tokens; at least 2 are needed", text.size());
  PerplexityResult result;
  const auto begin = std::chrono::steady_clock::now();
  double sum = 0;
  Session session(model, settings);
  for (size_t first = 0; first < text.size(); first += length) {
    const std::span<const int32_t> window = text.subspan(first, std::min(length, text.size() - first));
    std::vector<int32_t> ids(window.begin(), window.end());
    if (options.bos >= 0) ids.insert(ids.begin(), options.bos);
    if (ids.size() < 2) continue;  // a rest of one token has nothing to predict
    session.Reset();
    const size_t piece = std::max<size_t>(1, session.options().chunk_length);
    for (size_t done = 0; done < ids.size(); done += piece) {
      const size_t count = std::min(piece, ids.size() - done);
      session.Append(std::span(ids).subspan(done, count), [&](size_t token, std::span<const float> logits) {
        if (token + 1 >= ids.size()) return;
        sum += NegativeLogProbability(logits, ids[token + 1]);
        ++result.tokens;
      });
      if (progress) progress(first + std::min(done + count, window.size()));
    }
    const Session::Counters counters = session.counters();
    result.blocks_read += counters.blocks_read;
    result.blocks_chosen += counters.blocks_chosen;
    result.memory_bytes = counters.memory_bytes;
    result.audit.Add(counters.audit);
    ++result.windows;
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  result.loss = sum / static_cast<double>(result.tokens);
  return result;
}

}  // namespace cairn
