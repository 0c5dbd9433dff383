// A pretrained model becomes the start of a run: its weights in the trainer's layout, and room in its vocabulary for
// the landmark and the context-miss token.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "formats/model_source.h"
#include "model/parameters.h"
#include "tokenizer/tokenizer.h"

namespace cairn {

struct GrownModel {
  ModelConfig config;               // half layout
  std::vector<int64_t> new_tokens;  // whose embeddings LoadWeights makes
  std::shared_ptr<const Tokenizer> tokenizer;
};

// What `base` is to be after `landmark` (JSON text of a landmark section, ids may be missing) was put into it. A model
// that has a landmark keeps it. Without a section the model stays what it is. Throws Error when the tokenizer and the
// vocabulary do not fit.
GrownModel GrowModel(const ModelSource& base, std::shared_ptr<const Tokenizer> tokenizer,
                     const std::optional<std::string>& landmark, const std::string& name);

// Throws Error unless `config` differs from the base in its vocabulary and landmark section only; `name` in messages.
void CheckSameArchitecture(const ModelSource& base, const ModelConfig& config, const std::string& name);

// The base's weights in the half layout. The embeddings (input and output) of `new_tokens` become the mean of all
// others, that of a context-miss token the landmark's.
void LoadWeights(const ModelSource& base, const ModelConfig& config, const std::vector<int64_t>& new_tokens,
                 Parameters& weights);

// A copy of the weights as a model to write.
std::shared_ptr<const ModelSource> SourceOf(const ModelConfig& config, const Parameters& weights);

}  // namespace cairn
