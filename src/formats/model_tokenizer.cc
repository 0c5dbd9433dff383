#include "formats/model_tokenizer.h"

#include <fstream>
#include <unordered_map>

#include "base/error.h"
#include "tokenizer/utf8.h"

namespace cairn {

namespace {

namespace fs = std::filesystem;

// Rows of the embeddings are padded to multiples of this at most; a tokenizer found beside a llama2.c file that is
// smaller by more belongs to another model.
constexpr size_t kMostPadding = 256;

std::optional<int32_t> IdOf(std::optional<int64_t> id, size_t count, const char* what, const std::string& origin) {
  if (!id) return std::nullopt;
  if (*id < 0 || static_cast<uint64_t>(*id) >= count) {
    Fail("'{}': the id {} of the {} token is outside the vocabulary of {}", origin, *id, what, count);
  }
  return static_cast<int32_t>(*id);
}

// Where the file does not say them: bytes by their spelling, special tokens by their ids.
std::vector<TokenType> GuessTypes(const VocabularySpec& spec) {
  std::vector<TokenType> types(spec.pieces.size(), TokenType::kNormal);
  for (size_t i = 0; i < types.size(); ++i) {
    if (spec.kind == VocabularyKind::kSentencePieceBpe && ParseBytePiece(spec.pieces[i])) types[i] = TokenType::kByte;
  }
  for (const auto id : {spec.bos, spec.eos}) {
    if (id) types[static_cast<size_t>(*id)] = TokenType::kControl;
  }
  if (spec.unknown) types[static_cast<size_t>(*spec.unknown)] = TokenType::kUnknown;
  return types;
}

// GGUF has no merges for SentencePiece vocabularies: a piece's score is the rank of the merges that make it. The same
// encodings come out when these stand together in the list, as in every file converted from SentencePiece.
std::vector<float> ScoresFromMerges(const VocabularySpec& spec) {
  std::unordered_map<std::string, float> score;
  std::string last;
  for (const auto& [left, right] : spec.merges) {
    const std::string piece = left + right;
    if (piece != last && !score.emplace(piece, -static_cast<float>(score.size())).second) {
      Fail("'{}': the merges that make '{}' do not stand together, which GGUF cannot say", spec.origin, piece);
    }
    last = piece;
  }
  std::vector<float> scores;
  for (size_t i = 0; i < spec.pieces.size(); ++i) {
    const auto found = score.find(spec.pieces[i]);
    const bool normal = spec.types[i] == TokenType::kNormal;
    scores.push_back(found != score.end() ? found->second : normal ? -static_cast<float>(score.size()) : 0.0f);
  }
  return scores;
}

std::string PreTokenizerName(const VocabularySpec& spec) {
  for (const char* name : {"llama-bpe", "gpt-2", "qwen2", "smollm"}) {
    const bool takes_whole_words = std::string_view(name) == "llama-bpe";
    if (SplitPatternsOf(name) == spec.split_patterns && spec.ignore_merges == takes_whole_words) return name;
  }
  // Llama 3's pattern with merges as listed.
  if (!spec.ignore_merges && SplitPatternsOf("dbrx") == spec.split_patterns) return "dbrx";
  Fail("'{}': GGUF has no name for the way in which this tokenizer splits words", spec.origin);
}

void CheckSize(const Tokenizer& tokenizer, const ModelSource& model) {
  if (tokenizer.vocab_size() <= model.config().vocab_size) return;
  Fail("'{}' has {} tokens, but the model '{}' only {}; it belongs to another model", tokenizer.spec().origin,
       tokenizer.vocab_size(), model.name(), model.config().vocab_size);
}

std::shared_ptr<const Tokenizer> FindBesideLlama2c(const ModelSource& model, const fs::path& path) {
  const size_t wanted = model.config().vocab_size;
  std::string unfit;
  std::string names;
  for (const fs::path& file :
       {Llama2cTokenizerPath(path), path.parent_path() / "tokenizer.bin", path.parent_path() / "tokenizer.model"}) {
    names += (names.empty() ? "'" : ", '") + file.string() + "'";
    if (!fs::is_regular_file(file)) continue;
    auto tokenizer = LoadTokenizer(file);
    const size_t size = tokenizer->vocab_size();
    if (size <= wanted && size + kMostPadding > wanted) return tokenizer;
    unfit += fmt::format("; '{}' has {} tokens and belongs to another model", file.string(), size);
  }
  Fail("'{}' has no tokenizer for its {} tokens: looked for {}{}", path.string(), wanted, names, unfit);
}

}  // namespace

VocabularySpec SpecFromGguf(const GgufVocabulary& vocabulary, const std::string& origin) {
  VocabularySpec spec;
  spec.origin = origin;
  spec.pieces = vocabulary.tokens;
  const size_t count = spec.pieces.size();
  spec.bos = IdOf(vocabulary.bos_id, count, "bos", origin);
  spec.eos = IdOf(vocabulary.eos_id, count, "eos", origin);
  spec.unknown = IdOf(vocabulary.unknown_id, count, "unknown", origin);
  if (vocabulary.model == "llama") {
    if (vocabulary.scores.size() != count)
      Fail("'{}': the vocabulary has no scores, so text cannot be encoded", origin);
    spec.kind = VocabularyKind::kSentencePieceBpe;
    spec.scores = vocabulary.scores;
    spec.add_dummy_prefix = vocabulary.add_space_prefix.value_or(true);
  } else if (vocabulary.model == "gpt2") {
    spec.kind = VocabularyKind::kByteLevelBpe;
    spec.add_dummy_prefix = false;
    spec.split_patterns = SplitPatternsOf(vocabulary.pre);
    spec.ignore_merges = vocabulary.pre == "llama-bpe" || vocabulary.pre == "llama3" || vocabulary.pre == "llama-v3";
    for (const std::string& merge : vocabulary.merges) {
      const size_t space = merge.find(' ', 1);
      if (space == std::string::npos || space + 1 == merge.size()) {
        Fail("'{}': the merge '{}' names no pair", origin, merge);
      }
      spec.merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
    }
  } else {
    Fail("'{}': vocabularies of kind '{}' are not read; known are 'llama' and 'gpt2'", origin, vocabulary.model);
  }
  if (vocabulary.types.empty()) {
    spec.types = GuessTypes(spec);
  } else {
    for (const int32_t type : vocabulary.types) {
      // 0 is "undefined", which some writers leave for ordinary tokens.
      if (type < 0 || type > kGgufTokenByte) Fail("'{}': a token has the type {}, which does not exist", origin, type);
      spec.types.push_back(type == 0 ? TokenType::kNormal : static_cast<TokenType>(type));
    }
  }
  for (size_t i = 0; i < spec.types.size() && !spec.unknown; ++i) {
    if (spec.types[i] == TokenType::kUnknown) spec.unknown = static_cast<int32_t>(i);
  }
  return spec;
}

GgufVocabulary GgufFromSpec(const VocabularySpec& spec) {
  GgufVocabulary result;
  switch (spec.kind) {
    case VocabularyKind::kSentencePieceBpe:
      result.model = "llama";
      result.pre = "default";
      result.scores = spec.merges.empty() ? spec.scores : ScoresFromMerges(spec);
      result.add_space_prefix = spec.add_dummy_prefix;
      break;
    case VocabularyKind::kByteLevelBpe:
      result.model = "gpt2";
      result.pre = PreTokenizerName(spec);
      for (const auto& [left, right] : spec.merges) result.merges.push_back(left + " " + right);
      break;
    case VocabularyKind::kSentencePieceOther:
      Fail("'{}': a SentencePiece vocabulary that is not plain BPE cannot be written to GGUF", spec.origin);
  }
  result.tokens = spec.pieces;
  for (size_t i = 0; i < spec.types.size(); ++i) {
    result.types.push_back(static_cast<int32_t>(spec.types[i]));
    // Holes have no spelling, and readers want each token to have its own.
    if (spec.types[i] == TokenType::kUnused && spec.pieces[i].empty()) result.tokens[i] = fmt::format("<unused-{}>", i);
  }
  result.bos_id = spec.bos;
  result.eos_id = spec.eos;
  result.unknown_id = spec.unknown;
  result.add_bos = spec.bos.has_value();
  result.add_eos = false;
  return result;
}

fs::path Llama2cTokenizerPath(const fs::path& model) {
  fs::path path = model;
  return path.replace_extension(".tokenizer.bin");
}

std::shared_ptr<const Tokenizer> LoadModelTokenizer(const ModelSource& model, const fs::path& path) {
  std::shared_ptr<const Tokenizer> tokenizer;
  if (model.format() == ModelFormat::kLlama2c) {
    tokenizer = FindBesideLlama2c(model, path);
  } else if (model.format() == ModelFormat::kGguf) {
    if (!model.vocabulary()) Fail("'{}' has no vocabulary inside (tokenizer.ggml.tokens)", path.string());
    tokenizer = MakeTokenizer(SpecFromGguf(*model.vocabulary(), path.string()));
  } else {
    tokenizer = LoadTokenizer(path);
  }
  CheckSize(*tokenizer, model);
  return tokenizer;
}

std::shared_ptr<const Tokenizer> LoadModelTokenizer(const fs::path& path) {
  return LoadModelTokenizer(*OpenModel(path), path);
}

std::shared_ptr<const Tokenizer> LoadTokenizerOrModel(const fs::path& path) {
  if (fs::is_regular_file(path)) {
    std::ifstream file(path, std::ios::binary);
    char magic[4] = {};
    file.read(magic, sizeof(magic));
    if (std::string_view(magic, sizeof(magic)) == "GGUF") return LoadModelTokenizer(path);
  }
  return LoadTokenizer(path);
}

}  // namespace cairn
