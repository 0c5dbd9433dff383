// Perplexity of Transformer-XL models, through the training engine: sessions have no such attention.
#pragma once

#include <functional>
#include <span>

#include "eval/perplexity.h"
#include "formats/model_source.h"

namespace cairn {

// Each window of options.length tokens is a row whose segments of `segment` tokens see the `cache` tokens before them.
// Scores the tokens that MeasurePerplexity scores. Throws Error unless the model was trained so.
PerplexityResult MeasureXlPerplexity(const ModelSource& model, size_t segment, size_t cache,
                                     const PerplexityOptions& options, std::span<const int32_t> text,
                                     const std::function<void(size_t tokens)>& progress = nullptr);

}  // namespace cairn
