#include "tokenizer/tokenizer.h"

#include <xxhash.h>

#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/error.h"
#include "io/file.h"
#include "tokenizer/byte_bpe.h"
#include "tokenizer/llama2c_vocabulary.h"
#include "tokenizer/score_bpe.h"
#include "tokenizer/sentencepiece_library.h"
#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/utf8.h"

namespace cairn {

namespace {

// No vocabulary file is near this; a larger one is of another kind.
constexpr size_t kMaxFile = size_t{256} << 20;

void CheckSpec(const VocabularySpec& spec) {
  const size_t n = spec.pieces.size();
  if (n == 0) Fail("'{}': the vocabulary is empty", spec.origin);
  if (n > (size_t{1} << 24)) Fail("'{}': {} tokens are more than any vocabulary has", spec.origin, n);
  if (spec.types.size() != n)
    Fail("'{}': the vocabulary has {} pieces but {} token types", spec.origin, n, spec.types.size());
  for (size_t i = 0; i < n; ++i) {
    if (spec.types[i] < TokenType::kNormal || spec.types[i] > TokenType::kByte) {
      Fail("'{}': token {} has type {}, which does not exist", spec.origin, i, static_cast<int>(spec.types[i]));
    }
  }
  const auto check = [&](std::optional<int32_t> id, const char* name) {
    if (id && (*id < 0 || static_cast<size_t>(*id) >= n)) {
      Fail("'{}': the id {} of {} is outside the vocabulary of {}", spec.origin, *id, name, n);
    }
  };
  check(spec.bos, "bos");
  check(spec.eos, "eos");
  check(spec.unknown, "the unknown token");
  check(spec.landmark, "the landmark");
  if (spec.landmark && spec.types[static_cast<size_t>(*spec.landmark)] != TokenType::kControl) {
    Fail("'{}': the landmark must be a control token, which text cannot produce", spec.origin);
  }
}

// A control token of the landmark's name is the landmark.
void FindLandmark(VocabularySpec& spec) {
  for (size_t i = 0; i < spec.pieces.size() && !spec.landmark; ++i) {
    if (spec.types[i] == TokenType::kControl && spec.pieces[i] == kLandmarkPiece)
      spec.landmark = static_cast<int32_t>(i);
  }
}

std::filesystem::path FindTokenizerFile(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) return path;
  for (const char* name : {"tokenizer.model", "tokenizer.json", "tokenizer.bin"}) {
    if (std::filesystem::exists(path / name)) return path / name;
  }
  Fail("'{}' has no tokenizer.model, tokenizer.json or tokenizer.bin; name the tokenizer's file", path.string());
}

}  // namespace

std::vector<int32_t> Tokenizer::Encode(std::string_view text) const {
  std::vector<int32_t> ids;
  Append(text, true, ids);
  return ids;
}

std::vector<int32_t> Tokenizer::EncodeMiddle(std::string_view text) const {
  std::vector<int32_t> ids;
  Append(text, false, ids);
  return ids;
}

std::string Tokenizer::Decode(std::span<const int32_t> ids) const {
  std::string text = DecodeMiddle(ids);
  if (HasDummyPrefix() && !text.empty() && text[0] == ' ') text.erase(0, 1);
  return text;
}

std::string Tokenizer::DecodeMiddle(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) text += TokenBytes(id);
  return text;
}

const std::string& Tokenizer::Piece(int32_t id) const {
  CheckId(id);
  return spec_.pieces[static_cast<size_t>(id)];
}

std::optional<int32_t> Tokenizer::FindPiece(std::string_view piece) const {
  for (size_t i = 0; i < spec_.pieces.size(); ++i) {
    if (spec_.pieces[i] == piece) return static_cast<int32_t>(i);
  }
  return std::nullopt;
}

void Tokenizer::CheckId(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= vocab_size()) {
    Fail("token id {} is outside the vocabulary of {} tokens ('{}')", id, vocab_size(), spec_.origin);
  }
}

std::string Tokenizer::fingerprint() const {
  // Hashes a text that says everything encoding depends on. Control tokens count only by their place.
  std::string all(NameOf(kind()));
  const auto put = [&](std::string_view text) { all.append(fmt::format("{}:", text.size())).append(text); };
  const bool rank_by_score = spec_.merges.empty() && !spec_.scores.empty();
  for (size_t i = 0; i < spec_.pieces.size(); ++i) {
    if (spec_.landmark && i == static_cast<size_t>(*spec_.landmark) && i + 1 == spec_.pieces.size()) continue;
    const TokenType type = spec_.types[i];
    all.push_back(static_cast<char>(type));
    const bool produced = type == TokenType::kNormal || type == TokenType::kUserDefined || type == TokenType::kByte;
    if (!produced) continue;
    put(TokenBytes(static_cast<int32_t>(i)));
    if (rank_by_score && type == TokenType::kNormal)
      all.append(reinterpret_cast<const char*>(&spec_.scores[i]), sizeof(float));
  }
  for (const auto& [left, right] : spec_.merges) put(left), put(right);
  for (const std::string& pattern : spec_.split_patterns) put(pattern);
  all.push_back(spec_.kind != VocabularyKind::kByteLevelBpe && spec_.add_dummy_prefix ? 'p' : '-');
  all.push_back(spec_.ignore_merges ? 'i' : '-');
  return fmt::format("{:016x}", static_cast<uint64_t>(XXH3_64bits(all.data(), all.size())));
}

