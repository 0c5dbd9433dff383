// The pretrained stories15M in the training engine: the log-probabilities that the authors' code gives for it with
// landmarks inserted, and its loss as an ordinary model.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "formats/model_source.h"
#include "io/safetensors.h"
#include "tests/test_files.h"
#include "tokenizer/tokenizer.h"
#include "train/engine.h"
#include "train/model_growth.h"

namespace cairn {
namespace {

bool Unpack(const std::filesystem::path& from, const std::filesystem::path& to) {
  return std::system(("xz -dc '" + from.string() + "' > '" + to.string() + "' 2> /dev/null").c_str()) == 0;
}

TEST(Stories, TrainingForwardGivesTheGoldenLogProbabilities) {
  CAIRN_NEED_SHARED(shared);
  const ScratchDirectory scratch;
  if (!Unpack(shared / "assets/stories15M.bin.xz", scratch / "stories15M.bin")) GTEST_SKIP() << "xz is missing";
  const auto source = OpenModel(scratch / "stories15M.bin");
  const auto tokenizer = LoadTokenizer(shared / "assets/tokenizer.model");
  const SafetensorsFile golden(shared / "golden/stories15M_one_chunk.safetensors");
  const std::string section =
      R"({"attention": "landmark", "block_length": )" + golden.MetadataText("block_length") + "}";
  const GrownModel grown = GrowModel(*source, tokenizer, section, "test");
  EXPECT_EQ(grown.config.landmark.landmark_id, golden.MetadataInteger("landmark_id", 0, 1 << 20));
  ASSERT_EQ(grown.new_tokens.size(), 1u);
  const ParameterLayout layout(grown.config);
  Parameters weights(layout);
  LoadWeights(*source, grown.config, grown.new_tokens, weights);

  std::vector<int32_t> ids;
  for (const int64_t id : golden.ReadIntegers("input_ids")) ids.push_back(static_cast<int32_t>(id));
  Engine engine(grown.config, layout, {.rows = 1, .time = ids.size()});
  const size_t vocab = grown.config.vocab_size;
  std::vector<float> logits(ids.size() * vocab);
  engine.Logits(weights, {.rows = 1, .time = ids.size(), .input_ids = ids.data()}, logits.data());

  // The first chunk is the training pass; later ones retrieve from a memory.
  const int64_t first_chunk = golden.ReadIntegers("chunk_ends").at(0);
  const std::vector<int64_t> rows = golden.ReadIntegers("next_token_rows");
  const Tensor expected = golden.ReadFloats("next_token_logprob");
  const int32_t landmark = static_cast<int32_t>(grown.config.landmark.landmark_id);
  size_t compared = 0;
  for (size_t i = 0; i < rows.size() && rows[i] < first_chunk; ++i) {
    const auto row = static_cast<size_t>(rows[i]);
    size_t next = row + 1;
    while (ids[next] == landmark) ++next;
    const float* l = &logits[row * vocab];
    double sum = 0;
    for (size_t j = 0; j + 1 < vocab; ++j) sum += std::exp(static_cast<double>(l[j]));  // without the landmark
    EXPECT_NEAR(static_cast<double>(l[ids[next]]) - std::log(sum), expected[i], 2e-3) << "row " << row;
    ++compared;
  }
  EXPECT_GT(compared, 100u);

  // Every 16th logit of some rows.
  const std::vector<int64_t> logit_rows = golden.ReadIntegers("logit_rows");
  const Tensor some = golden.ReadFloats("logits");
  for (size_t i = 0; i < logit_rows.size() && logit_rows[i] < first_chunk; ++i) {
    for (size_t j = 0; j < some.shape()[1]; ++j) {
      ASSERT_NEAR(logits[static_cast<size_t>(logit_rows[i]) * vocab + 16 * j], some[i * some.shape()[1] + j], 2e-3);
    }
  }
}

TEST(Stories, KnowsItsStories) {
  // With full attention the model predicts text of its own kind far better than chance (log 32000 = 10.4).
  CAIRN_NEED_SHARED(shared);
  const ScratchDirectory scratch;
  if (!Unpack(shared / "assets/stories15M.bin.xz", scratch / "stories15M.bin") ||
      !Unpack(shared / "assets/tinystories-sample.txt.xz", scratch / "sample.txt")) {
    GTEST_SKIP() << "xz is missing";
  }
  const auto source = OpenModel(scratch / "stories15M.bin");
  const auto tokenizer = LoadTokenizer(shared / "assets/tokenizer.model");
  const ModelConfig config = GrowModel(*source, tokenizer, std::nullopt, "test").config;
  const ParameterLayout layout(config);
  Parameters weights(layout);
  LoadWeights(*source, config, {}, weights);
  const std::string text = ReadTextFile(scratch / "sample.txt");
  std::vector<int32_t> ids{1};  // beginning of sequence
  const std::vector<int32_t> story = tokenizer->Encode(text.substr(0, 4000));
  ids.insert(ids.end(), story.begin(), story.end());
  ids.resize(257);
  Engine engine(config, layout, {.rows = 1, .time = 256});
  const double loss =
      engine.Evaluate(weights, {.rows = 1, .time = 256, .input_ids = ids.data(), .targets = ids.data() + 1});
  EXPECT_LT(loss / 256, 2.0);
}

}  // namespace
}  // namespace cairn
