// Byte-level BPE and tokenizer.json: words as GPT-2, Llama 3 and Qwen cut them, merges, added tokens, and saving.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/random.h"
#include "io/file.h"
#include "test_files.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace cairn {
namespace {

using Words = std::vector<std::string>;

Words SplitWords(const std::string& pre_tokenizer, const std::string& text) {
  const PreTokenizer cutter(SplitPatternsOf(pre_tokenizer), "test");
  Words words;
  cutter.Split(text, [&](std::string_view word) { words.emplace_back(word); });
  return words;
}

// All 256 bytes, then the given pieces (plain text), each with the merge that makes it.
nlohmann::ordered_json SmallJson() {
  nlohmann::ordered_json vocab, merges = nlohmann::ordered_json::array();
  int id = 0;
  for (int byte = 0; byte < 256; ++byte) vocab[BytesToPrintable(std::string(1, static_cast<char>(byte)))] = id++;
  const auto merge = [&](const std::string& left, const std::string& right) {
    vocab[BytesToPrintable(left + right)] = id++;
    merges.push_back(BytesToPrintable(left) + " " + BytesToPrintable(right));
  };
  merge("h", "e"), merge("l", "l"), merge("he", "ll"), merge("hell", "o"), merge(" ", "w"), merge(" ", "hello");
  nlohmann::ordered_json json;
  json["added_tokens"] = {{{"id", 262}, {"content", "<|endoftext|>"}, {"special", true}},
                          {{"id", 263}, {"content", "<tool_call>"}, {"special", false}}};
  json["normalizer"] = nullptr;
  json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  json["decoder"] = {{"type", "ByteLevel"}};
  json["model"] = {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}};
  return json;
}

std::shared_ptr<const Tokenizer> LoadJson(const ScratchDirectory& scratch, const nlohmann::ordered_json& json) {
  WriteFileAtomically(scratch / "tokenizer.json", json.dump());
  return LoadTokenizer(scratch / "tokenizer.json");
}

TEST(PreTokenizer, Gpt2) {
  EXPECT_EQ(SplitWords("gpt-2", "Hello world's  x!? 42"), (Words{"Hello", " world", "'s", " ", " x", "!?", " 42"}));
  EXPECT_EQ(SplitWords("gpt-2", "a\n\nb\n  c  "), (Words{"a", "\n", "\n", "b", "\n ", " c", "  "}));
  EXPECT_EQ(SplitWords("gpt-2", "na\xc3\xafve \xf0\x9f\x98\x80\xf0\x9f\x98\x80 \xe4\xb8\xad"),
            (Words{"na\xc3\xafve", " \xf0\x9f\x98\x80\xf0\x9f\x98\x80", " \xe4\xb8\xad"}));
  // Vertical tab and U+0085 are white space by Unicode, though not by ICU's \s.
  EXPECT_EQ(SplitWords("gpt-2", "a\v\vb"), (Words{"a", "\v", "\v", "b"}));
  EXPECT_EQ(SplitWords("gpt-2", "a\xc2\x85!"), (Words{"a", "\xc2\x85", "!"}));
  EXPECT_EQ(SplitWords("gpt-2", ""), Words{});
}

TEST(PreTokenizer, Llama3AndQwen) {
  EXPECT_EQ(SplitWords("llama-bpe", "It'S 12345 (ok).\n\nNext  line"),
            (Words{"It", "'S", " ", "123", "45", " (", "ok", ").\n\n", "Next", " ", " line"}));
  EXPECT_EQ(SplitWords("qwen2", "a 123"), (Words{"a", " ", "1", "2", "3"}));
  EXPECT_EQ(SplitWords("smollm", "a 12b"), (Words{"a", " ", "1", "2", "b"}));
  EXPECT_THROW(SplitPatternsOf("no such"), Error);
}

TEST(PreTokenizer, BadPatterns) {
  EXPECT_THROW(PreTokenizer({"("}, "test"), Error);
  EXPECT_THROW(PreTokenizer({std::string(100000, 'a')}, "test"), Error);
}

