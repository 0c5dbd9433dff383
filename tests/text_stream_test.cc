// The text stream: pieces of any tokens and stop strings join to what the whole text gives.
#include "infer/text_stream.h"

#include <gtest/gtest.h>
#include <unicode/unistr.h>

#include "base/error.h"
#include "base/random.h"
#include "tokenizer/utf8.h"

namespace cairn {
namespace {

// <unk>, <s>, </s>, 256 bytes, then some pieces.
std::shared_ptr<const Tokenizer> MakeByteTokenizer(bool dummy_prefix) {
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
  for (const char* piece : {"a", "b", "ab", "aba", "\xe2\x96\x81",
                            "\xe2\x96\x81"
                            "a",
                            "\xc3\xa9", "b\xf0\x9f\x98\x80"}) {
    add(piece, TokenType::kNormal);
  }
  spec.unknown = 0;
  spec.bos = 1;
  spec.eos = 2;
  spec.add_dummy_prefix = dummy_prefix;
  return MakeTokenizer(std::move(spec));
}
constexpr int32_t kFirstByte = 3, kFirstPiece = 259;

std::vector<int32_t> BytesOf(std::string_view text) {
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(kFirstByte + static_cast<uint8_t>(c));
  return ids;
}

struct Reference {
  std::string text;
  bool stopped = false;
};

// ICU replaces what is no UTF-8.
Reference WholeText(std::string bytes, const std::vector<std::string>& stops) {
  Reference result;
  for (size_t end = 1; end <= bytes.size() && !result.stopped; ++end) {
    size_t cut = std::string::npos;
    for (const std::string& stop : stops) {
      if (stop.size() <= end && bytes.compare(end - stop.size(), stop.size(), stop) == 0) {
        cut = std::min(cut, end - stop.size());
      }
    }
    if (cut == std::string::npos) continue;
    bytes.resize(cut);
    result.stopped = true;
  }
  icu::UnicodeString::fromUTF8(bytes).toUTF8String(result.text);
  return result;
}

TEST(TextStream, HoldsBackUnfinishedCharacters) {
  const auto tokenizer = MakeByteTokenizer(false);
  TextStream stream(*tokenizer, {}, true);
  const auto ids = BytesOf("\xf0\x9f\x98\x80!\xc3");
  EXPECT_EQ(stream.Push(ids[0]), "");
  EXPECT_EQ(stream.Push(ids[1]), "");
  EXPECT_EQ(stream.Push(ids[2]), "");
  EXPECT_EQ(stream.Push(ids[3]), "\xf0\x9f\x98\x80");
  EXPECT_EQ(stream.Push(ids[4]), "!");
  EXPECT_EQ(stream.Push(ids[5]), "");
  EXPECT_EQ(stream.Finish(), "\xef\xbf\xbd");
  EXPECT_EQ(stream.Finish(), "");
}

TEST(TextStream, HoldsBackWhatMayBeAStop) {
  const auto tokenizer = MakeByteTokenizer(false);
  TextStream stream(*tokenizer, {"\nUser:"}, true);
  std::string seen;
  for (const int32_t id : BytesOf("hi\nUs\nUse")) seen += stream.Push(id);
  EXPECT_EQ(seen, "hi\nUs");
  EXPECT_FALSE(stream.stopped());
  for (const int32_t id : BytesOf("r:")) seen += stream.Push(id);
  EXPECT_TRUE(stream.stopped());
  for (const int32_t id : BytesOf("never")) seen += stream.Push(id);
  seen += stream.Finish();
  EXPECT_EQ(seen, "hi\nUs");
}

TEST(TextStream, UnfinishedStopIsTextInTheEnd) {
  const auto tokenizer = MakeByteTokenizer(false);
  TextStream stream(*tokenizer, {"</s>"}, true);
  std::string seen;
  for (const int32_t id : BytesOf("a</s")) seen += stream.Push(id);
  EXPECT_EQ(seen, "a");
  EXPECT_EQ(stream.Finish(), "</s");
  EXPECT_FALSE(stream.stopped());
}

TEST(TextStream, SpaceBeforeATextIsTakenOffOnce) {
  const int32_t space_a = kFirstPiece + 5, control = 1;
  for (const bool prefix : {false, true}) {
    const auto tokenizer = MakeByteTokenizer(prefix);
    TextStream begins(*tokenizer, {}, false);
    EXPECT_EQ(begins.Push(control), "");
    EXPECT_EQ(begins.Push(space_a), prefix ? "a" : " a");
    EXPECT_EQ(begins.Push(space_a), " a");
    TextStream continues(*tokenizer, {}, true);
    EXPECT_EQ(continues.Push(space_a), " a");
  }
}

TEST(TextStream, RefusesEmptyStops) {
  const auto tokenizer = MakeByteTokenizer(false);
  EXPECT_THROW(TextStream(*tokenizer, {"a", ""}, true), Error);
}

TEST(TextStream, PiecesJoinToTheWholeText) {
  Random random(11);
  size_t stopped = 0;
  for (int round = 0; round < 4000; ++round) {
    const auto tokenizer = MakeByteTokenizer(round % 2 == 0);
    // Few different bytes, so that stops and broken characters are common.
    const std::string alphabet = "ab \xe2\x96\x81\xf0\x9f\x98\x80\xc3\xa9\xff\xed\xa0";
    std::vector<int32_t> ids;
    for (size_t n = random.Below(40); n > 0; --n) {
      const uint64_t kind = random.Below(10);
      if (kind == 0) {
        ids.push_back(static_cast<int32_t>(random.Below(tokenizer->vocab_size())));
      } else if (kind < 5) {
        ids.push_back(kFirstPiece + static_cast<int32_t>(random.Below(8)));
      } else {
        ids.push_back(BytesOf(alphabet.substr(random.Below(alphabet.size()), 1))[0]);
      }
    }
    std::vector<std::string> stops;
    for (size_t n = random.Below(4); n > 0; --n) {
      std::string stop;
      for (size_t size = 1 + random.Below(5); size > 0; --size) stop += alphabet[random.Below(alphabet.size())];
      stops.push_back(stop);
    }
    const bool continues = random.Below(2) == 0;
    const Reference expected = WholeText(continues ? tokenizer->DecodeMiddle(ids) : tokenizer->Decode(ids), stops);
    TextStream stream(*tokenizer, stops, continues);
    std::string text;
    for (const int32_t id : ids) {
      const std::string piece = stream.Push(id);
      EXPECT_TRUE(IsValidUtf8(piece));
      text += piece;
    }
    text += stream.Finish();
    ASSERT_EQ(text, expected.text) << "round " << round;
    ASSERT_EQ(stream.stopped(), expected.stopped) << "round " << round;
    stopped += expected.stopped ? 1 : 0;
  }
  EXPECT_GT(stopped, 500u);
  EXPECT_LT(stopped, 3500u);
}

}  // namespace
}  // namespace cairn
