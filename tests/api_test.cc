// The public C++ interface: every function, its errors, and that it does what the classes below it do.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cairn/cairn.hpp>
#include <cstdio>
#include <optional>
#include <set>
#include <thread>
#include <type_traits>

#include "api_models.h"
#include "infer/generate.h"
#include "infer/session.h"
#include "io/file.h"
#include "test_files.h"

namespace cairn {
namespace {

static_assert(!std::is_copy_constructible_v<api::Model> && std::is_nothrow_move_constructible_v<api::Model>);
static_assert(!std::is_copy_constructible_v<api::Session> && std::is_nothrow_move_constructible_v<api::Session>);
static_assert(std::is_same_v<api::Error, Error>);

template <typename T>
std::vector<T> Copy(std::span<const T> values) {
  return {values.begin(), values.end()};
}

class Api : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    scratch_.emplace(SmallFilesDirectory());
    WriteApiModel(Path());
    model_.emplace(api::Model::Load(Path()));
    internal_ = InferenceModel::Load(OpenModel(Path()));
  }
  static void TearDownTestSuite() {
    internal_.reset();
    model_.reset();
    scratch_.reset();
  }
  static std::filesystem::path Path(const std::string& name = "model") { return *scratch_ / name; }
  static std::vector<int32_t> Prompt() { return EncodePrompt(internal_->source(), *tokenizer_, ApiText()); }

  static inline std::optional<ScratchDirectory> scratch_;
  static inline std::optional<api::Model> model_;
  static inline std::shared_ptr<const InferenceModel> internal_;
  static inline const std::shared_ptr<const Tokenizer> tokenizer_ = ApiTokenizer();
};

TEST_F(Api, ProcessSettings) {
  EXPECT_EQ(api::Version(), CAIRN_VERSION);
  api::SetThreads(3);
  EXPECT_EQ(api::Threads(), 3);
  EXPECT_ERROR(api::SetThreads(-1), "cannot use -1 threads");
  EXPECT_EQ(api::Threads(), 3);
  api::SetThreads(0);
}

TEST_F(Api, ModelInfo) {
  const api::ModelInfo& info = model_->info();
  EXPECT_EQ(info.format, "hf");
  EXPECT_EQ(info.path, Path().string());
  EXPECT_EQ(info.weights, "f32");
  EXPECT_EQ(info.parameters, ParameterCount(ApiConfig()));
  EXPECT_EQ(info.weight_bytes, internal_->weight_bytes());
  EXPECT_EQ(info.vocab_size, 272u);
  EXPECT_EQ(info.layers, 2u);
  EXPECT_EQ(info.hidden_size, 64u);
  EXPECT_EQ(info.trained_context, 64u);
  EXPECT_EQ(info.block_length, 7u);
  EXPECT_EQ(info.landmark, 267);
  EXPECT_EQ(info.bos, 1);
  EXPECT_EQ(info.eos, 2);
}

TEST_F(Api, TextAndTokens) {
  const std::string text = "the bath\xc3\xa9 <s>";
  const auto tokens = model_->Tokenize(text);
  EXPECT_EQ(tokens, EncodePrompt(internal_->source(), *tokenizer_, text));
  EXPECT_EQ(tokens.front(), 1);
  EXPECT_EQ(model_->TokenizeMiddle(text), tokenizer_->EncodeMiddle(text));
  EXPECT_EQ(model_->Detokenize(tokens), text);
  EXPECT_EQ(model_->DetokenizeMiddle(tokens), " " + text);
  EXPECT_EQ(model_->Detokenize({}), "");
  EXPECT_EQ(model_->Detokenize(std::vector<int32_t>{267, 271}), "") << "no text: the landmark and the padding";
  EXPECT_ERROR(model_->Detokenize(std::vector<int32_t>{272}), "token 272 is not in the model's vocabulary of 272");
  EXPECT_ERROR(model_->DetokenizeMiddle(std::vector<int32_t>{-1}), "token -1 is not in");
}

TEST_F(Api, LoadOptions) {
  const std::pair<api::Weights, const char*> kinds[] = {{api::Weights::kF32, "f32"},
                                                        {api::Weights::kF16, "f16"},
                                                        {api::Weights::kInt8, "int8"},
                                                        {api::Weights::kInt4, "int4"}};
  for (const auto& [weights, name] : kinds) {
    EXPECT_EQ(api::Model::Load(Path(), {.weights = weights}).info().weights, name);
  }
  WriteHuggingFace(*RandomModel(ApiConfig()), Path("bare"), {});
  const auto model = api::Model::Load(Path("bare"), {.tokenizer = Path()});
  EXPECT_EQ(model.Tokenize("the"), model_->Tokenize("the"));
}

