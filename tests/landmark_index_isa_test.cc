// The indexes of landmarks: each against a list of keys over random operations, int8 bit for bit against the exact scan
// with keys made to mislead it, and how much the approximate ones find.
#include "memory/landmark_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/random.h"
#include "tensor/convert.h"

namespace cairn {
namespace {

using Key = std::vector<float>;

struct Found {
  std::vector<std::vector<float>> scores;
  std::vector<std::vector<int32_t>> blocks;

  bool operator==(const Found&) const = default;
};

std::vector<IndexKind> Kinds() {
  std::vector<IndexKind> kinds = {IndexKind::kExact, IndexKind::kInt8, IndexKind::kHierarchical};
  if (HasIvf()) kinds.push_back(IndexKind::kIvf);
  return kinds;
}

Found Search(const LandmarkIndex& index, size_t first, size_t last, size_t k, const std::vector<float>& queries) {
  const size_t count = queries.size() / index.keys().dim();
  Found found;
  found.scores.assign(count, std::vector<float>(k));
  found.blocks.assign(count, std::vector<int32_t>(k, -1));
  std::vector<BestBlocks> best(count);
  for (size_t q = 0; q < count; ++q) best[q].Reset(k, found.scores[q].data(), found.blocks[q].data());
  index.Search(first, last, count, queries.data(), best.data());
  for (size_t q = 0; q < count; ++q) {
    found.scores[q].resize(best[q].count());
    found.blocks[q].resize(best[q].count());
  }
  return found;
}

double Score(const Key& key, const float* query) {
  double sum = 0;
  for (size_t i = 0; i < key.size(); ++i) sum += static_cast<double>(key[i]) * query[i];
  return sum;
}

// As an index stores it.
Key Stored(Key key, bool half) {
  for (float& x : key) {
    if (half) x = HalfToFloat(FloatToHalf(x));
  }
  return key;
}

std::vector<float> Normals(Random& random, size_t count) {
  std::vector<float> values(count);
  for (float& x : values) x = static_cast<float>(random.Normal());
  return values;
}

// Keys as real ones are: much in common, slowly changing topics, some large dimensions.
class ClusteredKeys {
 public:
  ClusteredKeys(size_t dim, uint64_t seed) : random_(seed), common_(Normals(random_, dim)) {
    for (float& x : common_) x *= 4;
    for (size_t c = 0; c < 40; ++c) topics_.push_back(Normals(random_, dim));
    topics_[0][dim / 2] *= 8;
  }
  Key Next() {
    if (random_.Below(20) == 0) topic_ = random_.Below(topics_.size());
    Key key = Normals(random_, common_.size());
    for (size_t i = 0; i < key.size(); ++i) key[i] = common_[i] + topics_[topic_][i] + 0.5f * key[i];
    return key;
  }
  std::vector<float> Queries(size_t count) {
    std::vector<float> queries;
    for (size_t q = 0; q < count; ++q) {
      const Key& topic = topics_[random_.Below(topics_.size())];
      for (const float x : topic) queries.push_back(x + 0.7f * static_cast<float>(random_.Normal()));
    }
    return queries;
  }

