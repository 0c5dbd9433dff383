// What a loaded model of the public interface holds.
#pragma once

#include <cairn/cairn.hpp>
#include <memory>

#include "infer/inference_model.h"
#include "tokenizer/tokenizer.h"

namespace cairn::api {

// Immutable; shared by the model and its sessions.
struct Model::Impl {
  std::shared_ptr<const InferenceModel> model;
  std::shared_ptr<const Tokenizer> tokenizer;
  ModelInfo info;

  // Tokens of the model that the tokenizer does not know have no text. Throws Error for ids that the model lacks too.
  std::string TextOf(std::span<const int32_t> tokens, bool begins) const;
};

}  // namespace cairn::api