TEST_F(Api, LoadErrors) {
  EXPECT_ERROR(api::Model::Load(Path("missing")), "missing");
  WriteHuggingFace(*RandomModel(ApiConfig()), Path("mute"), {});
  EXPECT_ERROR(api::Model::Load(Path("mute")), "tokenizer");
  EXPECT_ERROR(api::Model::Load(Path(), {.tokenizer = Path("missing")}), "missing");
  WriteHuggingFace(*RandomModel(TestConfig()), Path("small"), {});
  EXPECT_ERROR(api::Model::Load(Path("small"), {.tokenizer = Path()}), "the tokenizer has 268 tokens and the model 33");
  EXPECT_ERROR(api::Model::Load(Path(), {.weights = static_cast<api::Weights>(9)}), "9 is no way");
}

// Every option reaches the session below.
struct OptionsCase {
  api::SessionOptions outside;
  SessionOptions inside;
};

std::vector<OptionsCase> OptionsCases() {
  std::vector<OptionsCase> cases(8);
  for (OptionsCase& each : cases) {
    each.outside.reads = true;
    each.inside.record_reads = true;
  }
  cases[1].outside.attention = api::Attention::kFull;
  cases[1].inside.attention = AttentionKind::kFull;
  cases[2].outside.k = cases[2].inside.top_k = 2;
  cases[2].outside.chunk = cases[2].inside.chunk_length = 20;
  cases[2].outside.block = cases[2].inside.block_length = 5;
  cases[3].outside.memory_blocks = cases[3].inside.memory_blocks = 6;
  cases[3].outside.granularity = api::Granularity::kHead;
  cases[3].inside.granularity = Granularity::kHead;
  cases[4].outside.granularity = api::Granularity::kToken;
  cases[4].inside.granularity = Granularity::kToken;
  cases[4].outside.attention = api::Attention::kLandmark;
  cases[5].outside.positions = api::Positions::kExact;
  cases[5].inside.exact_positions = true;
  cases[6].outside.block_format = api::BlockFormat::kInt8;
  cases[6].inside.block_format = BlockFormat::kInt8;
  cases[6].outside.index = api::Index::kExact;
  cases[6].inside.index = IndexKind::kExact;
  cases[7].outside.block_format = api::BlockFormat::kF32;
  cases[7].inside.block_format = BlockFormat::kF32;
  cases[7].outside.index = api::Index::kHierarchical;
  cases[7].inside.index = IndexKind::kHierarchical;
  return cases;
}

std::vector<api::Read> Flat(const std::vector<Session::LayerReads>& layers) {
  std::vector<api::Read> reads;
  for (const auto& layer : layers) {
    for (const BlockRead& read : layer.blocks) reads.push_back({layer.layer, read.block, read.gate});
  }
  return reads;
}

void ExpectSameReads(std::span<const api::Read> a, std::span<const api::Read> b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(std::tie(a[i].layer, a[i].block, a[i].weight), std::tie(b[i].layer, b[i].block, b[i].weight)) << i;
  }
}

void ExpectSameState(const api::Session& outside, const Session& inside) {
  EXPECT_EQ(Copy(outside.Tokens()), inside.tokens());
  EXPECT_EQ(Copy(outside.Logits()), Copy(inside.Logits()));
  ExpectSameReads(outside.Reads(), Flat(inside.LastReads()));
  const api::SessionStats stats = outside.stats();
  const Session::Counters counters = inside.counters();
  EXPECT_EQ(stats.tokens, inside.tokens().size());
  EXPECT_EQ(stats.blocks, counters.blocks);
  EXPECT_EQ(stats.blocks_kept, counters.blocks_kept);
  EXPECT_EQ(stats.memory_bytes, counters.memory_bytes);
  EXPECT_GT(stats.workspace_bytes, 0u);
  EXPECT_EQ(stats.blocks_read, counters.blocks_read);
  EXPECT_EQ(stats.chunks, counters.chunks);
}