 private:
  Random random_;
  Key common_;
  std::vector<Key> topics_;
  size_t topic_ = 0;
};

TEST(LandmarkIndex, NamesGoBothWays) {
  for (const auto kind :
       {IndexKind::kExact, IndexKind::kInt8, IndexKind::kHierarchical, IndexKind::kIvf, IndexKind::kAuto}) {
    EXPECT_EQ(IndexKindNamed(NameOf(kind)), kind);
  }
  EXPECT_EQ(IndexKindNamed("faiss"), std::nullopt);
}

// Every operation on an index and on a list of keys. The best of the list in f64 are what the index must find: all of
// them for the kinds that promise it; from the others, blocks of the range with their true scores.
void RandomOperations(IndexKind kind, size_t dim, bool half, size_t step, uint64_t seed) {
  SCOPED_TRACE(::testing::Message() << NameOf(kind) << " dim " << dim << " half " << half << " seed " << seed);
  Random random(seed);
  ClusteredKeys source(dim, seed + 100);
  std::unique_ptr<LandmarkIndex> index = LandmarkIndex::Make(kind, dim, half);
  std::vector<Key> keys;
  for (int round = 0; round < 40; ++round) {
    switch (random.Below(8)) {
      default:
        for (size_t i = random.Below(step); i > 0; --i) {
          keys.push_back(source.Next());
          index->Add(keys.back().data());
          keys.back() = Stored(keys.back(), half);
        }
        break;
      case 5:
        keys.resize(keys.size() - random.Below(std::min(keys.size(), step) + 1));
        index->Truncate(keys.size());
        break;
      case 6: {
        const size_t count = random.Below(std::min(keys.size(), step) + 1);
        keys.erase(keys.begin(), keys.begin() + static_cast<ptrdiff_t>(count));
        index->EraseFront(count);
        break;
      }
      case 7:
        index = index->Clone();
        break;
    }
    ASSERT_EQ(index->size(), keys.size());
    if (keys.empty()) continue;
    const size_t b = random.Below(keys.size());
    Key read(dim);
    index->keys().Read(b, read.data());
    ASSERT_EQ(read, keys[b]);
    const bool all = random.Below(2) == 0;
    const size_t first = all ? 0 : random.Below(keys.size());
    const size_t last = all ? keys.size() : first + random.Below(keys.size() - first + 1);
    const size_t k = 1 + random.Below(6);
    const std::vector<float> queries = source.Queries(random.Below(3) == 0 ? 9 : 1);
    const Found found = Search(*index, first, last, k, queries);
    for (size_t q = 0; q < found.blocks.size(); ++q) {
      const float* query = &queries[q * dim];
      std::vector<double> scores;
      for (size_t i = first; i < last; ++i) scores.push_back(Score(keys[i], query));
      std::sort(scores.begin(), scores.end(), std::greater<>());
      ASSERT_EQ(found.blocks[q].size(), std::min(k, last - first));
      for (size_t i = 0; i < found.blocks[q].size(); ++i) {
        const auto block = static_cast<size_t>(found.blocks[q][i]);
        ASSERT_GE(block, first);
        ASSERT_LT(block, last);
        ASSERT_EQ(std::count(found.blocks[q].begin(), found.blocks[q].end(), found.blocks[q][i]), 1);
        const double truth = Score(keys[block], query);
        ASSERT_NEAR(found.scores[q][i], truth, 1e-5 * (100 + std::abs(truth)));
        if (i > 0) {
          ASSERT_GE(found.scores[q][i - 1], found.scores[q][i]);
        }
        if (kind == IndexKind::kExact || kind == IndexKind::kInt8) {
          ASSERT_NEAR(truth, scores[i], 1e-5 * (100 + std::abs(scores[i])));
        }
      }
    }
  }
}

TEST(LandmarkIndex, AgreesWithAListOfKeys) {
  for (const IndexKind kind : Kinds()) {
    const bool few = kind == IndexKind::kExact || kind == IndexKind::kInt8;
    for (uint64_t seed = 0; seed < (few ? 6 : 2); ++seed) {
      RandomOperations(kind, seed % 2 == 0 ? 16 : 10, seed % 3 != 0, few ? 200 : 1500, seed);
    }
  }
}

// Whether int8 finds the very blocks and scores that the exact scan finds.
void ExpectSame(const std::vector<Key>& keys, bool half, const std::vector<float>& queries, size_t k) {
  const size_t dim = keys[0].size();
  const auto exact = LandmarkIndex::Make(IndexKind::kExact, dim, half);
  const auto int8 = LandmarkIndex::Make(IndexKind::kInt8, dim, half);
  for (const Key& key : keys) {
    exact->Add(key.data());
    int8->Add(key.data());
  }
  EXPECT_TRUE(Search(*exact, 0, keys.size(), k, queries) == Search(*int8, 0, keys.size(), k, queries));
  for (size_t q = 0; q < queries.size() / dim; ++q) {
    const std::vector<float> one(queries.begin() + static_cast<ptrdiff_t>(q * dim),
                                 queries.begin() + static_cast<ptrdiff_t>((q + 1) * dim));
    const size_t first = q * 17 % keys.size();
    EXPECT_TRUE(Search(*exact, first, keys.size() - 3, k, one) == Search(*int8, first, keys.size() - 3, k, one));
  }
}

// Attention weighs blocks by these scores, so they may not depend on who found a block.
TEST(ApproximateIndex, GivesTheVeryScoresOfTheScan) {
  for (const bool half : {false, true}) {
    for (const size_t dim : {24, 64}) {
      ClusteredKeys source(dim, 5 + dim);
      const auto exact = LandmarkIndex::Make(IndexKind::kExact, dim, half);
      const auto index = LandmarkIndex::Make(IndexKind::kHierarchical, dim, half);
      for (size_t i = 0; i < 3000; ++i) {
        const Key key = source.Next();
        exact->Add(key.data());
        index->Add(key.data());
      }
      exact->EraseFront(77);
      index->EraseFront(77);
      for (const size_t count : {1, 2, 5}) {
        const std::vector<float> queries = source.Queries(count);
        const Found all = Search(*exact, 0, exact->size(), exact->size(), queries);
        const Found found = Search(*index, 0, index->size(), 20, queries);
        for (size_t q = 0; q < count; ++q) {
          ASSERT_EQ(found.blocks[q].size(), 20u);
          for (size_t i = 0; i < 20; ++i) {
            const auto at = std::find(all.blocks[q].begin(), all.blocks[q].end(), found.blocks[q][i]);
            ASSERT_NE(at, all.blocks[q].end());
            EXPECT_EQ(found.scores[q][i], all.scores[q][static_cast<size_t>(at - all.blocks[q].begin())]);
          }
        }
      }
    }
  }
}

TEST(Int8Index, IsTheExactScanForManyShapes) {
  Random random(1);
  for (const size_t dim : {1, 2, 3, 7, 48, 64, 100, 128}) {
    for (const bool half : {false, true}) {
      ClusteredKeys source(dim, dim);
      std::vector<Key> keys;
      for (size_t i = 0; i < 700; ++i) keys.push_back(source.Next());
      for (const size_t count : {1, 2, 5, 30, 61}) ExpectSame(keys, half, source.Queries(count), 4);
      ExpectSame(keys, half, source.Queries(3), 1);
      ExpectSame(keys, half, source.Queries(3), 40);
      ExpectSame(keys, half, source.Queries(3), 800);
    }
  }
}

TEST(Int8Index, TakesTheEarlierOfEqualKeys) {
  // Few different keys, many times; the best of them first at block 70.
  const size_t dim = 24;
  Random random(2);
  std::vector<Key> different;
  for (size_t i = 0; i < 5; ++i) different.push_back(Normals(random, dim));
  std::vector<float> query = different[4];
  std::vector<Key> keys;
  for (size_t i = 0; i < 500; ++i) keys.push_back(different[i < 70 ? i % 4 : i % 5]);
  for (const bool half : {false, true}) {
    ExpectSame(keys, half, query, 3);
    const auto index = LandmarkIndex::Make(IndexKind::kInt8, dim, half);
    for (const Key& key : keys) index->Add(key.data());
    EXPECT_EQ(Search(*index, 0, keys.size(), 3, query).blocks[0], (std::vector<int32_t>{74, 79, 84}));
  }
}

TEST(Int8Index, IsNotMisledByRounding) {
  // Scores that differ by less than a byte can tell, in either order, and by an ulp or none at all.
  const size_t dim = 40;
  Random random(3);
  for (int round = 0; round < 10; ++round) {
    const Key base = Normals(random, dim);
    std::vector<Key> keys;
    for (size_t i = 0; i < 300; ++i) {
      Key key = base;
      const size_t at = random.Below(dim);
      key[at] += 1e-6f * static_cast<float>(random.Normal()) * (round < 5 ? 1.0f : 1000.0f);
      keys.push_back(key);
    }
    ExpectSame(keys, false, Normals(random, 4 * dim), 4);
    ExpectSame(keys, true, Normals(random, 4 * dim), 4);
  }
}

TEST(Int8Index, StandsOutliersAndStrangeKeys) {
  const size_t dim = 32;
  Random random(4);
  for (const bool half : {false, true}) {
    std::vector<Key> keys;
    for (size_t i = 0; i < 400; ++i) {
      Key key = Normals(random, dim);
      if (i % 7 == 0) key[3] = 500;            // a large dimension
      if (i % 50 == 0) key.assign(dim, 0.0f);  // nothing
      if (i % 60 == 1) std::fill(key.begin(), key.end(), 1e-7f);
      if (i == 130) std::fill(key.begin(), key.end(), half ? 6e4f : 1e20f);
      if (i >= 200 && i < 264) key = keys[100];  // a panel without any spread
      keys.push_back(key);
    }
    for (const float size : {1.0f, 1e-12f, 1e12f}) {
      std::vector<float> queries = Normals(random, 6 * dim);
      for (float& x : queries) x *= size;
      queries[3] *= 1000;
      ExpectSame(keys, half, queries, 4);
    }
    ExpectSame(keys, half, std::vector<float>(dim, 0.0f), 4);
  }
}

TEST(Int8Index, ReadsFewerBytes) {
  const auto index = LandmarkIndex::Make(IndexKind::kInt8, 64, true);
  const auto exact = LandmarkIndex::Make(IndexKind::kExact, 64, true);
  ClusteredKeys source(64, 1);
  for (size_t i = 0; i < 2048; ++i) {
    const Key key = source.Next();
    index->Add(key.data());
    exact->Add(key.data());
  }
  EXPECT_GT(index->bytes(), exact->bytes());
  EXPECT_LT(index->bytes(), exact->bytes() * 17 / 10);
}

double Recall(const LandmarkIndex& index, const std::vector<float>& queries) {
  const auto exact = MakeExactIndex(LandmarkPanels(index.keys()));
  const Found found = Search(index, 0, index.size(), 4, queries);
  const Found best = Search(*exact, 0, index.size(), 4, queries);
  double hits = 0;
  for (size_t q = 0; q < best.blocks.size(); ++q) {
    for (const int32_t b : best.blocks[q]) hits += std::count(found.blocks[q].begin(), found.blocks[q].end(), b) > 0;
  }
  return hits / (4 * static_cast<double>(best.blocks.size()));
}

TEST(ApproximateIndex, FindsNearlyAllOfClusteredKeys) {
  for (const IndexKind kind : Kinds()) {
    ClusteredKeys source(32, 5);
    const auto index = LandmarkIndex::Make(kind, 32, true);
    for (size_t i = 0; i < 12000; ++i) index->Add(source.Next().data());
    const double recall = Recall(*index, source.Queries(100));
    EXPECT_GE(recall, kind <= IndexKind::kInt8 ? 1.0 : 0.98) << NameOf(kind);
    // Also after the front has gone, and the end.
    index->EraseFront(1500);
    index->Truncate(9000);
    EXPECT_GE(Recall(*index, source.Queries(100)), kind <= IndexKind::kInt8 ? 1.0 : 0.98) << NameOf(kind);
  }
}

// Trained landmarks have long tails: some keys are hundreds of deviations from the mean, and those are the wanted ones.
TEST(ApproximateIndex, FindsKeysFarFromAllOthers) {
  Random random(11);
  constexpr size_t kDim = 64;
  const auto index = LandmarkIndex::Make(IndexKind::kHierarchical, kDim, true);
  for (size_t i = 0; i < 12000; ++i) {
    Key key(kDim);
    // One of thirty is up to 200 times as far out.
    const double far = random.Below(30) == 0 ? std::exp2(7.6 * random.Uniform()) : 1;
    for (size_t d = 0; d < kDim; ++d) key[d] = static_cast<float>(3 + 0.02 * far * random.Normal() / std::sqrt(1 + d));
    index->Add(key.data());
  }
  double recall = 0;
  constexpr size_t kQueries = 100;
  for (size_t q = 0; q < kQueries; ++q) {
    Key query(kDim);
    for (float& x : query) x = static_cast<float>(random.Normal());
    recall += Recall(*index, query);
  }
  EXPECT_GE(recall / kQueries, 0.98);
}

// A text that says the same again and again, and a few other things once: the directions in which most keys differ say
// nothing of the few.
TEST(ApproximateIndex, FindsTheFewAmongManyAlike) {
  Random random(12);
  constexpr size_t kDim = 64, kKeys = 20000, kAlike = 40;  // the others differ along numbers of their own
  const auto index = LandmarkIndex::Make(IndexKind::kHierarchical, kDim, true);
  std::vector<size_t> few = {37, 5000, 9001, 16383, 16500, 19999};
  for (size_t i = 0; i < kKeys; ++i) {
    Key key(kDim);
    for (size_t d = 0; d < kAlike; ++d) key[d] = static_cast<float>(random.Normal());
    for (size_t d = kAlike; d < kDim; ++d) key[d] = static_cast<float>(0.01 * random.Normal());
    const auto place = std::find(few.begin(), few.end(), i);
    if (place != few.end()) key[kAlike + static_cast<size_t>(place - few.begin())] = 2;
    index->Add(key.data());
  }
  const auto found = [&](size_t which) {
    Key query(kDim);
    for (float& x : query) x = static_cast<float>(0.1 * random.Normal());
    query[kAlike + which] = 30;
    const Found best = Search(*index, 0, index->size(), 4, query);
    return best.blocks[0][0];
  };
  for (size_t i = 0; i < few.size(); ++i) EXPECT_EQ(found(i), static_cast<int32_t>(few[i]));
  // Numbers change with the front, and those that went are not found.
  index->EraseFront(6000);
  index->Truncate(kKeys - 6000 - 1);
  for (size_t i = 2; i + 1 < few.size(); ++i) EXPECT_EQ(found(i), static_cast<int32_t>(few[i] - 6000));
  // Keys that went have left no trace: their numbers belong to others now, and nothing is found twice.
  while (index->size() < kKeys - 6000) index->Add(Key(kDim, 0.5f).data());
  Key query(kDim, 1.0f);
  std::vector<int32_t> blocks = Search(*index, 0, index->size(), 4, query).blocks[0];
  std::sort(blocks.begin(), blocks.end());
  EXPECT_EQ(std::unique(blocks.begin(), blocks.end()), blocks.end());
  EXPECT_EQ(Recall(*index, query), 1.0);
}

TEST(ApproximateIndex, LooksAtMoreWhenTold) {
  ClusteredKeys source(32, 6);
  LandmarkPanels keys(32, true);
  for (size_t i = 0; i < 12000; ++i) keys.Append(source.Next().data());
  const std::vector<float> queries = source.Queries(60);
  // One query at a time: many together look at all sketches anyway.
  const auto recall = [&](const LandmarkIndex& index) {
    double sum = 0;
    for (size_t q = 0; q < 60; ++q) {
      sum += Recall(index, std::vector<float>(queries.begin() + static_cast<ptrdiff_t>(q * 32),
                                              queries.begin() + static_cast<ptrdiff_t>((q + 1) * 32)));
    }
    return sum / 60;
  };
  const auto narrow = MakeHierarchicalIndex(keys, {.visited = 0.01, .visited_min = 1, .clustered_from = 0});
  const auto usual = MakeHierarchicalIndex(keys);
  const auto wide = MakeHierarchicalIndex(keys, {.visited = 1, .reach = 1000, .left_out = 0, .shortlist = 1000});
  const double of_narrow = recall(*narrow), of_usual = recall(*usual), of_wide = recall(*wide);
  EXPECT_LT(of_narrow, of_usual);
  EXPECT_GE(of_usual, 0.98);
  EXPECT_GE(of_wide, of_usual);
  EXPECT_GE(of_wide, 0.999);
  if (!HasIvf()) return;
  const auto one_list = MakeIvfIndex(keys, {.probed = 0.001, .exact_below = 1000});
  const auto all_lists = MakeIvfIndex(keys, {.probed = 1.0, .exact_below = 1000});
  EXPECT_LT(Recall(*one_list, queries), Recall(*all_lists, queries));
  EXPECT_EQ(Recall(*all_lists, queries), 1.0);
}

TEST(LandmarkIndex, ClonesGoTheirOwnWay) {
  for (const IndexKind kind : Kinds()) {
    ClusteredKeys source(16, 7);
    const auto index = LandmarkIndex::Make(kind, 16, true);
    for (size_t i = 0; i < 5000; ++i) index->Add(source.Next().data());
    const std::vector<float> queries = source.Queries(5);
    const Found before = Search(*index, 0, 5000, 4, queries);
    const auto clone = index->Clone();
    EXPECT_EQ(clone->kind(), kind);
    EXPECT_TRUE(Search(*clone, 0, 5000, 4, queries) == before);
    clone->EraseFront(1000);
    clone->Truncate(2000);
    for (size_t i = 0; i < 2500; ++i) clone->Add(source.Next().data());
    EXPECT_TRUE(Search(*index, 0, 5000, 4, queries) == before) << NameOf(kind);
    index->Truncate(10);
    EXPECT_EQ(clone->size(), 4500u);
    EXPECT_EQ(Search(*clone, 0, 4500, 4, queries).blocks[0].size(), 4u);
  }
}

TEST(LandmarkIndex, AutomaticOnesChangeAsTheyGrow) {
  ClusteredKeys source(16, 8);
  OwnedLandmarkIndex index(IndexKind::kAuto, 16, true);
  const auto exact = LandmarkIndex::Make(IndexKind::kExact, 16, true);
  EXPECT_EQ(index->kind(), ChooseKind(0));
  for (size_t i = 0; i < 2000; ++i) {
    const Key key = source.Next();
    index.Add(key.data());
    exact->Add(key.data());
  }
  EXPECT_EQ(index->kind(), ChooseKind(2000));
  EXPECT_NE(ChooseKind(0), ChooseKind(2000));
  const std::vector<float> queries = source.Queries(3);
  EXPECT_TRUE(Search(*index, 0, 2000, 4, queries) == Search(*exact, 0, 2000, 4, queries));
  const OwnedLandmarkIndex copy = index;
  for (size_t i = 2000; i < 9000; ++i) index.Add(source.Next().data());
  EXPECT_EQ(index->kind(), ChooseKind(9000));
  EXPECT_NE(ChooseKind(9000), ChooseKind(2000));
  index.EraseFront(9000);
  EXPECT_EQ(index->size(), 0u);
  EXPECT_EQ(copy->size(), 2000u);
}

TEST(LandmarkIndex, TiesAreTakenAsIfAllWereLookedAt) {
  Random random(9);
  for (int round = 0; round < 2000; ++round) {
    const size_t k = 1 + random.Below(6);
    const size_t old = 1 + random.Below(round % 2 == 0 ? 20 : 600);
    std::vector<float> latest;
    for (size_t i = 0; i < k; ++i) latest.push_back(static_cast<float>(random.Below(4)));
    const auto tie = static_cast<float>(random.Below(4));
    std::vector<float> all(old, tie);
    all.insert(all.end(), latest.begin(), latest.end());
    std::vector<int32_t> expected(k), actual(k);
    TakeBest(all, k, expected.data());
    TakeBestOfTie(old, tie, latest, actual.data());
    ASSERT_EQ(actual, expected) << "k " << k << " old " << old;
  }
}

TEST(LandmarkIndex, ErasingAtTheFrontKeepsWhatUniformSays) {
  LandmarkPanels panels(4, true);
  const Key one = {1, 2, 3, 4}, other = {1, 2, 3, 5};
  panels.Append(other.data());
  for (int i = 0; i < 300; ++i) panels.Append(one.data());
  EXPECT_FALSE(panels.uniform());
  panels.EraseFront(1);
  EXPECT_TRUE(panels.uniform());
  panels.Append(other.data());
  EXPECT_FALSE(panels.uniform());
  panels.EraseFront(250);
  EXPECT_FALSE(panels.uniform());
  EXPECT_EQ(panels.size(), 51u);
  Key read(4);
  panels.Read(50, read.data());
  EXPECT_EQ(read, other);
  std::vector<float> scores(51);
  ScoreLandmarks(panels, 1, 51, 1, one.data(), 51, scores.data());
  EXPECT_EQ(scores[0], 30.0f);
  EXPECT_EQ(scores[49], 34.0f);
}

}  // namespace
}  // namespace cairn
