// Tokenizers: equal to SentencePiece on real vocabularies, lossless on any bytes, deaf to "<landmark>" in text.
#include "tokenizer/tokenizer.h"

#include <gtest/gtest.h>
#include <sentencepiece_processor.h>

#include <cstdio>
#include <fstream>

#include "base/error.h"
#include "base/random.h"
#include "io/file.h"
#include "test_files.h"
#include "tokenizer/llama2c_vocabulary.h"
#include "tokenizer/merge_table.h"
#include "tokenizer/train.h"
#include "tokenizer/utf8.h"

namespace cairn {
namespace {

// The start of an xz file's content; empty when it cannot be unpacked.
std::string Unpack(const std::string& command, size_t limit) {
  std::string text(limit, '\0');
  FILE* pipe = popen((command + " 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) return {};
  text.resize(fread(text.data(), 1, limit, pipe));
  pclose(pipe);
  return text;
}

std::vector<std::string> RealTexts(const std::filesystem::path& shared) {
  const std::string assets = (shared / "assets").string();
  return {Unpack("xz -dc " + assets + "/tinystories-sample.txt.xz", 60000),
          Unpack("xz -dc " + assets + "/wikitext2-valid.txt.xz", 200000),
          Unpack("tar -xJOf " + assets + "/books.tar.xz --wildcards '*/valid/*'", 200000),
          Unpack("tar -xJOf " + assets + "/stacks-tex.tar.xz", 200000)};
}

// Texts that are easily got wrong.
std::vector<std::string> HardTexts() {
  std::vector<std::string> texts = {"",
                                    " ",
                                    "  ",
                                    "\n",
                                    " a",
                                    "a ",
                                    "a\n b\n\n  c\t\r\n",
                                    "<landmark>",
                                    "x<landmark>y <landmark>",
                                    "<s></s><unk><0x41>",
                                    "\xe2\x96\x81",
                                    "a\xe2\x96\x81 b",
                                    "caf\xc3\xa9 \xf0\x9f\x98\x80 \xe4\xb8\xad\xe6\x96\x87",
                                    "\xff\xfe",
                                    "a\xc3",
                                    "\xe2\x96",
                                    std::string("nul\0nul", 7),
                                    std::string(5000, 'a'),
                                    std::string(5000, ' '),
                                    "\xed\xa0\x80 surrogate \xc0\x80 overlong \xf4\x90\x80\x80"};
  Random random(7);
  for (int i = 0; i < 50; ++i) {
    std::string text(random.Below(300), '\0');
    const uint64_t range = i % 2 == 0 ? 256 : 40;
    for (char& c : text) c = static_cast<char>(random.Below(range) + (range == 40 ? ' ' : 0));
    texts.push_back(text);
  }
  return texts;
}

void ExpectLossless(const Tokenizer& tokenizer, const std::string& text) {
  const auto ids = tokenizer.Encode(text);
  EXPECT_EQ(tokenizer.Decode(ids), text);
  EXPECT_EQ(tokenizer.DecodeMiddle(tokenizer.EncodeMiddle(text)), text);
  for (const int32_t id : ids) {
    ASSERT_NE(tokenizer.spec().types.at(static_cast<size_t>(id)), TokenType::kControl) << text;
    ASSERT_FALSE(tokenizer.landmark() && id == *tokenizer.landmark());
  }
}

void ExpectSafeCuts(const Tokenizer& tokenizer, const std::string& text, size_t& cuts) {
  const auto whole = tokenizer.Encode(text);
  for (size_t i = 0; i < text.size(); i += 1 + text.size() / 60) {
    size_t cut = i;
    while (cut < text.size() && !tokenizer.IsSafeCut(text, cut)) ++cut;
    if (cut >= text.size()) continue;
    ++cuts;
    auto parts = tokenizer.Encode(std::string_view(text).substr(0, cut));
    const auto rest = tokenizer.EncodeMiddle(std::string_view(text).substr(cut));
    parts.insert(parts.end(), rest.begin(), rest.end());
    ASSERT_EQ(parts, whole) << "cut at " << cut;
  }
}

// The training text of the small vocabularies made here.
std::string SmallCorpus() {
  std::string text;
  const char* words[] = {"cairn", "stone", "path", "walker",   "the",   "a",
                         "of",    "over",  "hill", "landmark", "marks", "way"};
  Random random(3);
  for (int line = 0; line < 400; ++line) {
    for (int i = 0; i < 12; ++i) text += std::string(i == 0 ? "" : " ") + words[random.Below(std::size(words))];
    text += line % 5 == 0 ? ".\n\n    indented 42\n" : ".\n";
  }
  return text;
}

std::shared_ptr<const Tokenizer> TrainSmall(const ScratchDirectory& scratch, int vocab = 330) {
  WriteFileAtomically(scratch / "corpus.txt", SmallCorpus());
  TokenizerTraining options;
  options.files = {scratch / "corpus.txt"};
  options.vocab_size = vocab;
  return TrainTokenizer(options);
}

TEST(MergeTable, LongAndShortAgreeWithTheNaiveLoop) {
  Random random(11);
  for (int round = 0; round < 200; ++round) {
    MergeTable table(4);
    const auto symbols_count = static_cast<int32_t>(2 + random.Below(4));
    int32_t next = symbols_count;
    for (int i = 0; i < 30; ++i) {
      const auto left = static_cast<int32_t>(random.Below(static_cast<uint64_t>(next)));
      const auto right = static_cast<int32_t>(random.Below(static_cast<uint64_t>(next)));
      table.Add(left, right, {next++, static_cast<int32_t>(random.Below(10))});  // equal ranks happen
    }
    std::vector<int32_t> symbols(1 + random.Below(120));
    for (int32_t& s : symbols) s = static_cast<int32_t>(random.Below(static_cast<uint64_t>(symbols_count)));
    std::vector<int32_t> naive = symbols;
    for (;;) {
      int32_t best_rank = std::numeric_limits<int32_t>::max();
      size_t best = 0;
      for (size_t i = 0; i + 1 < naive.size(); ++i) {
        const auto merge = table.Find(naive[i], naive[i + 1]);
        if (merge.merged >= 0 && merge.rank < best_rank) best_rank = merge.rank, best = i;
      }
      if (best_rank == std::numeric_limits<int32_t>::max()) break;
      naive[best] = table.Find(naive[best], naive[best + 1]).merged;
      naive.erase(naive.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
    table.Apply(symbols);
    ASSERT_EQ(symbols, naive) << "round " << round;
  }
}

TEST(SentencePieceBpe, EqualsTheLibraryOnRealText) {
  CAIRN_NEED_SHARED(shared);
  const auto model = LoadTokenizer(shared / "assets" / "tokenizer.model");
  const auto bin = LoadTokenizer(shared / "assets" / "tokenizer.bin");
  ASSERT_EQ(model->kind(), VocabularyKind::kSentencePieceBpe);
  ASSERT_EQ(model->vocab_size(), 32000u);
  ASSERT_EQ(bin->vocab_size(), 32000u);
  EXPECT_EQ(model->bos(), 1);
  EXPECT_EQ(model->eos(), 2);
  EXPECT_EQ(model->fingerprint(), bin->fingerprint());
  sentencepiece::SentencePieceProcessor library;
  ASSERT_TRUE(library.Load((shared / "assets" / "tokenizer.model").string()).ok());
  std::vector<std::string> texts = RealTexts(shared);
  for (const std::string& text : texts) ASSERT_GT(text.size(), 10000u);
  for (const std::string& text : HardTexts()) {
    if (IsValidUtf8(text) && text.find(kSpaceSymbol) == std::string::npos) texts.push_back(text);
  }
  for (std::string& text : texts) {
    while (!IsValidUtf8(text)) text.pop_back();  // the sample may end inside a character
    std::vector<int> expected;
    ASSERT_TRUE(library.Encode(text, &expected).ok());
    ASSERT_EQ(model->Encode(text), expected) << text.substr(0, 100);
    ASSERT_EQ(bin->Encode(text), expected) << text.substr(0, 100);
    ASSERT_EQ(model->Decode(expected), text);
  }
}

TEST(SentencePieceBpe, LosslessOnAnyBytesAndSafeToCut) {
  CAIRN_NEED_SHARED(shared);
  for (const char* name : {"tokenizer.model", "tokenizer.bin", "tok512.bin"}) {
    const auto tokenizer = LoadTokenizer(shared / "assets" / name);
    for (const std::string& text : HardTexts()) ExpectLossless(*tokenizer, text);
    size_t cuts = 0;
    for (const std::string& text : RealTexts(shared)) ExpectSafeCuts(*tokenizer, text.substr(0, 3000), cuts);
    for (const std::string& text : HardTexts()) ExpectSafeCuts(*tokenizer, text, cuts);
    EXPECT_GT(cuts, 200u);
  }
}

TEST(SentencePieceBpe, LineByLineEqualsWhole) {
  CAIRN_NEED_SHARED(shared);
  const auto tokenizer = LoadTokenizer(shared / "assets" / "tokenizer.model");
  const std::string text = RealTexts(shared)[0];
  std::vector<int32_t> ids;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    ASSERT_TRUE(end == text.size() || tokenizer->IsSafeCut(text, end));
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    const auto more = begin == 0 ? tokenizer->Encode(line) : tokenizer->EncodeMiddle(line);  // one dummy prefix only
    ids.insert(ids.end(), more.begin(), more.end());
    begin = end;
  }
  EXPECT_EQ(ids, tokenizer->Encode(text));
}

TEST(SentencePieceBpe, DummyPrefix) {
  CAIRN_NEED_SHARED(shared);
  const auto tokenizer = LoadTokenizer(shared / "assets" / "tokenizer.model");
  EXPECT_EQ(tokenizer->Encode("Hello world"), (std::vector<int32_t>{15043, 3186}));
  EXPECT_EQ(tokenizer->EncodeMiddle(" Hello world"), (std::vector<int32_t>{15043, 3186}));
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{1, 15043, 3186, 2}), "Hello world");
  EXPECT_EQ(tokenizer->DecodeMiddle(std::vector<int32_t>{15043, 3186}), " Hello world");
  EXPECT_EQ(tokenizer->TokenBytes(3186), " world");
  EXPECT_EQ(tokenizer->TokenBytes(13), "\n");
  EXPECT_EQ(tokenizer->TokenBytes(1), "");
  EXPECT_THROW(tokenizer->TokenBytes(32000), Error);
  EXPECT_THROW(tokenizer->TokenBytes(-1), Error);
}

TEST(Landmark, AddedToAnExistingVocabularyChangesNothingElse) {
  CAIRN_NEED_SHARED(shared);
  for (const char* name : {"tokenizer.model", "tok512.bin"}) {
    const auto plain = LoadTokenizer(shared / "assets" / name);
    EXPECT_FALSE(plain->landmark());
    const auto marked = WithLandmark(plain);
    ASSERT_EQ(marked->vocab_size(), plain->vocab_size() + 1);
    ASSERT_EQ(marked->landmark(), static_cast<int32_t>(plain->vocab_size()));
    EXPECT_EQ(WithLandmark(marked), marked);
    EXPECT_EQ(marked->fingerprint(), plain->fingerprint());
    EXPECT_EQ(marked->TokenBytes(*marked->landmark()), "");
    const ScratchDirectory scratch;
    marked->Save(scratch.path());
    const auto loaded = LoadTokenizer(scratch.path());
    EXPECT_EQ(loaded->landmark(), marked->landmark());
    EXPECT_EQ(loaded->bos(), plain->bos());
    EXPECT_EQ(loaded->eos(), plain->eos());
    EXPECT_EQ(loaded->fingerprint(), plain->fingerprint());
    sentencepiece::SentencePieceProcessor library;  // what was written is a sound model for others too
    ASSERT_TRUE(library.Load((scratch / "tokenizer.model").string()).ok());
    EXPECT_EQ(library.GetPieceSize(), static_cast<int>(marked->vocab_size()));
    EXPECT_TRUE(library.IsControl(*marked->landmark()));
    for (const std::string& text : HardTexts()) {
      ExpectLossless(*loaded, text);
      EXPECT_EQ(loaded->Encode(text), plain->Encode(text));
    }
  }
}

TEST(Training, ReservesTheLandmarkAndIsLossless) {
  const ScratchDirectory scratch;
  const auto tokenizer = TrainSmall(scratch);
  EXPECT_EQ(tokenizer->kind(), VocabularyKind::kSentencePieceBpe);
  EXPECT_EQ(tokenizer->vocab_size(), 330u);
  EXPECT_EQ(tokenizer->landmark(), 329);
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), 2);
  const std::string corpus = SmallCorpus();
  EXPECT_LT(tokenizer->Encode(corpus).size(), corpus.size() / 2);
  size_t cuts = 0;
  for (const std::string& text : HardTexts()) {
    ExpectLossless(*tokenizer, text);
    ExpectSafeCuts(*tokenizer, text, cuts);
  }
  EXPECT_GT(cuts, 200u);
  ExpectLossless(*tokenizer, corpus);
  // Deterministic, and the same as the library on the model that is saved.
  EXPECT_EQ(TrainSmall(scratch)->spec().source, tokenizer->spec().source);
  tokenizer->Save(scratch.path());
  sentencepiece::SentencePieceProcessor library;
  ASSERT_TRUE(library.Load((scratch / "tokenizer.model").string()).ok());
  std::vector<int> expected;
  ASSERT_TRUE(library.Encode(corpus, &expected).ok());
  EXPECT_EQ(tokenizer->Encode(corpus), expected);
  EXPECT_EQ(LoadTokenizer(scratch.path())->fingerprint(), tokenizer->fingerprint());
}

TEST(Training, NumbersInPiecesOfSeveralDigits) {
  const ScratchDirectory scratch;
  WriteFileAtomically(scratch / "corpus.txt", SmallCorpus());
  TokenizerTraining options;
  options.files = {scratch / "corpus.txt"};
  options.vocab_size = 1430;
  options.digits = 3;
  const auto tokenizer = TrainTokenizer(options);
  const auto pieces = [&](const std::string& text) {
    std::vector<std::string> list;
    for (const int32_t id : tokenizer->EncodeMiddle(text)) list.push_back(tokenizer->TokenBytes(id));
    return list;
  };
  EXPECT_EQ(pieces(" 2226507"), (std::vector<std::string>{" ", "222", "650", "7"}));
  EXPECT_EQ(pieces("a42b007"), (std::vector<std::string>{"a", "42", "b", "007"}));
  EXPECT_EQ(pieces("49357."), (std::vector<std::string>{"493", "57", "."}));
  EXPECT_EQ(*tokenizer->landmark(), 1429);
  for (const std::string& text : HardTexts()) ExpectLossless(*tokenizer, text);
  // The same as the library on the model that is saved.
  tokenizer->Save(scratch.path());
  sentencepiece::SentencePieceProcessor library;
  ASSERT_TRUE(library.Load((scratch / "tokenizer.model").string()).ok());
  const std::string text = SmallCorpus() + " 1 12 123 1234 12345 123456 1234567 0000 a1b22c333d4444";
  std::vector<int> expected;
  ASSERT_TRUE(library.Encode(text, &expected).ok());
  EXPECT_EQ(tokenizer->Encode(text), expected);
}

TEST(Training, Complains) {
  const ScratchDirectory scratch;
  EXPECT_THROW(TrainSmall(scratch, 260), Error);
  EXPECT_THROW(TrainSmall(scratch, 100000), Error);
  TokenizerTraining options;
  EXPECT_THROW(TrainTokenizer(options), Error);
  options.files = {scratch / "missing.txt"};
  EXPECT_THROW(TrainTokenizer(options), Error);
  options.files = {scratch / "corpus.txt"};
  options.character_coverage = 0;
  EXPECT_THROW(TrainTokenizer(options), Error);
  options.character_coverage = 1;
  options.digits = 4;
  EXPECT_THROW(TrainTokenizer(options), Error);
  options.digits = 3;
  options.vocab_size = 1360;  // all taken by numbers and bytes
  EXPECT_THROW(TrainTokenizer(options), Error);
}

TEST(Llama2c, WrittenAndReadAgain) {
  const ScratchDirectory scratch;
  const auto tokenizer = TrainSmall(scratch);
  WriteFileAtomically(scratch / "tokenizer.bin", WriteLlama2cVocabulary(tokenizer->spec()));
  const auto loaded = LoadTokenizer(scratch / "tokenizer.bin");
  EXPECT_EQ(loaded->fingerprint(), tokenizer->fingerprint());
  EXPECT_EQ(loaded->landmark(), tokenizer->landmark());
}

TEST(SentencePieceOther, ServedByTheLibrary) {
  // A BPE model that collapses white space is not ours to imitate: field 4 of the normaliser (message 3) is set to 1.
  const ScratchDirectory scratch;
  std::string model = TrainSmall(scratch)->spec().source;
  model += std::string("\x1a\x02\x20\x01", 4);
  WriteFileAtomically(scratch / "other.model", model);
  const auto tokenizer = LoadTokenizer(scratch / "other.model");
  EXPECT_EQ(tokenizer->kind(), VocabularyKind::kSentencePieceOther);
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode("the  stone")), "the stone");
  EXPECT_FALSE(tokenizer->IsSafeCut("a\nb", 2));
  const auto marked = tokenizer->landmark() ? tokenizer : WithLandmark(tokenizer);
  EXPECT_EQ(marked->landmark(), 329);
}