TEST_F(Api, DoesWhatTheClassesBelowDo) {
  const std::vector<OptionsCase> cases = OptionsCases();
  for (const OptionsCase& options : cases) {
    SCOPED_TRACE(&options - cases.data());
    api::Session outside(*model_, options.outside);
    Session inside(internal_, options.inside);
    EXPECT_EQ(outside.options().k, inside.options().top_k);
    EXPECT_EQ(outside.options().chunk, inside.options().chunk_length);
    EXPECT_EQ(outside.options().block, inside.options().block_length);
    EXPECT_EQ(outside.options().attention == api::Attention::kFull, inside.options().attention == AttentionKind::kFull);

    outside.Append(ApiText());
    inside.Append(Prompt());
    ExpectSameState(outside, inside);
    outside.Append(" more");
    inside.Append(tokenizer_->EncodeMiddle(" more"));
    const std::vector<int32_t> tokens = {5, 9, 3};
    outside.Append(tokens);
    inside.Append(tokens);
    ExpectSameState(outside, inside);

    api::GenerateOptions wanted;
    wanted.max_tokens = 25;
    wanted.temperature = 0.9f;
    wanted.top_k = 40;
    wanted.top_p = 0.95f;
    wanted.min_p = 0.01f;
    wanted.repetition_penalty = 1.2f;
    wanted.repetition_window = 20;
    wanted.seed = 7;
    GenerationOptions generation;
    generation.max_tokens = 25;
    generation.sampling = {1.2f, 20, 0.9f, 40, 0.95f, 0.01f, 7};
    generation.end_tokens = {1, 2};
    struct Step {
      int32_t id;
      std::string text;
      std::vector<api::Read> reads;
    };
    std::vector<Step> expected, actual;
    const Generation below = Generate(inside, *tokenizer_, generation, [&](const GeneratedToken& token) {
      expected.push_back({token.id, std::string(token.text), Flat(token.reads)});
      return true;
    });
    const api::Generation result = outside.Generate(wanted, [&](const api::Token& token) {
      actual.push_back({token.id, std::string(token.text), Copy(token.reads)});
      return true;
    });
    EXPECT_EQ(result.text, below.text);
    EXPECT_EQ(result.tokens, below.tokens);
    EXPECT_EQ(static_cast<int>(result.end), static_cast<int>(below.end));
    EXPECT_GT(result.seconds, 0);
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) {
      EXPECT_EQ(actual[i].id, expected[i].id);
      EXPECT_EQ(actual[i].text, expected[i].text);
      ExpectSameReads(actual[i].reads, expected[i].reads);
    }
    ExpectSameState(outside, inside);
  }
}

TEST_F(Api, SessionErrors) {
  const auto make = [&](auto change) {
    api::SessionOptions options;
    change(options);
    return api::Session(*model_, options);
  };
  EXPECT_ERROR(make([](auto& o) { o.chunk = size_t{1} << 30; }), "a chunk of 1073741824 tokens is too long");
  EXPECT_ERROR(make([](auto& o) { o.block = size_t{1} << 30; }), "a block of 1073741824 tokens is too long");
  EXPECT_ERROR(make([](auto& o) { o.cutoff = 2; }), "the cutoff must be between 0 and 1");
  EXPECT_ERROR(make([](auto& o) { o.cutoff = 0.1; }), "no context-miss token");
  EXPECT_ERROR(make([](auto& o) { o.attention = static_cast<api::Attention>(9); }), "9 is no kind of attention");
  EXPECT_ERROR(make([](auto& o) { o.granularity = static_cast<api::Granularity>(9); }), "9 is no granularity");
  EXPECT_ERROR(make([](auto& o) { o.positions = static_cast<api::Positions>(9); }), "9 is no kind of positions");
  EXPECT_ERROR(make([](auto& o) { o.block_format = static_cast<api::BlockFormat>(9); }), "9 is no format of blocks");
  EXPECT_ERROR(make([](auto& o) { o.index = static_cast<api::Index>(9); }), "9 is no index");

  api::Session session(*model_);
  EXPECT_ERROR(session.Logits(), "there is nothing to continue");
  EXPECT_ERROR(session.Generate(), "there is nothing to continue");
  EXPECT_ERROR(session.Append(std::vector<int32_t>{3, 272}), "token 272 is not in the model's vocabulary");
  EXPECT_ERROR(session.Append(std::vector<int32_t>{3, 267}), "token 267 is the landmark");
  EXPECT_TRUE(session.Tokens().empty()) << "a call that fails changes nothing";
  session.Append("the");
  const auto generate = [&](auto change) {
    api::GenerateOptions options;
    change(options);
    return session.Generate(options);
  };
  EXPECT_ERROR(generate([](auto& o) { o.temperature = -1; }), "temperature");
  EXPECT_ERROR(generate([](auto& o) { o.top_p = 0; }), "top-p");
  EXPECT_ERROR(generate([](auto& o) { o.stops = {""}; }), "empty");
  EXPECT_ERROR(session.Truncate(99), "cannot truncate to 99 tokens");
  EXPECT_EQ(Copy(session.Tokens()), model_->Tokenize("the"));

  ModelConfig plain = ApiConfig();
  plain.landmark = {};
  WriteApiModel(Path("plain"), plain);
  const auto without = api::Model::Load(Path("plain"));
  EXPECT_EQ(without.info().landmark, -1);
  EXPECT_ERROR(api::Session(without, {.attention = api::Attention::kLandmark}), "the model has no landmark token");
  EXPECT_EQ(api::Session(without).options().attention, api::Attention::kFull);
}

