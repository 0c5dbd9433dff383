#include "tokenizer/tokenizer_json.h"

#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/file.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/utf8.h"

namespace cairn {

namespace {

// Keys are sorted: an object that keeps their order searches it for each key, which vocabularies are too large for.
using Json = nlohmann::json;

// Ids beyond the number of tokens leave holes; more of them than this is damage.
constexpr size_t kMaxHoles = 65536;
constexpr int kMaxDepth = 32;

Json ParseJson(std::string_view text, const std::string& name) {
  try {
    return Json::parse(text, [&](int depth, Json::parse_event_t, Json&) {
      if (depth > kMaxDepth) Fail("'{}' is nested more than {} deep; it is not a tokenizer", name, kMaxDepth);
      return true;
    });
  } catch (const nlohmann::json::exception& error) {
    Fail("'{}' is not valid JSON: {}", name, error.what());
  }
}

// The member of an object, or null.
const Json& Member(const Json& object, const char* key) {
  static const Json null;
  if (!object.is_object()) return null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}
std::string Text(const Json& object, const char* key) {
  const Json& value = Member(object, key);
  return value.is_string() ? value.get<std::string>() : "";
}
bool Flag(const Json& object, const char* key, bool otherwise) {
  const Json& value = Member(object, key);
  return value.is_boolean() ? value.get<bool>() : otherwise;
}

class Reader {
 public:
  Reader(const Json& json, VocabularySpec& spec) : json_(json), model_(Member(json, "model")), spec_(spec) {}

  void Read() {
    if (!model_.is_object()) Fail("'{}' has no \"model\"; it is not a Hugging Face tokenizer", spec_.origin);
    const std::string type = Text(model_, "type");
    if (!type.empty() && type != "BPE") Fail("'{}' is of kind {}; only BPE is read", spec_.origin, type);
    ReadPieces();
    ReadMerges();
    if (IsByteLevel(Member(json_, "pre_tokenizer")) || IsByteLevel(Member(json_, "decoder"))) {
      ReadByteLevel();
    } else if (Flag(model_, "byte_fallback", false)) {
      ReadSentencePieceKind();
    } else {
      Fail("'{}' is neither byte-level BPE nor BPE with byte fallback; other kinds are not read", spec_.origin);
    }
    MarkTypes();
  }

 private:
  static bool IsByteLevel(const Json& part) {
    if (Text(part, "type") == "ByteLevel") return true;
    for (const char* list : {"pretokenizers", "decoders"}) {
      for (const Json& inner : Member(part, list)) {
        if (Text(inner, "type") == "ByteLevel") return true;
      }
    }
    return false;
  }

  size_t IdOf(const Json& value, const std::string& piece, size_t count) const {
    if (!value.is_number_unsigned() || value.get<uint64_t>() >= count + kMaxHoles) {
      Fail("'{}': the id of '{}' is {}, which is impossible with {} tokens", spec_.origin, piece, value.dump(), count);
    }
    return value.get<uint64_t>();
  }

  void Put(size_t id, const std::string& piece, TokenType type) {
    if (id >= spec_.pieces.size()) {
      spec_.pieces.resize(id + 1);
      spec_.types.resize(id + 1, TokenType::kUnused);
    }
    if (spec_.types[id] != TokenType::kUnused && spec_.pieces[id] != piece) {
      Fail("'{}': the id {} belongs to '{}' and to '{}'", spec_.origin, id, spec_.pieces[id], piece);
    }
    spec_.pieces[id] = piece;
    spec_.types[id] = type;
  }

  void ReadPieces() {
    const Json& vocab = Member(model_, "vocab");
    const Json& added = Member(json_, "added_tokens");
    if (!vocab.is_object() || vocab.empty()) Fail("'{}': the model has no \"vocab\"", spec_.origin);
    if (!added.is_null() && !added.is_array()) Fail("'{}': \"added_tokens\" is not a list", spec_.origin);
    const size_t count = vocab.size() + added.size();
    for (const auto& [piece, id] : vocab.items()) Put(IdOf(id, piece, count), piece, TokenType::kNormal);
    for (const Json& token : added) {
      const std::string piece = Text(token, "content");
      if (piece.empty()) Fail("'{}': an added token has no \"content\"", spec_.origin);
      Put(IdOf(Member(token, "id"), piece, count), piece,
          Flag(token, "special", false) ? TokenType::kControl : TokenType::kUserDefined);
    }
  }