TEST(ByteBpe, MergesByRankInsideWords) {
  const ScratchDirectory scratch;
  const auto tokenizer = LoadJson(scratch, SmallJson());
  EXPECT_EQ(tokenizer->kind(), VocabularyKind::kByteLevelBpe);
  EXPECT_EQ(tokenizer->vocab_size(), 264u);
  EXPECT_EQ(tokenizer->Encode("hello hello"), (std::vector<int32_t>{259, 261}));
  EXPECT_EQ(tokenizer->Encode("hell"), (std::vector<int32_t>{258}));
  EXPECT_EQ(tokenizer->Encode(" w"), (std::vector<int32_t>{260}));
  EXPECT_EQ(tokenizer->TokenBytes(261), " hello");
  EXPECT_EQ(tokenizer->Piece(261), "\xc4\xa0hello");
  // Control tokens stay text, added tokens that are not special are matched.
  EXPECT_EQ(tokenizer->Encode("<|endoftext|>").size(), 13u);
  EXPECT_EQ(tokenizer->Encode("hello<tool_call>hello"), (std::vector<int32_t>{259, 263, 259}));
  EXPECT_EQ(tokenizer->eos(), 262);
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{262, 259}), "hello");
}

TEST(ByteBpe, MergesAsPairsAndIgnoreMerges) {
  const ScratchDirectory scratch;
  auto json = SmallJson();
  const auto plain = LoadJson(scratch, json);
  auto pairs = nlohmann::ordered_json::array();
  for (const auto& merge : json["model"]["merges"]) {
    const auto text = merge.get<std::string>();
    pairs.push_back({text.substr(0, text.find(' ')), text.substr(text.find(' ') + 1)});
  }
  json["model"]["merges"] = pairs;
  EXPECT_EQ(LoadJson(scratch, json)->fingerprint(), plain->fingerprint());
  // "hello" with the last merge gone is only found as a whole.
  json["model"]["merges"].erase(3);
  json["model"]["merges"].erase(4);  // " " + "hello" cannot be reached then, but is still a word
  EXPECT_EQ(LoadJson(scratch, json)->Encode("hello").size(), 2u);
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(LoadJson(scratch, json)->Encode("hello hello"), (std::vector<int32_t>{259, 261}));
}

TEST(ByteBpe, LosslessAndSafeToCut) {
  const ScratchDirectory scratch;
  Random random(5);
  for (const char* pre : {"gpt-2", "llama-bpe", "qwen2", "smollm"}) {
    VocabularySpec spec = LoadJson(scratch, SmallJson())->spec();
    spec.split_patterns = SplitPatternsOf(pre);
    spec.source.clear();
    const auto tokenizer = MakeTokenizer(spec);
    size_t cuts = 0;
    for (int round = 0; round < 300; ++round) {
      std::string text;
      const char* parts[] = {"hello", " ",        "\n",   "w",           "12",         "'s", "!",
                             "\r\n",  "\xc3\xa9", "\xff", "<tool_call>", "<landmark>", "\t"};
      for (uint64_t i = random.Below(40); i > 0; --i) text += parts[random.Below(std::size(parts))];
      const auto whole = tokenizer->Encode(text);
      ASSERT_EQ(tokenizer->Decode(whole), text);
      for (size_t cut = 0; cut <= text.size(); ++cut) {
        if (!tokenizer->IsSafeCut(text, cut)) continue;
        ++cuts;
        auto ids = tokenizer->Encode(text.substr(0, cut));
        const auto rest = tokenizer->EncodeMiddle(text.substr(cut));
        ids.insert(ids.end(), rest.begin(), rest.end());
        ASSERT_EQ(ids, whole) << pre << ": " << text;
      }
    }
    EXPECT_GT(cuts, 50u);
    std::string all;
    for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
    EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(all + all)), all + all);
  }
}