TEST_F(Api, TextsBeginOnce) {
  api::Session session(*model_);
  session.Append("");
  EXPECT_EQ(Copy(session.Tokens()), std::vector<int32_t>{1});
  const api::Generation begun = session.Fork().Generate({.max_tokens = 5, .ignore_end = true});
  EXPECT_EQ(begun.text, [&] {
    Session inside(internal_, DefaultSessionOptions(internal_->config()));
    inside.Append(std::vector<int32_t>{1});
    GenerationOptions options;
    options.max_tokens = 5;
    options.continues_text = false;
    return Generate(inside, *tokenizer_, options).text;
  }());
  session.Append("the ba");
  EXPECT_EQ(Copy(session.Tokens()), model_->Tokenize("the ba"));
  session.Append("th");
  auto expected = model_->Tokenize("the ba");
  for (const int32_t id : model_->TokenizeMiddle("th")) expected.push_back(id);
  EXPECT_EQ(Copy(session.Tokens()), expected);
}

TEST_F(Api, ForkTruncateResetAndK) {
  api::Session session(*model_);
  session.Append(ApiText());
  const auto logits = Copy(session.Logits());
  const size_t count = session.Tokens().size();

  api::Session fork = session.Fork();
  EXPECT_EQ(Copy(fork.Logits()), logits);
  fork.Append("a tea");
  EXPECT_EQ(session.Tokens().size(), count);
  EXPECT_EQ(Copy(session.Logits()), logits) << "the fork goes its own way";
  EXPECT_GT(fork.Tokens().size(), count);

  fork.Truncate(count);
  EXPECT_EQ(Copy(fork.Tokens()), Copy(session.Tokens()));
  EXPECT_ERROR(fork.Logits(), "there is nothing to continue");
  const std::vector<int32_t> next = {9};
  fork.Append(next);
  session.Append(next);
  EXPECT_EQ(Copy(fork.Logits()), Copy(session.Logits()));

  session.SetK(1);
  EXPECT_EQ(session.options().k, 1u);
  Session inside(internal_, DefaultSessionOptions(internal_->config()));
  inside.Append(Prompt());
  inside.Append(next);
  inside.SetTopK(1);
  session.Append(next);
  inside.Append(next);
  EXPECT_EQ(Copy(session.Logits()), Copy(inside.Logits()));

  fork.Reset();
  EXPECT_EQ(fork.stats().tokens, 0u);
  fork.Append(ApiText());
  EXPECT_EQ(Copy(fork.Logits()), logits);

  api::Session forgetful(*model_, {.memory_blocks = 3});
  forgetful.Append(ApiText());
  EXPECT_ERROR(forgetful.Truncate(8), "their block was evicted");
  EXPECT_EQ(forgetful.stats().blocks_kept, 3u);
  EXPECT_GT(forgetful.stats().blocks, 3u);
}