  void ReadMerges() {
    const Json& merges = Member(model_, "merges");
    if (!merges.is_array()) Fail("'{}': the model has no list of \"merges\"", spec_.origin);
    spec_.merges.reserve(merges.size());
    for (const Json& merge : merges) {
      if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        spec_.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
      } else if (merge.is_string()) {
        const std::string text = merge.get<std::string>();
        const size_t space = text.find(' ');
        if (space == std::string::npos) Fail("'{}': the merge '{}' names no pair", spec_.origin, text);
        spec_.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
      } else {
        Fail("'{}': merge {} is not a pair of pieces", spec_.origin, spec_.merges.size());
      }
    }
  }

  void CheckNormalizer(const Json& normalizer) const {
    const std::string type = Text(normalizer, "type");
    if (normalizer.is_null() || type == "NFC") return;
    if (type == "Sequence") {
      for (const Json& inner : Member(normalizer, "normalizers")) CheckNormalizer(inner);
      return;
    }
    Fail("'{}': the normaliser '{}' is not supported; it would change the text", spec_.origin, type);
  }

  void ReadByteLevel() {
    spec_.kind = VocabularyKind::kByteLevelBpe;
    spec_.add_dummy_prefix = false;
    spec_.ignore_merges = Flag(model_, "ignore_merges", false);
    CheckNormalizer(Member(json_, "normalizer"));
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (!Text(model_, key).empty()) Fail("'{}': {} is not supported", spec_.origin, key);
    }
    const Json& pre = Member(json_, "pre_tokenizer");
    if (Text(pre, "type") == "Sequence") {
      for (const Json& part : Member(pre, "pretokenizers")) ReadSplit(part);
    } else if (!pre.is_null()) {
      ReadSplit(pre);
    }
  }

  void ReadSplit(const Json& part) {
    const std::string type = Text(part, "type");
    if (type == "ByteLevel") {
      if (Flag(part, "add_prefix_space", false)) Fail("'{}': add_prefix_space is not supported", spec_.origin);
      if (Flag(part, "use_regex", true)) spec_.split_patterns.emplace_back(kGpt2Pattern);
    } else if (type == "Digits") {
      spec_.split_patterns.emplace_back(Flag(part, "individual_digits", false) ? kSingleDigitPattern : kDigitsPattern);
    } else if (type == "Split") {
      // "Removed" with "invert" keeps the matches; as these patterns match everything, it is the same as "Isolated".
      const std::string behavior = Text(part, "behavior");
      const bool invert = Flag(part, "invert", false);
      const std::string pattern = Text(Member(part, "pattern"), "Regex");
      if (pattern.empty() || !((behavior == "Isolated" && !invert) || (behavior == "Removed" && invert))) {
        Fail("'{}': a Split that is not an isolated regular expression is not supported", spec_.origin);
      }
      spec_.split_patterns.push_back(pattern);
    } else {
      Fail("'{}': the pre-tokenizer '{}' is not supported", spec_.origin, type);
    }
  }

  void ReadSentencePieceKind() {
    spec_.kind = VocabularyKind::kSentencePieceBpe;
    spec_.add_dummy_prefix = false;
    bool replaces_spaces = false;
    const auto normalizer = [&](const Json& part) {
      const std::string type = Text(part, "type");
      if (type == "Prepend" && Text(part, "prepend") == kSpaceSymbol) {
        spec_.add_dummy_prefix = true;
      } else if (type == "Replace" && Text(Member(part, "pattern"), "String") == " " &&
                 Text(part, "content") == kSpaceSymbol) {
        replaces_spaces = true;
      } else if (!part.is_null()) {
        Fail("'{}': the normaliser '{}' is not supported", spec_.origin, type);
      }
    };
    const Json& all = Member(json_, "normalizer");
    if (Text(all, "type") == "Sequence") {
      for (const Json& part : Member(all, "normalizers")) normalizer(part);
    } else {
      normalizer(all);
    }
    const Json& pre = Member(json_, "pre_tokenizer");
    if (Text(pre, "type") == "Metaspace" && !Flag(pre, "split", true)) {
      replaces_spaces = true;
      const std::string scheme = Text(pre, "prepend_scheme");
      spec_.add_dummy_prefix |= scheme.empty() ? Flag(pre, "add_prefix_space", true) : scheme != "never";
    } else if (!pre.is_null()) {
      Fail("'{}': the pre-tokenizer '{}' is not supported with byte fallback", spec_.origin, Text(pre, "type"));
    }
    if (!replaces_spaces) Fail("'{}' does not say how spaces are spelt (Replace or Metaspace)", spec_.origin);
    for (size_t i = 0; i < spec_.pieces.size(); ++i) {
      if (spec_.types[i] == TokenType::kNormal && ParseBytePiece(spec_.pieces[i])) spec_.types[i] = TokenType::kByte;
    }
  }

