// The vocabulary that a GGUF file carries, as plain values for the tokenizer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cairn {

// A metadata value in its encoded form, kept so that writing the model again loses nothing.
struct GgufRawValue {
  std::string key;
  uint32_t type = 0;    // GGUF value type
  std::string encoded;  // the bytes after the type

  bool operator==(const GgufRawValue&) const = default;
};

// Values are as stored; nothing here promises that ids are inside the vocabulary or that the text is UTF-8.
struct GgufVocabulary {
  std::string model;                // tokenizer.ggml.model: "llama" (SentencePiece), "gpt2" (byte-level BPE), ...
  std::string pre;                  // tokenizer.ggml.pre: the pre-tokenizer of "gpt2"; may be empty
  std::vector<std::string> tokens;  // by id
  std::vector<float> scores;        // by id, or empty
  std::vector<int32_t> types;       // by id, or empty; see GgufTokenType
  std::vector<std::string> merges;  // "a b", best first; may be empty
  std::optional<int64_t> bos_id;
  std::optional<int64_t> eos_id;
  std::optional<int64_t> unknown_id;
  std::optional<bool> add_bos;
  std::optional<bool> add_eos;
  std::optional<bool> add_space_prefix;
  std::string chat_template;        // may be empty
  std::vector<GgufRawValue> other;  // every other tokenizer.* value

  bool operator==(const GgufVocabulary&) const = default;
};

enum GgufTokenType : int32_t {
  kGgufTokenNormal = 1,
  kGgufTokenUnknown = 2,
  kGgufTokenControl = 3,
  kGgufTokenUserDefined = 4,
  kGgufTokenUnused = 5,
  kGgufTokenByte = 6,
};

}  // namespace cairn