void Tokenizer::Save(const std::filesystem::path& directory) const {
  nlohmann::ordered_json config;
  const auto name = [&](std::optional<int32_t> id) -> nlohmann::ordered_json {
    return id ? nlohmann::ordered_json(Piece(*id)) : nlohmann::ordered_json(nullptr);
  };
  if (BelongsInJson(spec_)) {
    WriteFileAtomically(directory / "tokenizer.json", WriteTokenizerJson(spec_));
    config["tokenizer_class"] = "PreTrainedTokenizerFast";
  } else {
    WriteFileAtomically(directory / "tokenizer.model", WriteSentencePieceModel(spec_));
    config["tokenizer_class"] = "LlamaTokenizer";
    config["add_bos_token"] = spec_.bos.has_value();
    config["add_eos_token"] = false;
    config["unk_token"] = name(spec_.unknown);
  }
  config["bos_token"] = name(spec_.bos);
  config["eos_token"] = name(spec_.eos);
  config["clean_up_tokenization_spaces"] = false;
  if (spec_.landmark) config["landmark_token_id"] = *spec_.landmark;
  WriteFileAtomically(directory / "tokenizer_config.json",
                      config.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

std::shared_ptr<const Tokenizer> MakeTokenizer(VocabularySpec spec) {
  CheckSpec(spec);
  FindLandmark(spec);
  switch (spec.kind) {
    case VocabularyKind::kSentencePieceBpe:
      return std::make_shared<ScoreBpe>(std::move(spec));
    case VocabularyKind::kByteLevelBpe:
      return std::make_shared<ByteBpe>(std::move(spec));
    case VocabularyKind::kSentencePieceOther:
      return std::make_shared<SentencePieceLibrary>(std::move(spec));
  }
  CAIRN_CHECK(false, "unknown kind of vocabulary");
}

std::shared_ptr<const Tokenizer> ParseTokenizer(std::string bytes, const std::filesystem::path& path) {
  const std::string name = path.string();
  if (bytes.empty()) Fail("'{}' is empty; it should be a tokenizer", name);
  if (LooksLikeTokenizerJson(bytes)) return MakeTokenizer(ReadTokenizerJson(std::move(bytes), path));
  if (LooksLikeSentencePieceModel(bytes)) return MakeTokenizer(ReadSentencePieceModel(std::move(bytes), name));
  return MakeTokenizer(ReadLlama2cVocabulary(bytes, name));
}

std::shared_ptr<const Tokenizer> LoadTokenizer(const std::filesystem::path& path) {
  const auto file = FindTokenizerFile(path);
  return ParseTokenizer(ReadTextFile(file, kMaxFile), file);
}

std::shared_ptr<const Tokenizer> WithLandmark(const std::shared_ptr<const Tokenizer>& tokenizer) {
  if (tokenizer->landmark()) return tokenizer;
  VocabularySpec spec = tokenizer->spec();
  if (tokenizer->FindPiece(kLandmarkPiece)) {
    Fail("'{}' has an ordinary token spelt {}, which text can produce; the landmark cannot be added", spec.origin,
         kLandmarkPiece);
  }
  spec.landmark = static_cast<int32_t>(spec.pieces.size());
  spec.pieces.emplace_back(kLandmarkPiece);
  spec.types.push_back(TokenType::kControl);
  if (!spec.scores.empty()) spec.scores.push_back(0.0f);
  if (!spec.source.empty()) {
    spec.source = BelongsInJson(spec) ? AddTokenToJson(spec.source, kLandmarkPiece, *spec.landmark)
                                      : AppendControlPiece(spec.source, kLandmarkPiece);
  }
  return MakeTokenizer(std::move(spec));
}

const char* NameOf(VocabularyKind kind) {
  switch (kind) {
    case VocabularyKind::kSentencePieceBpe:
      return "sentencepiece-bpe";
    case VocabularyKind::kByteLevelBpe:
      return "byte-level-bpe";
    case VocabularyKind::kSentencePieceOther:
      return "sentencepiece";
  }
  return "unknown";
}

}  // namespace cairn