TEST_F(Api, GenerationsEnd) {
  api::Session start(*model_);
  start.Append(ApiText());
  const api::Generation free = start.Fork().Generate({.max_tokens = 12, .ignore_end = true});
  EXPECT_EQ(free.end, api::EndReason::kLength);
  ASSERT_EQ(free.tokens.size(), 12u);
  EXPECT_EQ(start.Fork().Generate({.max_tokens = 0}).tokens.size(), 0u);

  api::Session session = start.Fork();
  const auto ended = session.Generate({.max_tokens = 12, .end_tokens = {free.tokens[4]}, .ignore_end = true});
  EXPECT_EQ(ended.end, api::EndReason::kEndToken);
  EXPECT_LE(ended.tokens.size(), 4u);
  EXPECT_EQ(session.Tokens().size(), start.Tokens().size() + ended.tokens.size());

  ASSERT_FALSE(free.text.empty());
  const auto stopped = start.Fork().Generate({.max_tokens = 12, .stops = {free.text.substr(0, 1)}, .ignore_end = true});
  EXPECT_EQ(stopped.end, api::EndReason::kStop);
  EXPECT_EQ(stopped.text, "");

  session = start.Fork();
  size_t calls = 0;
  const auto interrupted =
      session.Generate({.ignore_end = true}, [&](const api::Token& token) { return token.id < 0 || ++calls < 3; });
  EXPECT_EQ(interrupted.end, api::EndReason::kInterrupted);
  EXPECT_EQ(interrupted.tokens.size(), 3u);
  EXPECT_EQ(session.Tokens().size(), start.Tokens().size() + 3);
}

TEST_F(Api, CallbacksLookButDoNotTouch) {
  api::Session session(*model_, {.reads = true});
  session.Append(ApiText());
  const size_t before = session.Tokens().size();
  size_t calls = 0;
  session.Generate({.max_tokens = 2, .ignore_end = true}, [&](const api::Token& token) {
    if (token.id < 0) return true;
    ++calls;
    EXPECT_ERROR(session.Append("x"), "the session is writing");
    EXPECT_ERROR(session.Append(std::vector<int32_t>{3}), "the session is writing");
    EXPECT_ERROR(session.Truncate(0), "the session is writing");
    EXPECT_ERROR(session.Reset(), "the session is writing");
    EXPECT_ERROR(session.SetK(1), "the session is writing");
    EXPECT_ERROR(session.Generate(), "the session is writing");
    EXPECT_FALSE(token.reads.empty());
    EXPECT_EQ(session.BlockText(token.reads[0].block).empty(), false);
    EXPECT_EQ(session.Fork().Tokens().size(), session.Tokens().size());
    return true;
  });
  EXPECT_EQ(calls, 2u);
  struct Mine {};
  EXPECT_THROW(session.Generate({.ignore_end = true}, [](const api::Token&) -> bool { throw Mine(); }), Mine);
  EXPECT_EQ(session.Tokens().size(), before + 2);
  session.Append("usable again");
}

TEST_F(Api, ReadsHaveTheirText) {
  api::Session silent(*model_);
  silent.Append(ApiText());
  EXPECT_TRUE(silent.Reads().empty());
  EXPECT_TRUE(silent.BlocksRead().empty());

  api::Session session(*model_, {.reads = true});
  session.Append(ApiText());
  const auto reads = session.Reads();
  const auto blocks = session.BlocksRead();
  ASSERT_FALSE(blocks.empty());
  std::set<size_t> layers;
  for (const api::Read& read : reads) layers.insert(read.layer);
  const auto tokens = session.Tokens();
  for (size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_LE(blocks[i].weight, blocks[i > 0 ? i - 1 : 0].weight);
    double weight = 0;
    for (const api::Read& read : reads) weight += read.block == blocks[i].block ? read.weight : 0;
    EXPECT_NEAR(blocks[i].weight, weight / static_cast<double>(layers.size()), 1e-12);
    EXPECT_EQ(blocks[i].text, session.BlockText(blocks[i].block));
  }
  std::string text;
  const size_t whole = tokens.size() / 7;
  for (size_t b = 0; b < whole; ++b) text += session.BlockText(b);
  EXPECT_EQ(text, model_->Detokenize(tokens.first(whole * 7)));
  EXPECT_ERROR(session.BlockText(whole), "is not finished");
  api::Session full(*model_, {.attention = api::Attention::kFull});
  EXPECT_ERROR(full.BlockText(0), "full attention has no blocks");
}

TEST_F(Api, SessionsOutliveTheirModelAndMove) {
  std::optional<api::Model> model(api::Model::Load(Path()));
  api::Model moved = std::move(*model);
  api::Session session(moved);
  *model = std::move(moved);
  model.reset();
  api::Session other = std::move(session);
  other.Append(ApiText());
  session = std::move(other);
  api::Session direct(*model_);
  direct.Append(ApiText());
  EXPECT_EQ(Copy(session.Logits()), Copy(direct.Logits()));
}