TEST(Spec, UserDefinedPiecesAndUnknownsWithoutBytes) {
  VocabularySpec spec;
  spec.pieces = {"<unk>",
                 "a",
                 "b",
                 "ab",
                 "\xe2\x96\x81",
                 "<tool>",
                 "\xe2\x96\x81"
                 "a"};
  spec.scores = {0, -5, -6, -1, -7, 0, -2};
  spec.types = {TokenType::kUnknown, TokenType::kNormal,      TokenType::kNormal, TokenType::kNormal,
                TokenType::kNormal,  TokenType::kUserDefined, TokenType::kNormal};
  spec.unknown = 0;
  const auto tokenizer = MakeTokenizer(spec);
  EXPECT_EQ(tokenizer->Encode("ab"), (std::vector<int32_t>{4, 3}));  // "ab" comes before "▁a"
  EXPECT_EQ(tokenizer->Encode("a<tool>b"), (std::vector<int32_t>{6, 5, 2}));
  EXPECT_EQ(tokenizer->Encode("a<tool"), (std::vector<int32_t>{6, 0}));  // unknowns in a row are one
  EXPECT_EQ(tokenizer->EncodeMiddle("axyb"), (std::vector<int32_t>{1, 0, 2}));
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{6, 5, 2}), "a<tool>b");
}

