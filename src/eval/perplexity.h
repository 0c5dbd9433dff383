// How well a model predicts a text that is read through a session: perplexity with the session's settings.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "infer/session.h"

namespace cairn {

struct PerplexityOptions {
  size_t length = 0;      // tokens of a window, each read by a fresh session; 0: one window
  size_t max_tokens = 0;  // of the text; 0: all
  int32_t bos = -1;       // put before every window and not counted; -1: none, and the first token is not scored
};

struct PerplexityResult {
  double loss = 0;  // mean negative log-probability of a token, natural
  size_t tokens = 0;
  size_t windows = 0;
  double seconds = 0;
  size_t blocks_read = 0;
  size_t blocks_chosen = 0;  // reads there would have been without the context-miss token
  size_t memory_bytes = 0;   // at the end of the last window
  RetrievalAudit audit;

  double perplexity() const;
};

// `progress`, when given, is told the tokens read so far. A token whose logits are not finite makes the loss NaN.
PerplexityResult MeasurePerplexity(const std::shared_ptr<const InferenceModel>& model, const SessionOptions& settings,
                                   const PerplexityOptions& options, std::span<const int32_t> text,
                                   const std::function<void(size_t tokens)>& progress = nullptr);

}  // namespace cairn