  void MarkTypes() {
    const std::string unknown = Text(model_, "unk_token");
    for (size_t i = 0; i < spec_.pieces.size() && !unknown.empty(); ++i) {
      if (spec_.types[i] == TokenType::kUnused || spec_.pieces[i] != unknown) continue;
      spec_.types[i] = TokenType::kUnknown;
      spec_.unknown = static_cast<int32_t>(i);
      break;
    }
  }

  const Json& json_;
  const Json& model_;
  VocabularySpec& spec_;
};

// bos and eos by tokenizer_config.json beside the file, else by the names that are common.
void FindEnds(const std::filesystem::path& path, VocabularySpec& spec) {
  const auto find = [&](const std::string& piece) -> std::optional<int32_t> {
    for (size_t i = 0; i < spec.pieces.size(); ++i) {
      if (spec.types[i] == TokenType::kControl && spec.pieces[i] == piece) return static_cast<int32_t>(i);
    }
    return std::nullopt;
  };
  const auto config_path = path.parent_path() / "tokenizer_config.json";
  if (std::filesystem::exists(config_path)) {
    const Json config = ParseJson(ReadTextFile(config_path), config_path.string());
    const auto named = [&](const char* key) {
      const Json& value = Member(config, key);
      return find(value.is_object() ? Text(value, "content") : Text(config, key));
    };
    spec.bos = named("bos_token");
    spec.eos = named("eos_token");
    return;
  }
  for (const char* name : {"<|begin_of_text|>", "<s>", "<|endoftext|>"}) {
    if (!spec.bos) spec.bos = find(name);
  }
  for (const char* name : {"<|end_of_text|>", "</s>", "<|endoftext|>"}) {
    if (!spec.eos) spec.eos = find(name);
  }
}

Json AddedToken(std::string_view piece, int32_t id, bool special) {
  return {{"id", id},        {"content", piece},    {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

}  // namespace

bool LooksLikeTokenizerJson(std::string_view bytes) {
  const size_t first = bytes.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && bytes[first] == '{';
}

VocabularySpec ReadTokenizerJson(std::string text, const std::filesystem::path& path) {
  VocabularySpec spec;
  spec.origin = path.string();
  const Json json = ParseJson(text, spec.origin);
  Reader(json, spec).Read();
  FindEnds(path, spec);
  spec.source = std::move(text);
  return spec;
}

bool BelongsInJson(const VocabularySpec& spec) {
  return spec.kind == VocabularyKind::kByteLevelBpe || LooksLikeTokenizerJson(spec.source) ||
         (spec.kind == VocabularyKind::kSentencePieceBpe && !spec.merges.empty());
}

std::string WriteTokenizerJson(const VocabularySpec& spec) {
  if (!spec.source.empty()) return spec.source;
  CAIRN_CHECK(spec.kind == VocabularyKind::kByteLevelBpe, "only byte-level vocabularies are written anew");
  Json added = Json::array(), vocab = Json::object(), merges = Json::array();
  for (size_t i = 0; i < spec.pieces.size(); ++i) {
    const TokenType type = spec.types[i];
    const auto id = static_cast<int32_t>(i);
    if (type == TokenType::kNormal || type == TokenType::kByte || type == TokenType::kUnknown)
      vocab[spec.pieces[i]] = id;
    if (type == TokenType::kControl || type == TokenType::kUserDefined) {
      added.push_back(AddedToken(spec.pieces[i], id, type == TokenType::kControl));
    }
  }
  for (const auto& [left, right] : spec.merges) merges.push_back(left + " " + right);
  Json splits = Json::array();
  for (const std::string& pattern : spec.split_patterns) {
    splits.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
  }
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  splits.push_back(byte_level);
  Json file;
  file["version"] = "1.0";
  file["truncation"] = nullptr;
  file["padding"] = nullptr;
  file["added_tokens"] = std::move(added);
  file["normalizer"] = nullptr;
  file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", std::move(splits)}};
  file["post_processor"] = nullptr;
  file["decoder"] = byte_level;
  file["model"] = {{"type", "BPE"},
                   {"dropout", nullptr},
                   {"unk_token", nullptr},
                   {"continuing_subword_prefix", nullptr},
                   {"end_of_word_suffix", nullptr},
                   {"fuse_unk", false},
                   {"byte_fallback", false},
                   {"ignore_merges", spec.ignore_merges},
                   {"vocab", std::move(vocab)},
                   {"merges", std::move(merges)}};
  if (spec.unknown) file["model"]["unk_token"] = spec.pieces[static_cast<size_t>(*spec.unknown)];
  return file.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string AddTokenToJson(const std::string& text, std::string_view piece, int32_t id) {
  Json json = ParseJson(text, "tokenizer.json");
  if (!json.contains("added_tokens") || !json["added_tokens"].is_array()) json["added_tokens"] = Json::array();
  json["added_tokens"].push_back(AddedToken(piece, id, true));
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace cairn