TEST(ByteBpe, LandmarkIsAddedAndSaved) {
  const ScratchDirectory scratch, saved, made;
  const auto plain = LoadJson(scratch, SmallJson());
  const auto marked = WithLandmark(plain);
  EXPECT_EQ(marked->landmark(), 264);
  marked->Save(saved.path());
  const auto loaded = LoadTokenizer(saved.path());
  EXPECT_EQ(loaded->landmark(), 264);
  EXPECT_EQ(loaded->bos(), plain->bos());
  EXPECT_EQ(loaded->fingerprint(), plain->fingerprint());
  EXPECT_EQ(loaded->Decode(loaded->Encode("a <landmark>")), "a <landmark>");
  EXPECT_EQ(loaded->Encode("a <landmark>"), plain->Encode("a <landmark>"));
  // Without its source the file is written anew, as for a vocabulary out of a GGUF.
  VocabularySpec spec = marked->spec();
  spec.source.clear();
  MakeTokenizer(spec)->Save(made.path());
  const auto again = LoadTokenizer(made.path());
  EXPECT_EQ(again->fingerprint(), plain->fingerprint());
  EXPECT_EQ(again->landmark(), 264);
  EXPECT_EQ(again->Encode("hello<tool_call> hello"), plain->Encode("hello<tool_call> hello"));
}

