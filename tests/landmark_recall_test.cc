// How much the approximate indexes find among landmarks of a trained model that has read stories.
#include <gtest/gtest.h>

#include <algorithm>

#include "bench/random_model.h"
#include "formats/model_tokenizer.h"
#include "infer/session.h"
#include "io/file.h"
#include "io/xz.h"
#include "memory/landmark_index.h"
#include "test_files.h"

namespace cairn {
namespace {

struct Searched {
  LandmarkPanels keys;
  std::vector<float> queries;
};

// Landmarks of every layer but the first, and the queries of the last chunk.
std::vector<Searched> Read(const std::shared_ptr<const InferenceModel>& model, std::span<const int32_t> ids,
                           SessionOptions options) {
  options.index = IndexKind::kExact;
  options.record_queries = true;
  Session session(model, options);
  session.Append(ids);
  const ModelConfig& config = model->config();
  const size_t group = config.num_attention_heads / config.num_key_value_heads;
  std::vector<Searched> all;
  for (size_t layer = std::max<size_t>(1, config.landmark.local_layers); layer < config.num_hidden_layers; ++layer) {
    const std::vector<float>& queries = session.LastQueries()[layer];
    for (size_t h = 0; h < config.num_key_value_heads; ++h) {
      Searched one{session.Landmarks(layer, h).keys(), {}};
      for (size_t at = h * group * config.head_dim; at < queries.size();
           at += config.num_attention_heads * config.head_dim) {
        one.queries.insert(one.queries.end(), queries.begin() + static_cast<ptrdiff_t>(at),
                           queries.begin() + static_cast<ptrdiff_t>(at + group * config.head_dim));
      }
      all.push_back(std::move(one));
    }
  }
  return all;
}

// Part of the four best that an index finds, `together` queries at a time.
double Recall(const LandmarkIndex& index, const std::vector<float>& queries, size_t together) {
  const size_t dim = index.keys().dim();
  const size_t count = queries.size() / dim;
  const auto search = [&](const LandmarkIndex& in, size_t first, size_t some) {
    std::vector<float> scores(some * 4);
    std::vector<int32_t> blocks(some * 4, -1);
    std::vector<BestBlocks> best(some);
    for (size_t q = 0; q < some; ++q) best[q].Reset(4, &scores[q * 4], &blocks[q * 4]);
    in.Search(0, in.size(), some, &queries[first * dim], best.data());
    return blocks;
  };
  const auto exact = MakeExactIndex(index.keys());
  size_t hits = 0;
  for (size_t first = 0; first < count; first += together) {
    const size_t some = std::min(together, count - first);
    const auto best = search(*exact, first, some), found = search(index, first, some);
    for (size_t q = 0; q < some; ++q) {
      const auto begin = found.begin() + static_cast<ptrdiff_t>(q * 4);
      for (size_t i = 0; i < 4; ++i) hits += std::find(begin, begin + 4, best[q * 4 + i]) != begin + 4;
    }
  }
  return static_cast<double>(hits) / static_cast<double>(4 * count);
}

TEST(LandmarkRecall, OnLandmarksOfStories) {
  CAIRN_NEED_SHARED(shared);
  const ScratchDirectory scratch;
  UnpackXz(shared / "assets/stories15M.bin.xz", scratch / "stories15M.bin");
  UnpackXz(shared / "assets/tinystories-sample.txt.xz", scratch / "stories.txt");
  const auto model = InferenceModel::Load(LendLandmark(OpenModel(scratch / "stories15M.bin"), 5), WeightKind::kInt8);
  std::vector<int32_t> ids =
      LoadTokenizer(shared / "assets/tokenizer.bin")->Encode(ReadTextFile(scratch / "stories.txt"));
  std::erase(ids, static_cast<int32_t>(model->config().landmark.landmark_id));
  ids.resize(std::min<size_t>(ids.size(), 22000));
  double hierarchical[2] = {}, ivf = 0;
  SessionOptions options;
  options.chunk_length = 500;
  const std::vector<Searched> heads = Read(model, ids, options);
  for (const Searched& head : heads) {
    ASSERT_GT(head.keys.size(), 4096u);
    const double part = 1.0 / static_cast<double>(heads.size());
    const auto index = MakeHierarchicalIndex(head.keys);
    hierarchical[0] += part * Recall(*index, head.queries, 1);
    hierarchical[1] += part * Recall(*index, head.queries, 250);
    if (HasIvf()) ivf += part * Recall(*MakeIvfIndex(head.keys), head.queries, 250);
  }
  EXPECT_GE(hierarchical[0], 0.98);
  EXPECT_GE(hierarchical[1], 0.98);
  if (HasIvf()) {
    EXPECT_GE(ivf, 0.98);
  }
}

// Landmarks that were taught to be found have longer tails than those of a model that was not.
TEST(LandmarkRecall, OnLandmarksOfTheBundledModel) {
  CAIRN_NEED_SHARED(shared);
  const ScratchDirectory scratch;
  UnpackXz(shared / "assets/wikitext2-test.txt.xz", scratch / "text.txt");
  const std::filesystem::path path = std::filesystem::path(CAIRN_SOURCE_DIR) / "models/cairn-tiny";
  const auto model = InferenceModel::Load(OpenModel(path));
  std::vector<int32_t> ids = LoadModelTokenizer(path)->Encode(ReadTextFile(scratch / "text.txt"));
  ids.resize(std::min<size_t>(ids.size(), 120'000));
  for (const Searched& head : Read(model, ids, DefaultSessionOptions(model->config()))) {
    ASSERT_GT(head.keys.size(), 2048u);
    const auto index = MakeHierarchicalIndex(head.keys);
    EXPECT_GE(Recall(*index, head.queries, 1), 0.98);
    EXPECT_GE(Recall(*index, head.queries, 250), 0.98);
  }
}

}  // namespace
}  // namespace cairn