// Every thread has sessions of its own, and forks of one that was read before.
TEST_F(Api, SessionsOfOneModelRunOnSeveralThreads) {
  api::Session shared(*model_, {.reads = true});
  shared.Append(ApiText());
  const auto work = [&](size_t number) {
    const auto model_tokens = model_->Tokenize(ApiText());
    api::Session own(*model_, {.k = 1 + number % 3, .reads = true});
    own.Append(std::span(model_tokens).first(40 + 13 * number));
    api::Session fork = shared.Fork();
    fork.Append(std::to_string(number));
    api::GenerateOptions options{.max_tokens = 12, .temperature = 0.8f, .seed = number, .ignore_end = true};
    std::string result = own.Generate(options).text + "|" + fork.Generate(options).text;
    for (const auto& read : fork.BlocksRead()) result += fmt::format("|{} {} {}", read.block, read.weight, read.text);
    return result;
  };
  constexpr size_t kThreads = 6;
  std::vector<std::string> expected, actual(kThreads);
  for (size_t i = 0; i < kThreads; ++i) expected.push_back(work(i));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; ++i) threads.emplace_back([&, i] { actual[i] = work(i); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(actual, expected);
  EXPECT_NE(expected[0], expected[1]);
}

// The programs of examples/, as a person runs them.
struct Output {
  int code;
  std::string text;
};

Output RunCommand(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  Output output{-1, ""};
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) output.text.append(buffer, n);
  output.code = WEXITSTATUS(pclose(pipe));
  return output;
}

TEST_F(Api, ExamplesWriteOn) {
  api::Session session(*model_, {.reads = true});
  session.Append("the heath, the bath, a tea at the heath");
  const std::string expected = session.Generate({.max_tokens = 20}).text + "\n";
  for (const char* program : {CAIRN_EXAMPLE_CPP, CAIRN_EXAMPLE_C}) {
    SCOPED_TRACE(program);
    const std::string call = std::string(program) + " ";
    const Output good =
        RunCommand(call + Path().string() + " 'the heath, the bath, a tea at the heath' 20 2>/dev/null");
    EXPECT_EQ(good.code, 0);
    EXPECT_EQ(good.text, expected);
    const Output bad = RunCommand(call + Path("missing").string() + " text 2>&1");
    EXPECT_EQ(bad.code, 1);
    ExpectMessage(bad.text, "error: ");
    ExpectMessage(bad.text, Path("missing").string());
    EXPECT_NE(RunCommand(call + "2>&1").code, 0);
  }
  const Output reads = RunCommand(std::string(CAIRN_EXAMPLE_CPP) + " " + Path().string() +
                                  " 'the heath, the bath, a tea at the heath' 20 2>&1 >/dev/null");
  const auto strongest = session.BlocksRead().at(0);
  ExpectMessage(reads.text, fmt::format("block {}, weight ", strongest.block));
}

TEST_F(Api, PythonWritesOn) {
#ifndef CAIRN_SHARED_LIBRARY
  GTEST_SKIP() << "built without CAIRN_SHARED_LIBRARY";
#else
  if (RunCommand("python3 -c 'import ctypes' 2>&1").code != 0) GTEST_SKIP() << "there is no python3";
  const std::string call = std::string("python3 ") + CAIRN_SOURCE_DIR + "/examples/generate.py " + CAIRN_SHARED_LIBRARY;
  api::Session session(*model_);
  session.Append("the heath");
  const Output good = RunCommand(call + " " + Path().string() + " 'the heath' 2>&1");
  EXPECT_EQ(good.code, 0);
  EXPECT_EQ(good.text, session.Generate().text + "\n");
  const Output bad = RunCommand(call + " " + Path("missing").string() + " 'the heath' 2>&1");
  EXPECT_EQ(bad.code, 1);
  ExpectMessage(bad.text, "error: ");
#endif
}

TEST(ApiPage, ShowsTheExamplesAsTheyAre) {
  const std::filesystem::path root = CAIRN_SOURCE_DIR;
  const std::string page = ReadTextFile(root / "docs/api.md");
  for (const auto& [name, language] :
       {std::pair("generate.cpp", "cpp"), std::pair("generate.c", "c"), std::pair("generate.py", "python")}) {
    const std::string shown = fmt::format("```{}\n{}```\n", language, ReadTextFile(root / "examples" / name));
    EXPECT_NE(page.find(shown), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace cairn
