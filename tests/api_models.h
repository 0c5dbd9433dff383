// Tiny random models with a tokenizer, written to disk for the tests of the public interface.
#pragma once

#include <filesystem>
#include <string>

#include "formats/huggingface.h"
#include "model_makers.h"
#include "tokenizer/tokenizer.h"

namespace cairn {

// <unk>, <s>, </s>, 256 bytes, some pieces and the landmark.
inline std::shared_ptr<const Tokenizer> ApiTokenizer() {
  VocabularySpec spec;
  const auto add = [&](const std::string& piece, TokenType type) {
    spec.pieces.push_back(piece);
    spec.types.push_back(type);
    spec.scores.push_back(-static_cast<float>(spec.pieces.size()));
  };
  add("<unk>", TokenType::kUnknown);
  add("<s>", TokenType::kControl);
  add("</s>", TokenType::kControl);
  for (int byte = 0; byte < 256; ++byte) add(fmt::format("<0x{:02X}>", byte), TokenType::kByte);
  for (const char* piece : {"\xe2\x96\x81", "a", "b", "e", "h", "t", "th", "the"}) add(piece, TokenType::kNormal);
  add("<landmark>", TokenType::kControl);
  spec.unknown = 0;
  spec.bos = 1;
  spec.eos = 2;
  spec.add_dummy_prefix = true;
  return MakeTokenizer(std::move(spec));
}

// The model's rows are padded: some tokens have no text.
inline ModelConfig ApiConfig() {
  ModelConfig config = TestConfig();
  config.vocab_size = 272;
  config.max_position_embeddings = 64;
  config.landmark.landmark_id = 267;
  return config;
}

// A Hugging Face directory that Model::Load reads.
inline void WriteApiModel(const std::filesystem::path& directory, const ModelConfig& config = ApiConfig()) {
  WriteHuggingFace(*RandomModel(config), directory, {});
  ApiTokenizer()->Save(directory);
}

inline std::string ApiText() {
  std::string text;
  for (int i = 0; i < 12; ++i) text += fmt::format("the {} bath, a tea at {} the heath. ", i, i * i);
  return text;
}

}  // namespace cairn
