// Batches: landmarks at their places, each window once an epoch, any step again, ranks apart.
#include "data/batches.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "io/file.h"
#include "test_files.h"

#include <nlohmann/json.hpp>

namespace cairn {
namespace {

constexpr int32_t kLandmark = 60000;

// Token i of the dataset is i, so that a batch shows where it comes from.
struct CountingData {
  ScratchDirectory scratch;
  std::shared_ptr<const TokenDataset> data;
  explicit CountingData(size_t tokens, const std::vector<uint64_t>& starts = {0}) {
    std::vector<int32_t> ids(tokens);
    std::iota(ids.begin(), ids.end(), 0);
    const ShardHeader header = WriteTokenShard(scratch / "t.tokens", {65000, 0x2a, ids, starts});
    const nlohmann::json shard = {{"file", "t.tokens"},
                                  {"tokens", tokens},
                                  {"documents", starts.size()},
                                  {"checksum", fmt::format("{:016x}", header.body_checksum)}};
    const nlohmann::json manifest = {
        {"format", "cairn-tokens"},
        {"version", 1},
        {"tokenizer", {{"fingerprint", "000000000000002a"}, {"kind", "test"}, {"vocab_size", 65000}}},
        {"splits",
         {{"train",
           {{"tokens", tokens},
            {"documents", starts.size()},
            {"shards", {shard}},
            {"sources", nlohmann::json::array()}}}}}};
    WriteFileAtomically(scratch / kManifestName, manifest.dump());
    data = TokenDataset::Open(scratch.path());
  }
};

BatchOptions SmallOptions() {
  BatchOptions options;
  options.context_length = 12;
  options.block_length = 3;
  options.landmark_id = kLandmark;
  options.batch_size = 2;
  options.seed = 9;
  options.shift_windows = false;
  return options;
}

TEST(FillRow, ClosedForm) {
  BatchOptions options = SmallOptions();
  options.context_length = 10;
  EXPECT_EQ(OrdinaryTokens(10, 3), 8u);
  const std::vector<int32_t> tokens = {10, 11, 12, 13, 14, 15, 16, 17, 18};
  std::vector<int32_t> inputs(10), targets(10);
  EXPECT_EQ(FillRow(tokens, options, inputs, targets), 8u);
  EXPECT_EQ(inputs, (std::vector<int32_t>{10, 11, 12, kLandmark, 13, 14, 15, kLandmark, 16, 17}));
  EXPECT_EQ(targets, (std::vector<int32_t>{11, 12, 13, -1, 14, 15, 16, -1, 17, 18}));
  // A row that is not full.
  EXPECT_EQ(FillRow(std::span(tokens).first(5), options, inputs, targets), 4u);
  EXPECT_EQ(inputs, (std::vector<int32_t>{10, 11, 12, kLandmark, 13, 14, 0, kLandmark, 0, 0}));
  EXPECT_EQ(targets, (std::vector<int32_t>{11, 12, 13, -1, 14, -1, -1, -1, -1, -1}));
  EXPECT_EQ(FillRow({}, options, inputs, targets), 0u);
  options.block_length = 0;
  EXPECT_EQ(OrdinaryTokens(10, 0), 10u);
  EXPECT_EQ(FillRow(tokens, options, inputs, targets), 8u);
  EXPECT_EQ(inputs, (std::vector<int32_t>{10, 11, 12, 13, 14, 15, 16, 17, 18, 0}));
}

TEST(FillRow, LandmarksStandWhereTheMethodSays) {
  for (size_t block = 1; block < 7; ++block) {
    for (size_t context = 2; context < 30; ++context) {
      BatchOptions options = SmallOptions();
      options.block_length = block;
      std::vector<int32_t> tokens(OrdinaryTokens(context, block) + 1), inputs(context), targets(context);
      std::iota(tokens.begin(), tokens.end(), 100);
      ASSERT_EQ(FillRow(tokens, options, inputs, targets), tokens.size() - 1);
      for (size_t i = 0; i < context; ++i) {
        const bool landmark = i >= block && (i - block) % (block + 1) == 0;  // L, 2L + 1, ...
        ASSERT_EQ(inputs[i] == kLandmark, landmark);
        ASSERT_EQ(targets[i], landmark ? -1 : inputs[i] + 1);
      }
    }
  }
}

TEST(PermutationTest, IsOneAndDependsOnTheSeed) {
  for (const uint64_t size : {1u, 2u, 3u, 4u, 5u, 17u, 256u, 1000u}) {
    std::set<uint64_t> seen;
    const Permutation permutation(size, 1);
    for (uint64_t i = 0; i < size; ++i) seen.insert(permutation(i));
    EXPECT_EQ(seen.size(), size);
    EXPECT_LT(*seen.rbegin(), size);
  }
  const Permutation a(1000, 1), b(1000, 2);
  int same = 0, fixed = 0;
  for (uint64_t i = 0; i < 1000; ++i) same += a(i) == b(i), fixed += a(i) == i;
  EXPECT_LT(same, 15);
  EXPECT_LT(fixed, 15);
  EXPECT_LT(Permutation(uint64_t{1} << 62, 3)(12345), uint64_t{1} << 62);
}

TEST(BatchMakerTest, EveryWindowOnceAnEpoch) {
  const CountingData counting(1 + 9 * 21 + 5);
  BatchOptions options = SmallOptions();  // 9 ordinary tokens a row
  options.batch_size = 3;
  BatchMaker maker({counting.data}, options);
  ASSERT_EQ(maker.windows_per_epoch(), 21u);
  Batch batch;
  std::vector<std::vector<int32_t>> orders;
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::set<int32_t> firsts;
    orders.emplace_back();
    for (int step = 0; step < 7; ++step) {
      maker.Next(batch);
      EXPECT_EQ(batch.scored, 27u);
      for (size_t row = 0; row < 3; ++row) {
        const int32_t* input = batch.input_ids.data() + row * 12;
        const int32_t* target = batch.targets.data() + row * 12;
        EXPECT_EQ(input[0] % 9, 0);
        firsts.insert(input[0]);
        orders.back().push_back(input[0]);
        EXPECT_EQ(target[10], input[0] + 9);  // the last ordinary token predicts the next window's first
        EXPECT_EQ(input[11], kLandmark);
        EXPECT_EQ(target[11], kIgnoredTarget);
      }
    }
    EXPECT_EQ(firsts.size(), 21u);
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_EQ(maker.step(), 21u);
  EXPECT_DOUBLE_EQ(maker.EpochOf(21), 3.0);
}

TEST(BatchMakerTest, AnyStepAgainAndRanksApart) {
  const CountingData counting(1000);
  BatchOptions options = SmallOptions();
  options.batch_size = 4;
  options.shift_windows = true;
  const BatchMaker whole({counting.data}, options);
  options.batch_size = 2;
  options.world = 2;
  const BatchMaker first({counting.data}, options);
  options.rank = 1;
  BatchMaker second({counting.data}, options);
  for (const uint64_t step : {0u, 5u, 57u, 3u}) {
    Batch all, a, b;
    whole.Fill(step, all);
    first.Fill(step, a);
    second.Seek(step);
    second.Next(b);
    std::vector<int32_t> joined = a.input_ids;
    joined.insert(joined.end(), b.input_ids.begin(), b.input_ids.end());
    EXPECT_EQ(joined, all.input_ids);
    EXPECT_EQ(a.scored + b.scored, all.scored);
  }
  options.seed = 10;
  Batch a, b;
  second.Fill(0, a);
  BatchMaker({counting.data}, options).Fill(0, b);
  EXPECT_NE(a.input_ids, b.input_ids);
}

TEST(BatchMakerTest, ShiftedWindowsStayWholeAndDiffer) {
  const CountingData counting(1 + 9 * 20 + 4);
  BatchOptions options = SmallOptions();
  options.batch_size = 1;
  options.shift_windows = true;
  const BatchMaker maker({counting.data}, options);
  const uint64_t windows = maker.windows_per_epoch();
  EXPECT_EQ(windows, 19u);
  std::set<int32_t> shifts;
  Batch batch;
  for (uint64_t epoch = 0; epoch < 30; ++epoch) {
    std::set<int32_t> of_epoch, firsts;
    for (uint64_t i = 0; i < windows; ++i) {
      maker.Fill(epoch * windows + i, batch);
      ASSERT_EQ(batch.scored, 9u);
      of_epoch.insert(batch.input_ids[0] % 9);
      firsts.insert(batch.input_ids[0]);
    }
    ASSERT_EQ(of_epoch.size(), 1u);
    ASSERT_EQ(firsts.size(), windows);
    shifts.insert(*of_epoch.begin());
  }
  EXPECT_GE(shifts.size(), 6u);
  // With a single window the shift is limited by what is left over.
  const CountingData tiny(12);
  const BatchMaker single({tiny.data}, options);
  EXPECT_EQ(single.windows_per_epoch(), 1u);
  for (uint64_t step = 0; step < 20; ++step) {
    single.Fill(step, batch);
    EXPECT_EQ(batch.scored, 9u);
    EXPECT_LE(batch.input_ids[0], 2);
  }
}

TEST(BatchMakerTest, SeparateDocumentsAndSeveralDatasets) {
  // Documents of 20, 1, 9 and 10 tokens: 3 (19 predicted by 9), 0, 1 and 1 windows.
  const CountingData counting(40, {0, 20, 21, 30});
  const CountingData other(1 + 9);
  BatchOptions options = SmallOptions();
  options.batch_size = 1;
  options.documents = DocumentHandling::kSeparate;
  const BatchMaker maker({counting.data, other.data}, options);
  ASSERT_EQ(maker.windows_per_epoch(), 6u);
  std::map<int32_t, size_t> scored;  // by first token
  Batch batch;
  size_t total = 0;
  for (uint64_t step = 0; step < 6; ++step) {
    maker.Fill(step, batch);
    total += batch.scored;
    scored[batch.input_ids[0]] += batch.scored;
  }
  EXPECT_EQ(scored, (std::map<int32_t, size_t>{{0, 18}, {9, 9}, {18, 1}, {21, 8}, {30, 9}}));  // 0: of both datasets
  EXPECT_EQ(total, 19u + 8 + 9 + 9);
}

TEST(SequentialBatchesTest, EveryTokenIsPredictedOnce) {
  const CountingData counting(1 + 9 * 5 + 4);
  for (const size_t world : {1u, 2u, 3u}) {
    std::multiset<int32_t> predicted;
    size_t scored = 0;
    for (size_t rank = 0; rank < world; ++rank) {
      BatchOptions options = SmallOptions();
      options.world = world;
      options.rank = rank;
      SequentialBatches batches({counting.data}, options);
      EXPECT_EQ(batches.batch_count(), (6 + 2 * world - 1) / (2 * world));
      Batch batch;
      uint64_t count = 0;
      for (; batches.Next(batch); ++count) {
        scored += batch.scored;
        for (size_t i = 0; i < batch.targets.size(); ++i) {
          if (batch.targets[i] == kIgnoredTarget) continue;
          predicted.insert(batch.targets[i]);
          EXPECT_EQ(batch.targets[i], batch.input_ids[i] + 1);
        }
      }
      EXPECT_EQ(count, batches.batch_count());
      batches.Reset();
      EXPECT_TRUE(batches.Next(batch));
    }
    EXPECT_EQ(scored, 49u);
    ASSERT_EQ(predicted.size(), 49u);
    EXPECT_EQ(std::set<int32_t>(predicted.begin(), predicted.end()).size(), 49u);
    EXPECT_EQ(*predicted.begin(), 1);
    EXPECT_EQ(*predicted.rbegin(), 49);
  }
}

TEST(BatchMakerTest, Complains) {
  const CountingData counting(9);
  const auto bad = [&](const std::function<void(BatchOptions&)>& change) {
    BatchOptions options = SmallOptions();
    options.context_length = 4;
    EXPECT_NO_THROW(BatchMaker({counting.data}, options));
    change(options);
    EXPECT_THROW(BatchMaker({counting.data}, options), Error);
  };
  bad([](BatchOptions& o) { o.context_length = 12; });  // 9 tokens are one too few
  bad([](BatchOptions& o) { o.context_length = 1; });
  bad([](BatchOptions& o) { o.batch_size = 0; });
  bad([](BatchOptions& o) { o.landmark_id = -1; });
  bad([](BatchOptions& o) { o.rank = 1; });
  bad([](BatchOptions& o) { o.world = 0; });
  EXPECT_THROW(BatchMaker({}, SmallOptions()), Error);
}

}  // namespace
}  // namespace cairn
