// The paper's tables: their figures, how a row is measured, Transformer-XL through the training engine, and the output.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "api_models.h"
#include "base/random.h"
#include "eval/paper_tables.h"
#include "eval/xl_perplexity.h"

namespace cairn {
namespace {

std::vector<int32_t> RandomText(size_t count) {
  Random random(2);
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(3 + random.Below(260));
  return ids;
}

ModelConfig XlConfig() {
  ModelConfig config = ApiConfig();
  config.landmark = {};
  config.landmark.attention = AttentionKind::kXl;
  config.landmark.xl_segment_length = 8;
  return config;
}

TEST(PaperTables, FiguresAreThePapers) {
  const auto one = PaperTable(1);
  ASSERT_EQ(one.size(), 13u);
  EXPECT_EQ(one[0].pg19, 16.12);
  EXPECT_EQ(one[2].arxiv, 4.01);
  EXPECT_EQ(one.back().pg19, 14.72);
  EXPECT_FALSE(one[3].arxiv);
  // As the paper counts: chunk and k blocks of 50, more or less.
  for (const TableRow& row : one) {
    if (row.model != "landmark") continue;
    EXPECT_NEAR(static_cast<double>(row.attention_size), static_cast<double>(row.chunk + 50 * row.k), 20);
  }
  const auto two = PaperTable(2);
  ASSERT_EQ(two.size(), 9u);
  EXPECT_EQ(two[1].pg19, 15.48);
  EXPECT_EQ(two[8].pg19, 14.89);
  const auto three = PaperTable(3);
  ASSERT_EQ(three.size(), 6u);
  EXPECT_EQ(three[3].pg19, 16.43);
  EXPECT_EQ(three[3].skipped, 0.57);
  EXPECT_EQ(three[3].cutoff, 0.3);
}

TEST(PaperTables, ARowIsMeasuredWithItsSettings) {
  const auto model = InferenceModel::Load(RandomModel(ApiConfig()));
  const auto text = RandomText(300);
  TableRow row;
  row.model = "landmark";
  row.length = 100;
  row.chunk = 14;
  row.memory_blocks = 5;
  row.k = 2;
  row.granularity = Granularity::kToken;
  SessionOptions settings;
  settings.chunk_length = 14;
  settings.memory_blocks = 5;
  settings.top_k = 2;
  settings.granularity = Granularity::kToken;
  PerplexityOptions windows;
  windows.length = 100;
  windows.bos = 1;
  EXPECT_EQ(MeasureRow(row, model, {0, 0, 1}, text).loss, MeasurePerplexity(model, settings, windows, text).loss);
  row.model = "full";
  settings = {};
  settings.attention = AttentionKind::kFull;
  settings.chunk_length = 14;
  windows.length = 14;
  EXPECT_EQ(MeasureRow(row, model, {0, 0, 1}, text).loss, MeasurePerplexity(model, settings, windows, text).loss);
}

TEST(PaperTables, TransformerXlOfOneSegmentIsFullAttention) {
  const auto source = RandomModel(XlConfig());
  const auto model = InferenceModel::Load(source);
  const auto text = RandomText(70);
  SessionOptions full;
  full.attention = AttentionKind::kFull;
  full.block_format = BlockFormat::kF32;
  for (const int32_t bos : {-1, 1}) {
    PerplexityOptions windows;
    windows.length = 32;
    windows.bos = bos;
    const PerplexityResult session = MeasurePerplexity(model, full, windows, text);
    const PerplexityResult engine = MeasureXlPerplexity(*source, 64, 64, windows, text);
    EXPECT_NEAR(engine.loss, session.loss, 1e-4 * session.loss);
    EXPECT_EQ(engine.tokens, session.tokens);
    EXPECT_EQ(engine.windows, session.windows);
    // Shorter segments see less.
    EXPECT_GT(std::abs(MeasureXlPerplexity(*source, 8, 8, windows, text).loss - session.loss), 1e-3);
  }
  EXPECT_ERROR(MeasureXlPerplexity(*RandomModel(ApiConfig()), 8, 8, {}, text), "not trained as a Transformer-XL");
  EXPECT_ERROR(MeasureXlPerplexity(*source, 8, 8, {}, std::vector<int32_t>{5, 9999}), "not in the model's vocabulary");
  EXPECT_ERROR(MeasureXlPerplexity(*source, 8, 8, {}, std::vector<int32_t>{5}), "at least 2");
}

TEST(PaperTables, OutputHasThePapersFiguresBeside) {
  std::vector<MeasuredRow> rows;
  for (const TableRow& row : PaperTable(3)) rows.push_back({row, {}, {}});
  PerplexityResult result;
  result.loss = std::log(17.0);
  result.blocks_read = 40;
  result.blocks_chosen = 100;
  rows[3].books = result;
  const std::string text = WriteTable(3, rows, TableFormat::kText);
  EXPECT_NE(text.find("17.00"), std::string::npos) << text;
  EXPECT_NE(text.find("16.43"), std::string::npos) << text;
  EXPECT_NE(text.find("60%"), std::string::npos) << text;
  EXPECT_NE(text.find("57%"), std::string::npos) << text;
  EXPECT_EQ(text.find("arXiv"), std::string::npos) << text;
  const std::string markdown = WriteTable(3, rows, TableFormat::kMarkdown);
  EXPECT_EQ(markdown.rfind("| what", 0), 0u);
  EXPECT_NE(markdown.find("\n|---|"), std::string::npos);
  const auto json = nlohmann::json::parse(WriteTable(3, rows, TableFormat::kJson));
  EXPECT_EQ(json["rows"].size(), 6u);
  EXPECT_NEAR(json["rows"][3]["books"]["skipped"].get<double>(), 0.6, 1e-12);
  EXPECT_EQ(json["rows"][3]["paper_pg19"], 16.43);
  EXPECT_FALSE(json["rows"][0].contains("books"));
}

}  // namespace
}  // namespace cairn
