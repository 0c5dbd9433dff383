// Tiny data, tokenizer and configs for the tests of training runs.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/random.h"
#include "data/prepare.h"
#include "io/file.h"
#include "test_files.h"
#include "tokenizer/tokenizer.h"

namespace cairn {

// Special tokens, bytes and a few letters; no landmark: 3 + 256 + 7 tokens.
inline std::shared_ptr<const Tokenizer> TinyTokenizer() {
  VocabularySpec spec;
  spec.pieces = {"<unk>", "<s>", "</s>"};
  spec.types = {TokenType::kUnknown, TokenType::kControl, TokenType::kControl};
  for (int byte = 0; byte < 256; ++byte) spec.pieces.push_back(fmt::format("<0x{:02X}>", byte));
  spec.types.resize(spec.pieces.size(), TokenType::kByte);
  for (const char* piece : {"\xe2\x96\x81", "s", "t", "o", "n", "e", "st"}) spec.pieces.emplace_back(piece);
  spec.types.resize(spec.pieces.size(), TokenType::kNormal);
  for (size_t i = 0; i < spec.pieces.size(); ++i) spec.scores.push_back(-static_cast<float>(i));
  spec.unknown = 0, spec.bos = 1, spec.eos = 2;
  return MakeTokenizer(spec);
}

inline constexpr size_t kTinyVocab = 266;

// In `directory`: tokenizer.model (without landmark), landmark/tokenizer.model (with one), data/.
inline void MakeTinyData(const std::filesystem::path& directory) {
  const auto tokenizer = TinyTokenizer();
  tokenizer->Save(directory);
  std::filesystem::create_directories(directory / "landmark");
  WithLandmark(tokenizer)->Save(directory / "landmark");
  Random random(5);
  const char* words[] = {"stone", "nest", "one", "tone", "toes"};
  std::string text;
  for (size_t i = 0; i < 1500; ++i) text += std::string(words[random.Below(5)]) + (random.Below(9) == 0 ? "\n" : " ");
  WriteFileAtomically(directory / "text.txt", text);
  PrepareOptions prepare;
  prepare.inputs = {directory / "text.txt"};
  prepare.validation_fraction = 0.1;
  prepare.tokenizer = tokenizer;
  prepare.output = directory / "data";
  PrepareData(prepare);
}

// A run from scratch on that data: 12 steps, every step logged.
inline nlohmann::json TinyRun() {
  return nlohmann::json::parse(R"({
    "model": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": 2, "landmark": {"block_length": 7}},
    "tokenizer": "landmark", "data": {"train": "data", "validation": "data"}, "output": "run",
    "training": {"context_length": 36, "batch_rows": 4, "steps": 12, "learning_rate": 0.01, "warmup_steps": 2,
                 "weight_decay": 0.1, "validate_every": 5, "validation_batches": 2, "checkpoint_every": 4,
                 "log_every": 1, "seed": 3}})");
}

// The same as a tuning config: landmark beside, no model.
inline nlohmann::json TinyTuning() {
  nlohmann::json config = TinyRun();
  config["landmark"] = config["model"]["landmark"];
  config.erase("model");
  config["tokenizer"] = "tokenizer.model";
  return config;
}

// Losses of a log, exactly as written: "step 3 2.5", "validation 5 2.4".
inline std::vector<std::string> LossesOf(const std::filesystem::path& log) {
  std::vector<std::string> result;
  const std::string text = ReadTextFile(log);
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const auto record = nlohmann::json::parse(text.substr(begin, end - begin));
    if (record["type"] != "step" && record["type"] != "validation") continue;
    result.push_back(fmt::format("{} {} {}", record["type"].get<std::string>(), record["step"].get<uint64_t>(),
                                 record["loss"].dump()));
  }
  return result;
}

}  // namespace cairn