TEST(Spec, ContradictionsAreErrors) {
  VocabularySpec good;
  good.pieces = {"<unk>", "a", "b"};
  good.scores = {0, -1, -2};
  good.types = {TokenType::kUnknown, TokenType::kNormal, TokenType::kNormal};
  good.unknown = 0;
  EXPECT_NO_THROW(MakeTokenizer(good));
  const auto bad = [&](auto change) {
    VocabularySpec spec = good;
    change(spec);
    EXPECT_THROW(MakeTokenizer(spec), Error);
  };
  bad([](VocabularySpec& s) { s.pieces.clear(), s.scores.clear(), s.types.clear(); });
  bad([](VocabularySpec& s) { s.scores.pop_back(); });
  bad([](VocabularySpec& s) { s.types.pop_back(); });
  bad([](VocabularySpec& s) { s.types[1] = static_cast<TokenType>(9); });
  bad([](VocabularySpec& s) { s.pieces[2] = "a"; });
  bad([](VocabularySpec& s) { s.pieces[2] = ""; });
  bad([](VocabularySpec& s) { s.pieces[2] = std::string(100000, 'x'); });
  bad([](VocabularySpec& s) { s.scores[2] = std::numeric_limits<float>::quiet_NaN(); });
  bad([](VocabularySpec& s) { s.unknown.reset(); });
  bad([](VocabularySpec& s) { s.bos = 3; });
  bad([](VocabularySpec& s) { s.eos = -1; });
  bad([](VocabularySpec& s) { s.landmark = 1; });
  bad([](VocabularySpec& s) { s.types[1] = TokenType::kByte; });
  bad([](VocabularySpec& s) { s.merges = {{"a", "c"}}; });
  good.pieces[2] = kLandmarkPiece;
  EXPECT_THROW(WithLandmark(MakeTokenizer(good)), Error);
}

}  // namespace
}  // namespace cairn
