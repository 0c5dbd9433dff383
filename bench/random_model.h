// Models of random weights in the shape of known ones, for benchmarks: speed does not depend on what weights say.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "formats/model_source.h"

namespace cairn {

// "1.1B" (TinyLlama: 22 layers, width 2048, 32 heads, 4 KV heads), "110M", "15M" (the llama2.c models). Weights are
// q8_0. Throws Error for other names. Has a vocabulary, so that other programs load it too.
std::shared_ptr<const ModelSource> MakeRandomModel(const std::string& shape);
std::vector<std::string> RandomModelShapes();

// The same weights with landmark attention: the last token of the vocabulary serves as landmark. For measuring models
// that have none; what they write means nothing.
std::shared_ptr<const ModelSource> LendLandmark(std::shared_ptr<const ModelSource> source, size_t block_length);

}  // namespace cairn