TEST(TokenizerJson, SentencePieceKindWithMerges) {
  const ScratchDirectory scratch;
  nlohmann::ordered_json json, vocab;
  vocab["<unk>"] = 0, vocab["<s>"] = 1, vocab["</s>"] = 2;
  for (int byte = 0; byte < 256; ++byte) vocab[fmt::format("<0x{:02X}>", byte)] = 3 + byte;
  int id = 259;
  for (const char* piece : {"\xe2\x96\x81", "a", "b", "ab",
                            "\xe2\x96\x81"
                            "ab"})
    vocab[piece] = id++;
  json["added_tokens"] = {{{"id", 0}, {"content", "<unk>"}, {"special", true}},
                          {{"id", 1}, {"content", "<s>"}, {"special", true}},
                          {{"id", 2}, {"content", "</s>"}, {"special", true}}};
  json["normalizer"] = {{"type", "Sequence"},
                        {"normalizers",
                         {{{"type", "Prepend"}, {"prepend", "\xe2\x96\x81"}},
                          {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\xe2\x96\x81"}}}}};
  json["pre_tokenizer"] = nullptr;
  json["model"] = {{"type", "BPE"},
                   {"unk_token", "<unk>"},
                   {"byte_fallback", true},
                   {"vocab", vocab},
                   {"merges", {"a b", "\xe2\x96\x81 ab"}}};
  const auto tokenizer = LoadJson(scratch, json);
  EXPECT_EQ(tokenizer->kind(), VocabularyKind::kSentencePieceBpe);
  EXPECT_EQ(tokenizer->Encode("ab b\n"), (std::vector<int32_t>{263, 259, 261, 13}));
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode("<s> \xff")), "<s> \xff");
  EXPECT_EQ(tokenizer->bos(), 1);
  const ScratchDirectory saved;
  WithLandmark(tokenizer)->Save(saved.path());
  EXPECT_EQ(LoadTokenizer(saved.path())->landmark(), 264);
  EXPECT_EQ(LoadTokenizer(saved.path())->fingerprint(), tokenizer->fingerprint());
}

TEST(TokenizerJson, LargeVocabulariesAreReadAndWritten) {
  // 60,000 pieces: anything quadratic in their number would be noticed.
  VocabularySpec spec;
  spec.kind = VocabularyKind::kByteLevelBpe;
  for (int byte = 0; byte < 256; ++byte)
    spec.pieces.push_back(BytesToPrintable(std::string(1, static_cast<char>(byte))));
  for (int i = 0; i < 60000; ++i) spec.pieces.push_back(fmt::format("piece{}", i));
  spec.types.assign(spec.pieces.size(), TokenType::kNormal);
  spec.split_patterns = SplitPatternsOf("gpt-2");
  const ScratchDirectory scratch, again;
  MakeTokenizer(spec)->Save(scratch.path());
  const auto loaded = LoadTokenizer(scratch.path());
  EXPECT_EQ(loaded->spec().pieces, spec.pieces);
  WithLandmark(loaded)->Save(again.path());
  EXPECT_EQ(LoadTokenizer(again.path())->landmark(), 60256);
}

TEST(TokenizerJson, ConfigNamesTheEnds) {
  const ScratchDirectory scratch;
  WriteFileAtomically(scratch / "tokenizer_config.json",
                      R"({"bos_token": null, "eos_token": {"content": "<|endoftext|>"}})");
  const auto tokenizer = LoadJson(scratch, SmallJson());
  EXPECT_FALSE(tokenizer->bos());
  EXPECT_EQ(tokenizer->eos(), 262);
}

TEST(TokenizerJson, DamageIsAnError) {
  const ScratchDirectory scratch;
  using Json = nlohmann::ordered_json;
  const auto bad = [&](const char* what, const std::function<void(Json&)>& change) {
    Json json = SmallJson();
    change(json);
    try {
      LoadJson(scratch, json);
      ADD_FAILURE() << what << " was accepted";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("tokenizer.json"), std::string::npos) << error.what();
    }
  };
  bad("no model", [](Json& j) { j.erase("model"); });
  bad("model of another type", [](Json& j) { j["model"]["type"] = "Unigram"; });
  bad("vocab as list", [](Json& j) { j["model"]["vocab"] = Json::array(); });
  bad("no vocab", [](Json& j) { j["model"].erase("vocab"); });
  bad("huge id", [](Json& j) { j["model"]["vocab"]["zz"] = 4000000000u; });
  bad("negative id", [](Json& j) { j["model"]["vocab"]["zz"] = -1; });
  bad("id as text", [](Json& j) { j["model"]["vocab"]["zz"] = "7"; });
  bad("id twice", [](Json& j) { j["model"]["vocab"]["zz"] = 7; });
  bad("added id twice", [](Json& j) { j["added_tokens"][0]["id"] = 7; });
  bad("added without content", [](Json& j) { j["added_tokens"][0].erase("content"); });
  bad("added not a list", [](Json& j) { j["added_tokens"] = 7; });
  bad("merge of unknown pieces", [](Json& j) { j["model"]["merges"].push_back("q z"); });
  bad("merge without a pair", [](Json& j) { j["model"]["merges"].push_back("qz"); });
  bad("merge of three", [](Json& j) { j["model"]["merges"].push_back("h e l"); });
  bad("merge as number", [](Json& j) { j["model"]["merges"].push_back(5); });
  bad("merge of one", [](Json& j) { j["model"]["merges"].push_back(Json::array({"h"})); });
  bad("no merges", [](Json& j) { j["model"].erase("merges"); });
  bad("a byte is missing", [](Json& j) { j["model"]["vocab"].erase("a"); });
  bad("not byte-level", [](Json& j) { j["pre_tokenizer"] = nullptr, j["decoder"] = nullptr; });
  bad("strange normaliser", [](Json& j) { j["normalizer"] = {{"type", "Lowercase"}}; });
  bad("strange pre-tokenizer", [](Json& j) {
    j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {{{"type", "Whitespace"}}, {{"type", "ByteLevel"}}}}};
  });
  bad("bad pattern", [](Json& j) {
    j["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "(("}}}, {"behavior", "Isolated"}};
  });
  for (const std::string& text : {std::string("{"), std::string("{\"model\": [}"), std::string("{\"model\": 1}"),
                                  "{\"a\":" + std::string(100000, '['), std::string("{}")}) {
    WriteFileAtomically(scratch / "tokenizer.json", text);
    EXPECT_THROW(LoadTokenizer(scratch / "tokenizer.json"), Error);
  }
}

}  // namespace
}  // namespace cairn
