// Damaged tokenizer files: every one must give an Error that names the file, or a tokenizer that works.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/random.h"
#include "io/file.h"
#include "test_files.h"
#include "tokenizer/llama2c_vocabulary.h"
#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/tokenizer.h"

namespace cairn {
namespace {

VocabularySpec SmallSpec() {
  VocabularySpec spec;
  spec.pieces = {"<unk>", "<s>", "</s>"};
  spec.types = {TokenType::kUnknown, TokenType::kControl, TokenType::kControl};
  for (int byte = 0; byte < 256; ++byte) {
    spec.pieces.push_back(fmt::format("<0x{:02X}>", byte));
    spec.types.push_back(TokenType::kByte);
  }
  for (const char* piece : {"\xe2\x96\x81", "a", "b", "ab"}) {
    spec.pieces.emplace_back(piece);
    spec.types.push_back(TokenType::kNormal);
  }
  spec.scores.assign(spec.pieces.size(), 0);
  spec.scores.back() = -1;
  spec.unknown = 0, spec.bos = 1, spec.eos = 2;
  return spec;
}

// Without the wait for the disk of WriteFileAtomically.
void WriteFile(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

void ExpectError(const ScratchDirectory& scratch, const std::string& bytes, const std::string& what) {
  WriteFile(scratch / "file", bytes);
  try {
    LoadTokenizer(scratch / "file");
    ADD_FAILURE() << what << " was accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("file"), std::string::npos) << what << ": " << error.what();
  }
}

// An Error is fine, and so is a tokenizer that does its work.
void ExpectNoHarm(const ScratchDirectory& scratch, const std::string& bytes) {
  WriteFile(scratch / "file", bytes);
  try {
    const auto tokenizer = LoadTokenizer(scratch / "file");
    const auto ids = tokenizer->Encode("ab <s> \xff\n");
    for (const int32_t id : ids) ASSERT_LT(static_cast<size_t>(id), tokenizer->vocab_size());
    tokenizer->Decode(ids);
    tokenizer->fingerprint();
  } catch (const Error&) {
  }
}

std::string WithInteger(std::string bytes, size_t offset, int32_t value) {
  std::memcpy(bytes.data() + offset, &value, sizeof(value));
  return bytes;
}

TEST(CorruptLlama2c, EveryKindOfDamage) {
  const ScratchDirectory scratch;
  const std::string good = WriteLlama2cVocabulary(SmallSpec());
  WriteFileAtomically(scratch / "good", good);
  EXPECT_EQ(LoadTokenizer(scratch / "good")->Encode("ab"), (std::vector<int32_t>{259, 262}));

  ExpectError(scratch, "", "an empty file");
  ExpectError(scratch, good.substr(0, 3), "three bytes");
  ExpectError(scratch, good.substr(0, 4), "no tokens");
  for (size_t cut = 5; cut < good.size(); cut += cut < 100 ? 1 : 97) ExpectError(scratch, good.substr(0, cut), "a cut");
  ExpectError(scratch, WithInteger(good, 0, 0), "no longest piece");
  ExpectError(scratch, WithInteger(good, 0, -5), "a negative longest piece");
  ExpectError(scratch, WithInteger(good, 0, 2000000000), "an absurd longest piece");
  ExpectError(scratch, WithInteger(good, 0, 2), "pieces longer than the longest");
  ExpectError(scratch, WithInteger(good, 8, 2000000000), "an absurd length");
  ExpectError(scratch, WithInteger(good, 8, -1), "a negative length");
  ExpectError(scratch, WithInteger(good, 4, 0x7fc00000), "a score that is not a number");
  VocabularySpec spec = SmallSpec();
  spec.pieces[260] = "b";
  ExpectError(scratch, WriteLlama2cVocabulary(spec), "a piece twice");
  std::swap(spec.pieces[10], spec.pieces[11]);
  EXPECT_THROW(WriteLlama2cVocabulary(spec), Error);
}

TEST(CorruptSentencePiece, EveryKindOfDamage) {
  const ScratchDirectory scratch;
  const std::string good = WriteSentencePieceModel(SmallSpec());
  WriteFileAtomically(scratch / "good", good);
  EXPECT_EQ(LoadTokenizer(scratch / "good")->Encode("ab"), (std::vector<int32_t>{259, 262}));
  ExpectError(scratch, "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "an absurd length");
  ExpectError(scratch, "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "a number that does not end");
  ExpectError(scratch, good + "\x0a", "a field without its length");
  ExpectError(scratch, good + "\x0b", "a group, which is not used");
  ExpectError(scratch, good + std::string("\x00\x00", 2), "a field 0");
  ExpectError(scratch, good + std::string("\x0a\x05\x0a\x01x\x18\x09", 7), "a piece of a type that does not exist");
  ExpectError(scratch, good + std::string("\x0a\x05\x0a\x01x\x18\x02", 7), "a second unknown token");
  ExpectError(scratch, good + std::string("\x0a\x03\x0a\x01\x61", 5), "a piece twice");
  ExpectError(scratch, good + std::string("\x0a\x05\x0a\x01x\x18\x06", 7), "a byte that is none");
  // Models that the library would serve, and that upset it: an empty piece, one with a NUL byte.
  const std::string unigram = good + std::string("\x12\x02\x18\x01", 4);
  ExpectNoHarm(scratch, unigram);
  ExpectError(scratch, unigram + std::string("\x0a\x02\x0a\x00", 4), "an empty piece");
  ExpectError(scratch, unigram + std::string("\x0a\x03\x0a\x01\x00", 5), "a piece of NUL");
  for (size_t cut = 1; cut < good.size(); cut += 13) ExpectNoHarm(scratch, good.substr(0, cut));
}

TEST(CorruptAny, RandomDamageDoesNoHarm) {
  const ScratchDirectory scratch;
  Random random(1);
  for (const std::string& good : {WriteLlama2cVocabulary(SmallSpec()), WriteSentencePieceModel(SmallSpec())}) {
    for (int round = 0; round < 300; ++round) {
      std::string bytes = good;
      for (uint64_t i = 1 + random.Below(6); i > 0; --i)
        bytes[random.Below(bytes.size())] = static_cast<char>(random.Next());
      ExpectNoHarm(scratch, bytes);
    }
  }
}

TEST(CorruptAny, WrongPlaces) {
  const ScratchDirectory scratch;
  EXPECT_THROW(LoadTokenizer(scratch / "missing"), Error);
  EXPECT_THROW(LoadTokenizer(scratch.path()), Error);  // a directory without a tokenizer
  ExpectError(scratch, "this is just some text that somebody named by mistake", "plain text");
}

}  // namespace
}  // namespace cairn
