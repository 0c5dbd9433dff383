// Trials of retrieval tasks with a small random model: what is shared or kept in files changes nothing, the fact's
// block is looked for where it is, and results survive a stop.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "api_models.h"
#include "eval/retrieval_plots.h"
#include "eval/retrieval_report.h"
#include "eval/retrieval_tasks.h"
#include "infer/generate.h"
#include "io/file.h"
#include "tests/test_files.h"

namespace cairn {
namespace {

std::shared_ptr<const InferenceModel> TinyModel() {
  ModelConfig config = ApiConfig();
  config.num_hidden_layers = 3;
  return InferenceModel::Load(RandomModel(config));
}

HiddenFactTask PassKeys() { return HiddenFactTask(ApiTokenizer(), {1}, PassKeyTask({}, {})); }

SessionOptions Settings(const InferenceModel& model) {
  SessionOptions settings = DefaultSessionOptions(model.config());
  settings.top_k = 2;
  settings.block_format = BlockFormat::kF32;
  return settings;
}

void ExpectSame(const TrialResult& a, const TrialResult& b) {
  EXPECT_EQ(a.given, b.given);
  EXPECT_EQ(a.found, b.found);
  EXPECT_EQ(a.local, b.local);
  EXPECT_EQ(a.heads_found, b.heads_found);
  EXPECT_EQ(a.share_mean, b.share_mean);
  EXPECT_EQ(a.share_max, b.share_max);
  EXPECT_EQ(a.attended, b.attended);
}

TEST(RetrievalRun, SharingAndFilesChangeNothing) {
  const auto model = TinyModel();
  const ScratchDirectory scratch(SmallFilesDirectory());
  HiddenFactTask task = PassKeys();
  RetrievalOptions alone;
  alone.share = false;
  RetrievalOptions in_files;
  in_files.memory = PromptMemory{scratch.path(), 1 << 20};
  RetrievalRunner shared(model, ApiTokenizer(), Settings(*model), {});
  RetrievalRunner apart(model, ApiTokenizer(), Settings(*model), alone);
  RetrievalRunner files(model, ApiTokenizer(), Settings(*model), in_files);
  size_t read_shared = 0, read_apart = 0, found = 0;
  // Not in the order of depth: what the shared session has read may be too much.
  for (const double depth : {0.0, 0.3, 0.3, 0.9, 0.1, 1.0}) {
    const TrialKey key{900, depth, 1};
    const Prompt prompt = task.Build(key);
    const TrialResult a = shared.Run(key, prompt, nullptr);
    const TrialResult b = apart.Run(key, prompt, nullptr);
    const TrialResult c = files.Run(key, prompt, nullptr);
    ExpectSame(a, b);
    ExpectSame(a, c);
    EXPECT_EQ(b.tokens_read, prompt.ids.size());
    read_shared += a.tokens_read;
    read_apart += b.tokens_read;
    found += a.heads_found;
  }
  EXPECT_LT(read_shared, read_apart);
  EXPECT_GT(found, 0u);
}

TEST(RetrievalRun, FilesAreRemoved) {
  const auto model = TinyModel();
  const ScratchDirectory scratch(SmallFilesDirectory());
  {
    RetrievalOptions in_files;
    in_files.memory = PromptMemory{scratch.path(), 1 << 20};
    RetrievalRunner files(model, ApiTokenizer(), Settings(*model), in_files);
    HiddenFactTask task = PassKeys();
    files.Run({600, 0.5, 0}, task.Build({600, 0.5, 0}), nullptr);
    EXPECT_FALSE(std::filesystem::is_empty(scratch.path()));
  }
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

// What the runner says against a session that reads the same prompt at once.
TEST(RetrievalRun, TheChoiceIsTheSessions) {
  const auto model = TinyModel();
  HiddenFactTask task = PassKeys();
  SessionOptions settings = Settings(*model);
  RetrievalRunner runner(model, ApiTokenizer(), settings, {});
  settings.record_reads = true;
  size_t found = 0, missed = 0;
  for (size_t number = 0; number < 16; ++number) {
    const TrialKey key{number % 2 == 0 ? size_t{900} : size_t{500}, number % 8 == 7 ? 1.0 : -1.0, number};
    Prompt prompt = task.Build(key);
    // Also prompts that end with a block, whose last row is a landmark's.
    if (number % 3 == 0) prompt.ids.resize(prompt.ids.size() / 7 * 7);
    const TrialResult result = runner.Run(key, prompt, nullptr);
    Session session(model, settings);
    session.Append(prompt.ids);
    std::set<size_t> blocks;
    for (const size_t token : prompt.value_tokens) blocks.insert(token / 7);
    double share = 0;
    size_t layers = 0;
    bool read = false;
    for (const Session::LayerReads& layer : session.LastReads()) {
      if (layer.layer == 0) continue;
      ++layers;
      for (const BlockRead& block : layer.blocks) {
        if (!blocks.contains(block.block)) continue;
        share += block.gate;
        read = read || block.gate > 0;
      }
    }
    EXPECT_EQ(layers, 2u);
    EXPECT_NEAR(result.share_mean, share / 2, 1e-9);
    EXPECT_EQ(result.found, read || result.local);
    EXPECT_EQ(result.heads, 8u);
    GenerationOptions generation;
    generation.max_tokens = result.given.size() + 20;
    generation.end_tokens = EndTokens(model->config(), *ApiTokenizer());
    EXPECT_EQ(Generate(session, *ApiTokenizer(), generation).text.rfind(result.given, 0), 0u);
    found += read;
    missed += !result.found;
  }
  EXPECT_GT(found, 0u);
  EXPECT_GT(missed, 0u);
}

TEST(RetrievalRun, AFactInTheLastChunkIsLocal) {
  const auto model = TinyModel();
  HiddenFactTask task = PassKeys();
  RetrievalRunner runner(model, ApiTokenizer(), Settings(*model), {});
  Prompt prompt = task.Build({600, 0.5, 0});
  prompt.ids.resize(prompt.value_tokens.front() + 1);  // ends inside the fact
  EXPECT_TRUE(runner.Run({600, 0.5, 0}, prompt, nullptr).local);
  prompt = task.Build({600, 0.5, 0});
  EXPECT_FALSE(runner.Run({600, 0.5, 0}, prompt, nullptr).local);
}

TEST(RetrievalRun, FullAttentionHasNoChoice) {
  const auto model = TinyModel();
  HiddenFactTask task = PassKeys();
  SessionOptions settings;
  settings.attention = AttentionKind::kFull;
  RetrievalRunner runner(model, ApiTokenizer(), settings, {});
  const Prompt prompt = task.Build({600, 0.5, 0});
  const TrialResult result = runner.Run({600, 0.5, 0}, prompt, nullptr);
  EXPECT_FALSE(result.landmarks);
  EXPECT_EQ(result.attended, (static_cast<double>(prompt.ids.size()) + 1) / 2);
  RetrievalOptions in_files;
  in_files.memory = PromptMemory{"/tmp", 1 << 20};
  RetrievalRunner files(model, ApiTokenizer(), settings, in_files);
  EXPECT_ERROR(files.Run({600, 0.5, 0}, prompt, nullptr), "--memory-dir needs landmark attention");
}

// Counted row by row from what a session records.
TEST(RetrievalRun, AttendedPositionsAreCounted) {
  const auto model = TinyModel();
  const std::vector<int32_t> ids(200, 5);
  for (const size_t chunk : {14, 21, 10, 5}) {
    SessionOptions settings = Settings(*model);
    settings.record_reads = true;
    settings.chunk_length = chunk;
    Session session(model, settings);
    double sum = 0;
    size_t rows = 0;
    for (size_t at = 0; at < ids.size();) {
      const size_t end = std::min(ids.size(), NextChunkEnd(session.options(), at));
      session.Append(std::span(ids).subspan(at, end - at));
      const size_t positions = end - at + end / 7 - at / 7;
      const ChunkReads& reads = session.LastChunkReads()[1];
      for (size_t row = 0; row < positions; ++row) {
        sum += static_cast<double>(at % 7 + row + 1 + 8 * reads.chosen);
        ++rows;
      }
      at = end;
    }
    const Session::Counters counters = session.counters();
    EXPECT_EQ(counters.layer_rows, 3 * rows);
    EXPECT_NEAR(
        AttendedPositions(model->config(), session.options(), ids.size(), counters.blocks_read, counters.layer_rows),
        sum / static_cast<double>(rows), 1e-9)
        << chunk;
    // One call reads in the same chunks; of all but the last chunk the last layer reads nothing.
    Session whole(model, settings);
    whole.Append(ids);
    EXPECT_EQ(whole.counters().chunks, counters.chunks);
    EXPECT_LT(whole.counters().blocks_read, counters.blocks_read);
    EXPECT_LT(whole.counters().layer_rows, counters.layer_rows);
    EXPECT_GT(whole.counters().layer_rows, 2 * rows);
  }
}

TrialResult Sample(size_t length, double depth, size_t number, bool right, bool found) {
  TrialResult result;
  result.key = {length, depth, number};
  result.depth = depth >= 0 ? depth : 0.1 * static_cast<double>(number);
  result.right = right;
  result.landmarks = true;
  result.found = found;
  result.question = number == 0 ? "What is it? It is" : "";
  result.expected = "12";
  result.given = " 12\xff \"x\"\n";
  result.tokens = length - 3;
  result.heads = 8;
  result.share_max = 0.5;
  result.attended = 100;
  result.tokens_read = length;
  result.read_seconds = 0.5;
  return result;
}

TEST(RetrievalReport, ResultsSurviveAStop) {
  const ScratchDirectory scratch;
  const auto directory = scratch / "out";
  const nlohmann::ordered_json settings = {{"task", "passkey"}, {"seed", 1}};
  {
    TrialLog log(directory, settings);
    log.Add(Sample(1024, -1, 0, true, true));
    log.Add(Sample(1024, 0.5, 0, false, true));
  }
  // A killed run leaves half a line.
  std::ofstream(directory / "results.jsonl", std::ios::app) << "{\"length\": 10";
  {
    TrialLog log(directory, settings);
    ASSERT_EQ(log.results().size(), 2u);
    ASSERT_NE(log.Find({1024, -1, 0}), nullptr);
    EXPECT_TRUE(log.Find({1024, -1, 0})->right);
    EXPECT_FALSE(log.Find({1024, 0.5, 0})->right);
    EXPECT_EQ(log.Find({1024, 0.5, 1}), nullptr);
    EXPECT_EQ(log.Find({1024, 0.5, 0})->share_max, 0.5);
    EXPECT_EQ(log.Find({1024, 0.5, 0})->question, "What is it? It is");
    log.Add(Sample(1024, 0.5, 1, true, false));
  }
  EXPECT_EQ(TrialLog(directory, settings).results().size(), 3u);
  EXPECT_ERROR(TrialLog(directory, {{"task", "passkey"}, {"seed", 2}}), "other settings (seed was 1)");
  EXPECT_ERROR(TrialLog(directory, {{"task", "passkey"}, {"seed", 1}, {"k", 4}}), "other settings (k)");
  std::ofstream(directory / "results.jsonl", std::ios::app) << "{\"length\": 10}\n";
  EXPECT_ERROR(TrialLog(directory, settings), "results.jsonl, line 4");
  std::ofstream(directory / "results.jsonl") << "nonsense\n";
  EXPECT_ERROR(TrialLog(directory, settings), "results.jsonl, line 1");
  std::filesystem::remove(directory / "settings.json");
  EXPECT_ERROR(TrialLog(directory, settings), "no settings.json");
  WriteFileAtomically(scratch / "file", "");
  EXPECT_ERROR(TrialLog(scratch / "file", settings), "cannot create the folder");
}

TEST(RetrievalReport, SumsKeepTheChoiceApartFromTheAnswer) {
  std::vector<TrialResult> results = {Sample(1024, 0, 0, true, true), Sample(1024, 0, 1, false, true),
                                      Sample(1024, 1, 0, false, false), Sample(2048, 0, 0, true, false)};
  results[1].local = true;
  const auto lengths = SumTrials(results, false);
  ASSERT_EQ(lengths.size(), 2u);
  EXPECT_EQ(lengths[0].trials, 3u);
  EXPECT_EQ(lengths[0].right, 1u);
  EXPECT_EQ(lengths[0].found, 2u);
  EXPECT_EQ(lengths[0].local, 1u);
  EXPECT_EQ(lengths[0].right_found, 1u);
  EXPECT_EQ(lengths[0].share_max, 0.5);
  EXPECT_EQ(lengths[1].right_found, 0u);
  const auto cells = SumTrials(results, true);
  ASSERT_EQ(cells.size(), 3u);
  EXPECT_EQ(cells[1].depth, 1);
  EXPECT_EQ(cells[1].trials, 1u);
  // Depths that were drawn fall into fifths.
  std::vector<TrialResult> drawn;
  for (size_t i = 0; i < 10; ++i) drawn.push_back(Sample(1024, -1, i, true, true));
  const auto fifths = SumTrials(drawn, true);
  ASSERT_EQ(fifths.size(), 5u);
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(fifths[i].depth, 0.1 + 0.2 * static_cast<double>(i), 1e-12);

  const std::string table = TrialTable(lengths, "tokens", false);
  EXPECT_NE(table.find("33.3%"), std::string::npos) << table;
  EXPECT_NE(table.find("66.7%"), std::string::npos) << table;
  EXPECT_NE(table.find("50.0%"), std::string::npos) << table;
  const auto json = ToJson(lengths[0], false);
  EXPECT_EQ(json["right"], 1);
  EXPECT_EQ(json["found"], 2);
  EXPECT_EQ(json["accuracy_if_found"], 0.5);
  EXPECT_EQ(json["tokens_per_second"], 3 * 1024 / 1.5);

  EXPECT_NE(DrawAccuracy(lengths, "title", "tokens").find("</svg>"), std::string::npos);
  const std::string heat = DrawAccuracyHeat(cells, "title", "tokens");
  EXPECT_NE(heat.find("</svg>"), std::string::npos);
  EXPECT_NE(heat.find("2K"), std::string::npos);
}

}  // namespace
}  // namespace cairn
