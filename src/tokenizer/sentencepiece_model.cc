#include "tokenizer/sentencepiece_model.h"

#include <cstring>

#include "base/error.h"
#include "tokenizer/utf8.h"

namespace cairn {

namespace {

// Field numbers of sentencepiece_model.proto.
constexpr uint32_t kModelPieces = 1, kModelTrainer = 2, kModelNormalizer = 3, kModelDenormalizer = 5;
constexpr uint32_t kPieceText = 1, kPieceScore = 2, kPieceType = 3;
constexpr uint32_t kTrainerModelType = 3, kTrainerVocabSize = 4, kTrainerSuffix = 24, kTrainerByteFallback = 35;
constexpr uint32_t kTrainerUnkId = 40, kTrainerBosId = 41, kTrainerEosId = 42, kTrainerPadId = 43;
constexpr uint32_t kTrainerUnkPiece = 45, kTrainerBosPiece = 46, kTrainerEosPiece = 47;
constexpr uint32_t kNormalizerName = 1, kNormalizerMap = 2, kNormalizerPrefix = 3, kNormalizerExtra = 4,
                   kNormalizerEscape = 5;
constexpr uint64_t kModelTypeBpe = 2;

// One field of a message.
struct Field {
  uint32_t number;
  uint64_t value = 0;      // of a varint
  float real = 0;          // of a 32-bit value
  std::string_view bytes;  // of a string or a message
};

// Walks the fields of one message.
class MessageReader {
 public:
  MessageReader(std::string_view bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  bool Next(Field& field) {
    if (position_ == bytes_.size()) return false;
    const uint64_t tag = Varint();
    field = Field{static_cast<uint32_t>(tag >> 3), 0, 0, {}};
    if (tag >> 3 == 0 || tag >> 32 != 0) Damaged();
    switch (tag & 7) {
      case 0:
        field.value = Varint();
        break;
      case 1:
        Take(8);
        break;
      case 2:
        field.bytes = Take(Varint());
        break;
      case 5:
        std::memcpy(&field.real, Take(4).data(), 4);
        break;
      default:
        Damaged();
    }
    return true;
  }

 private:
  [[noreturn]] void Damaged() const {
    Fail("'{}' is not a sound SentencePiece model (byte {}); it is truncated or damaged", name_, position_);
  }

  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<uint8_t>(Take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    Damaged();
  }

  std::string_view Take(uint64_t count) {
    if (count > bytes_.size() - position_) Damaged();
    const std::string_view taken = bytes_.substr(position_, count);
    position_ += count;
    return taken;
  }

  std::string_view bytes_;
  const std::string& name_;
  size_t position_ = 0;
};

void PutVarint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}
void PutInteger(std::string& out, uint32_t field, uint64_t value) {
  PutVarint(out, field << 3);
  PutVarint(out, value);
}
void PutBytes(std::string& out, uint32_t field, std::string_view bytes) {
  PutVarint(out, field << 3 | 2);
  PutVarint(out, bytes.size());
  out.append(bytes);
}
void PutPiece(std::string& out, std::string_view text, float score, TokenType type) {
  std::string piece;
  PutBytes(piece, kPieceText, text);
  PutVarint(piece, kPieceScore << 3 | 5);
  piece.append(reinterpret_cast<const char*>(&score), sizeof(score));
  if (type != TokenType::kNormal) PutInteger(piece, kPieceType, static_cast<uint64_t>(type));
  PutBytes(out, kModelPieces, piece);
}

// What decides who serves the model.
struct ModelFacts {
  uint64_t model_type = 1;  // unigram
  bool suffix = false, has_map = false, extra_whitespace = true, escape = true;
  std::string bos = "<s>", eos = "</s>";
};

void ReadPiece(std::string_view bytes, VocabularySpec& spec) {
  std::string text;
  float score = 0;
  uint64_t type = 1;
  MessageReader reader(bytes, spec.origin);
  for (Field field; reader.Next(field);) {
    if (field.number == kPieceText) text = field.bytes;
    if (field.number == kPieceScore) score = field.real;
    if (field.number == kPieceType) type = field.value;
  }
  if (type < 1 || type > 6)
    Fail("'{}': piece {} has type {}, which does not exist", spec.origin, spec.pieces.size(), type);
  spec.pieces.push_back(std::move(text));
  spec.scores.push_back(score);
  spec.types.push_back(static_cast<TokenType>(type));
}

void ReadTrainer(std::string_view bytes, const std::string& name, ModelFacts& facts) {
  MessageReader reader(bytes, name);
  for (Field field; reader.Next(field);) {
    if (field.number == kTrainerModelType) facts.model_type = field.value;
    if (field.number == kTrainerSuffix) facts.suffix = field.value != 0;
    if (field.number == kTrainerBosPiece) facts.bos = field.bytes;
    if (field.number == kTrainerEosPiece) facts.eos = field.bytes;
  }
}

void ReadNormalizer(std::string_view bytes, VocabularySpec& spec, ModelFacts& facts) {
  MessageReader reader(bytes, spec.origin);
  for (Field field; reader.Next(field);) {
    if (field.number == kNormalizerMap) facts.has_map |= !field.bytes.empty();
    if (field.number == kNormalizerPrefix) spec.add_dummy_prefix = field.value != 0;
    if (field.number == kNormalizerExtra) facts.extra_whitespace = field.value != 0;
    if (field.number == kNormalizerEscape) facts.escape = field.value != 0;
  }
}

}  // namespace

bool LooksLikeSentencePieceModel(std::string_view bytes) {
  // The first field is a piece: tag 0x0a and a length that is not 0. In llama2.c files the second byte is 0.
  return bytes.size() >= 2 && bytes[0] == '\x0a' && bytes[1] != '\0';
}

VocabularySpec ReadSentencePieceModel(std::string bytes, const std::string& name) {
  VocabularySpec spec;
  spec.origin = name;
  ModelFacts facts;
  MessageReader reader(bytes, name);
  for (Field field; reader.Next(field);) {
    if (field.number == kModelPieces) ReadPiece(field.bytes, spec);
    if (field.number == kModelTrainer) ReadTrainer(field.bytes, name, facts);
    if (field.number == kModelNormalizer) ReadNormalizer(field.bytes, spec, facts);
    if (field.number == kModelDenormalizer) {
      MessageReader denormalizer(field.bytes, name);
      for (Field inner; denormalizer.Next(inner);)
        facts.has_map |= inner.number == kNormalizerMap && !inner.bytes.empty();
    }
  }
  bool unused = false;
  for (size_t i = 0; i < spec.pieces.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    if (spec.types[i] == TokenType::kUnknown) {
      if (spec.unknown) Fail("'{}': pieces {} and {} are both the unknown token", name, *spec.unknown, i);
      spec.unknown = id;
    }
    if (spec.types[i] == TokenType::kControl && spec.pieces[i] == facts.bos) spec.bos = id;
    if (spec.types[i] == TokenType::kControl && spec.pieces[i] == facts.eos) spec.eos = id;
    unused |= spec.types[i] == TokenType::kUnused;
  }
  const bool plain = facts.model_type == kModelTypeBpe && !facts.suffix && !facts.has_map && !facts.extra_whitespace &&
                     facts.escape && !unused;
  spec.kind = plain ? VocabularyKind::kSentencePieceBpe : VocabularyKind::kSentencePieceOther;
  spec.source = std::move(bytes);
  return spec;
}

std::string WriteSentencePieceModel(const VocabularySpec& spec) {
  if (!spec.source.empty()) return spec.source;
  CAIRN_CHECK(spec.scores.size() == spec.pieces.size());
  std::string model;
  for (size_t i = 0; i < spec.pieces.size(); ++i) PutPiece(model, spec.pieces[i], spec.scores[i], spec.types[i]);
  const auto id = [](std::optional<int32_t> value) {
    return static_cast<uint64_t>(static_cast<int64_t>(value.value_or(-1)));
  };
  std::string trainer;
  PutInteger(trainer, kTrainerModelType, kModelTypeBpe);
  PutInteger(trainer, kTrainerVocabSize, spec.pieces.size());
  PutInteger(trainer, kTrainerByteFallback, 1);
  PutInteger(trainer, kTrainerUnkId, id(spec.unknown));
  PutInteger(trainer, kTrainerBosId, id(spec.bos));
  PutInteger(trainer, kTrainerEosId, id(spec.eos));
  PutInteger(trainer, kTrainerPadId, id(std::nullopt));
  const auto put_name = [&](uint32_t field, std::optional<int32_t> token) {
    if (token) PutBytes(trainer, field, spec.pieces[static_cast<size_t>(*token)]);
  };
  put_name(kTrainerUnkPiece, spec.unknown);
  put_name(kTrainerBosPiece, spec.bos);
  put_name(kTrainerEosPiece, spec.eos);
  PutBytes(model, kModelTrainer, trainer);
  std::string normalizer;
  PutBytes(normalizer, kNormalizerName, "identity");
  PutInteger(normalizer, kNormalizerPrefix, spec.add_dummy_prefix ? 1 : 0);
  PutInteger(normalizer, kNormalizerExtra, 0);
  PutInteger(normalizer, kNormalizerEscape, 1);
  PutBytes(model, kModelNormalizer, normalizer);
  return model;
}

std::string AppendControlPiece(std::string model, std::string_view piece) {
  // Fields of a protocol buffer may stand in any order: a piece after everything else is still the last piece.
  PutPiece(model, piece, 0.0f, TokenType::kControl);
  return model;
}

}  // namespace cairn
