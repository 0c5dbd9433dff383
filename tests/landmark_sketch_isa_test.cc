// Sketches of landmark keys: the scans against plain sums of bytes, thresholds against counting, and directions that
// lose no more than they were told to.
#include "attention/landmark_sketch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/aligned.h"
#include "base/checked.h"
#include "base/random.h"
#include "memory/key_sketch.h"

namespace cairn {
namespace {

int32_t PlainSum(const SketchQuery& query, const std::vector<uint8_t>& key) {
  int32_t sum = query.start;
  for (size_t i = 0; i < key.size(); ++i) sum += static_cast<int32_t>(query.quads[i]) * key[i];
  return sum;
}

std::vector<float> Normals(Random& random, size_t count) {
  std::vector<float> values(count);
  for (float& x : values) x = static_cast<float>(random.Normal());
  return values;
}

// Number r of the sketch in a column of a panel.
uint8_t NibbleAt(const uint8_t* panel, size_t column, size_t r) {
  return panel[(r / 8 * 64 + column) * 4 + r % 4] >> (r % 8 / 4 * 4) & 15;
}

TEST(LandmarkSketch, ScansAreThePlainSums) {
  Random random(1);
  for (const size_t rank : {8, 16, 24, 64}) {
    for (const size_t count : {1, 2, 3, 7, 24, 25, 60}) {
      constexpr size_t kPanels = 9;
      AlignedBuffer<uint8_t> data(kPanels * rank * 32);
      std::vector<uint8_t> filled;
      for (uint8_t& x : data) x = static_cast<uint8_t>(random.Below(256));
      for (size_t p = 0; p < kPanels; ++p) filled.push_back(static_cast<uint8_t>(p == 4 ? 0 : 1 + random.Below(64)));
      filled[0] = 64;
      std::vector<uint8_t> doubled(kPanels * 64);
      for (uint8_t& x : doubled) x = static_cast<uint8_t>(random.Below(3) == 0 ? random.Below(10) : 0);
      std::vector<int8_t> quads(count * rank);
      std::vector<SketchQuery> queries(count);
      for (size_t q = 0; q < count; ++q) {
        ASSERT_TRUE(EncodeSketchQuery(Normals(random, rank), rank, kNibbleZero, &quads[q * rank], queries[q]));
      }
      const std::vector<uint32_t> panels = {0, 1, 3, 4, 5, 8};
      const size_t wanted = 1 + random.Below(200);
      const size_t limit = 100000;
      std::vector<SketchPlaces> found(count);
      ScanSketches({data.data(), rank / 8, filled.data(), doubled.data()}, {panels, wanted, limit, 0, nullptr}, count,
                   queries.data(), found.data());
      for (size_t q = 0; q < count; ++q) {
        std::vector<int32_t> maxima(64, INT32_MIN);
        std::vector<std::pair<int32_t, uint32_t>> all;
        for (size_t i = 0; i < panels.size(); ++i) {
          const uint32_t p = panels[i];
          for (uint32_t c = 0; c < filled[p]; ++c) {
            std::vector<uint8_t> key(rank);
            for (size_t r = 0; r < rank; ++r) key[r] = NibbleAt(data.data() + p * rank * 32, c, r);
            all.emplace_back(PlainSum(queries[q], key) * (1 << doubled[p * 64 + c]), p * 64 + c);
            int32_t& maximum = maxima[(c + kSketchShift * i) % 64];
            maximum = std::max(maximum, all.back().first);
          }
        }
        const int32_t least = SketchThreshold(wanted, maxima.data());
        SketchPlaces expected;
        for (const auto& [sum, place] : all) {
          if (sum < least) continue;
          expected.places.push_back(place);
          expected.sums.push_back(sum);
        }
        ASSERT_TRUE(found[q] == expected) << "rank " << rank << " count " << count;
      }
    }
  }
}

// Of many panels a part tells the threshold. Even where the best stand together, enough of them come through, the best
// among them, and never more than the limit.
TEST(LandmarkSketch, ManyPanelsAreJudgedByAPart) {
  Random random(7);
  constexpr size_t kPanels = 300, kRank = 16, kWanted = 160, kLimit = 1280;
  for (const size_t gathered : {0, 1, 2, 3}) {
    AlignedBuffer<uint8_t> data(kPanels * kRank * 32);
    const std::vector<uint8_t> filled(kPanels, 64);
    std::vector<uint8_t> doubled(kPanels * 64);
    for (uint8_t& x : data) x = static_cast<uint8_t>(random.Below(256));
    // 1: in panels of the part; 2: beside them; 3: so many beside them that the limit is met.
    const size_t strong = gathered == 3 ? 40 : 4;
    for (size_t i = 0; gathered > 0 && i < strong * 64; ++i) {
      const size_t panel = gathered == 1 ? 8 * (10 + i / 64) : 81 + i / 64 + i / 64 / 7;
      doubled[panel * 64 + i % 64] = 3;
    }
    std::vector<int8_t> quads(kRank);
    SketchQuery query{};
    ASSERT_TRUE(EncodeSketchQuery(Normals(random, kRank), kRank, kNibbleZero, quads.data(), query));
    std::vector<uint32_t> panels(kPanels);
    std::iota(panels.begin(), panels.end(), 0u);
    std::vector<SketchPlaces> found(1);
    ScanSketches({data.data(), kRank / 8, filled.data(), doubled.data()}, {panels, kWanted, kLimit, 0, nullptr}, 1,
                 &query, found.data());
    const std::vector<uint32_t>& places = found[0].places;
    EXPECT_GE(places.size(), kWanted / 8) << gathered;
    EXPECT_LT(places.size(), kLimit) << gathered;
    std::vector<std::pair<int32_t, uint32_t>> all;
    for (uint32_t place = 0; place < kPanels * 64; ++place) {
      std::vector<uint8_t> key(kRank);
      for (size_t r = 0; r < kRank; ++r) key[r] = NibbleAt(data.data() + place / 64 * kRank * 32, place % 64, r);
      all.emplace_back(PlainSum(query, key) * (1 << doubled[place]), place);
    }
    std::sort(all.rbegin(), all.rend());
    for (size_t i = 0; i < 12; ++i) {
      EXPECT_TRUE(std::find(places.begin(), places.end(), all[i].second) != places.end()) << gathered;
    }
  }
}

TEST(LandmarkSketch, ThresholdsLetAboutAsManyThroughAsWanted) {
  Random random(3);
  for (const size_t wanted : {16, 64, 150}) {
    double mean = 0;
    for (int round = 0; round < 50; ++round) {
      std::vector<int32_t> sums(20000), maxima(64, INT32_MIN);
      for (size_t i = 0; i < sums.size(); ++i) {
        sums[i] = static_cast<int32_t>(1e6 * random.Normal());
        maxima[i % 64] = std::max(maxima[i % 64], sums[i]);
      }
      const int32_t least = SketchThreshold(wanted, maxima.data());
      mean += static_cast<double>(std::count_if(sums.begin(), sums.end(), [&](int32_t x) { return x >= least; })) / 50;
    }
    EXPECT_GT(mean, 0.75 * static_cast<double>(wanted));
    EXPECT_LT(mean, 1.35 * static_cast<double>(wanted));
  }
}

TEST(LandmarkSketch, TheMostPromisingPanelsAreMarked) {
  Random random(6);
  for (const size_t count : {1, 3, 16, 17, 50, 500, 511}) {
    std::vector<float> mean = Normals(random, count), variance = Normals(random, count);
    for (float& x : variance) x = x * x;
    variance[0] = -1e-7f;  // rounding
    if (count > 20) mean[20] = NAN;
    std::vector<float> sums(count);
    for (size_t i = 0; i < count; ++i) {
      sums[i] = i == 20 ? INFINITY : mean[i] + 2 * std::sqrt(std::max(0.0f, variance[i]));
    }
    for (const size_t take : {size_t{1}, DivideUp(count, 3), count}) {
      std::vector<uint8_t> chosen(count);
      MarkPromising({mean, variance, 2.0f}, take, chosen.data());
      EXPECT_EQ(static_cast<size_t>(std::count(chosen.begin(), chosen.end(), 1)), take);
      float least = INFINITY, most = -INFINITY;  // chosen, and not
      for (size_t i = 0; i < count; ++i) {
        if (chosen[i] != 0) least = std::min(least, sums[i]);
        if (chosen[i] == 0) most = std::max(most, sums[i]);
      }
      EXPECT_GT(least, most) << count << " " << take;
    }
  }
  std::vector<uint8_t> chosen(5);
  MarkPromising({std::vector<float>(5, -1.0f), std::vector<float>(5, 0.0f), 2.0f}, 2, chosen.data());
  EXPECT_EQ(chosen, std::vector<uint8_t>(5, 1)) << "all are as good";
}

// Panels by how many deviations their mean is below what is to be reached.
TEST(LandmarkSketch, TheLikeliestPanelsAreMarked) {
  Random random(8);
  for (const size_t count : {1, 3, 16, 17, 50, 500, 511}) {
    std::vector<float> mean = Normals(random, count), variance = Normals(random, count);
    for (float& x : variance) x = x * x + 1e-3f;
    constexpr float kLeast = 1.5f;
    std::vector<float> below(count);
    for (size_t i = 0; i < count; ++i) below[i] = (kLeast - mean[i]) / std::sqrt(variance[i]);
    for (const float reach : {0.5f, 3.0f, 1000.0f}) {
      const auto near =
          static_cast<size_t>(std::count_if(below.begin(), below.end(), [&](float x) { return x <= reach; }));
      for (const size_t take : {size_t{1}, DivideUp(count, 3), count}) {
        std::vector<uint8_t> chosen(count);
        MarkReaching({mean, variance, reach}, kLeast, take, chosen.data());
        EXPECT_EQ(static_cast<size_t>(std::count(chosen.begin(), chosen.end(), 1)), std::min(near, take));
        float most = -INFINITY, least = INFINITY;  // below, of the chosen and of the others
        for (size_t i = 0; i < count; ++i) {
          if (chosen[i] != 0) most = std::max(most, below[i]);
          if (chosen[i] == 0) least = std::min(least, below[i]);
        }
        EXPECT_LT(most, least) << count << " " << take;
        EXPECT_LE(most, reach);
      }
    }
  }
}

// A scan that is told of more panels on its way ends as one that knew them from the start.
TEST(LandmarkSketch, RefinedScansAreScansOfAllThatWasNamed) {
  Random random(9);
  constexpr size_t kPanels = 12, kRank = 16;
  AlignedBuffer<uint8_t> data(kPanels * kRank * 32);
  for (uint8_t& x : data) x = static_cast<uint8_t>(random.Below(256));
  const std::vector<uint8_t> filled(kPanels, 60), doubled(kPanels * 64);
  const SketchPanels sketches{data.data(), kRank / 8, filled.data(), doubled.data()};
  for (const size_t count : {1, 2, 4, 5, 24}) {
    std::vector<int8_t> quads(count * kRank);
    std::vector<SketchQuery> queries(count);
    for (size_t q = 0; q < count; ++q) {
      ASSERT_TRUE(EncodeSketchQuery(Normals(random, kRank), kRank, kNibbleZero, &quads[q * kRank], queries[q]));
    }
    const std::vector<uint32_t> first = {2, 7, 9}, more = {0, 11, 4}, all = {2, 7, 9, 0, 11, 4};
    std::vector<SketchPlaces> places(count), refined(count), of_first(count);
    ScanSketches(sketches, {all, 50, 1000, 0, nullptr}, count, queries.data(), places.data());
    ScanSketches(sketches, {first, 5, 1000, 0, nullptr}, count, queries.data(), of_first.data());
    std::vector<int32_t> told;
    const auto refine = [&](std::span<const int32_t> reached, std::vector<uint32_t>& panels) {
      told.assign(reached.begin(), reached.end());
      panels.insert(panels.end(), more.begin(), more.end());
    };
    ScanSketches(sketches, {first, 50, 1000, 5, refine}, count, queries.data(), refined.data());
    EXPECT_TRUE(refined == places) << count;
    ASSERT_EQ(told.size(), count);
    for (size_t q = 0; q < count; ++q) {
      size_t reaching = 0;
      for (const uint32_t panel : first) {
        for (size_t c = 0; c < 60; ++c) {
          std::vector<uint8_t> key(kRank);
          for (size_t r = 0; r < kRank; ++r) key[r] = NibbleAt(data.data() + panel * kRank * 32, c, r);
          reaching += PlainSum(queries[q], key) >= told[q];
        }
      }
      EXPECT_EQ(reaching, of_first[q].places.size()) << "of the keys so far";
    }
  }
}

TEST(LandmarkSketch, QueriesThatAreNoNumbersHaveNoBytes) {
  std::vector<int8_t> quads(8);
  SketchQuery query{};
  EXPECT_FALSE(EncodeSketchQuery(std::vector<float>(5, 0.0f), 8, kNibbleZero, quads.data(), query));
  EXPECT_FALSE(EncodeSketchQuery(std::vector<float>{1, NAN}, 8, kNibbleZero, quads.data(), query));
  EXPECT_TRUE(EncodeSketchQuery(std::vector<float>{1, -0.5f, 0.25f}, 8, kNibbleZero, quads.data(), query));
  EXPECT_EQ(quads, (std::vector<int8_t>{127, -64, 32, 0, 0, 0, 0, 0}));
  EXPECT_EQ(query.start, -kNibbleZero * (127 - 64 + 32));
  EXPECT_FLOAT_EQ(query.unit, 1.0f / 127);
}

// Keys that differ in few directions only, in none of which an axis lies.
LandmarkPanels FlatKeys(size_t dim, size_t directions, double noise, size_t count, Random& random) {
  std::vector<std::vector<float>> basis;
  for (size_t i = 0; i < directions; ++i) basis.push_back(Normals(random, dim));
  LandmarkPanels keys(dim, false);
  for (size_t n = 0; n < count; ++n) {
    std::vector<float> key = Normals(random, dim);
    for (float& x : key) x = static_cast<float>(noise) * x + 3;
    for (const auto& direction : basis) {
      const auto weight = static_cast<float>(random.Normal());
      for (size_t d = 0; d < dim; ++d) key[d] += weight * direction[d];
    }
    keys.Append(key.data());
  }
  return keys;
}

TEST(KeySketch, TakesAsManyDirectionsAsTheKeysNeed) {
  Random random(4);
  EXPECT_EQ(KeySketch(FlatKeys(64, 6, 0.01, 1500, random), 0.03).rank(), 16u) << "16 at least";
  const size_t some = KeySketch(FlatKeys(64, 30, 0.01, 1500, random), 0.03).rank();
  EXPECT_GE(some, 24u);
  EXPECT_LE(some, 32u);
  EXPECT_GE(KeySketch(FlatKeys(64, 0, 1, 1500, random), 0.03).rank(), 56u);
  EXPECT_EQ(KeySketch(FlatKeys(10, 3, 1, 1500, random), 0.03).rank(), 16u) << "whole eights";
}

// A few keys that are far from all others make nearly all of the variance. Half bytes must tell the others apart all
// the same.
TEST(KeySketch, UnitsAreOfMostKeys) {
  Random random(11);
  const size_t dim = 32;
  LandmarkPanels keys(dim, false);
  for (size_t n = 0; n < 2000; ++n) {
    std::vector<float> key = Normals(random, dim);
    for (float& x : key) x *= n % 100 == 7 ? 200.0f : 1.0f;
    keys.Append(key.data());
  }
  const KeySketch sketch(keys, 0.001);
  std::vector<float> key(dim), coordinates(sketch.rank());
  std::vector<uint8_t> nibbles(sketch.rank());
  size_t different = 0, doubled = 0;
  for (size_t n = 0; n < 100; ++n) {
    keys.Read(n, key.data());
    sketch.Project(key.data(), coordinates.data());
    doubled += sketch.Encode(coordinates.data(), nibbles.data()) > 0 ? 1 : 0;
    for (const uint8_t nibble : nibbles) different += nibble != kNibbleZero ? 1 : 0;
  }
  EXPECT_GT(2 * different, 100 * sketch.rank());
  EXPECT_LE(doubled, 10u);
}

TEST(KeySketch, CoordinatesKeepProducts) {
  Random random(5);
  const size_t dim = 48;
  const LandmarkPanels keys = FlatKeys(dim, 12, 0.001, 1200, random);
  const KeySketch sketch(keys, 0.03);
  std::vector<float> many = Normals(random, 20 * dim), together;
  sketch.ProjectQueries(20, many.data(), together);
  std::vector<float> a(dim), b(dim), pa(sketch.rank()), pb(sketch.rank()), pq;
  for (size_t q = 0; q < 20; ++q) {
    const float* query = &many[q * dim];
    sketch.ProjectQueries(1, query, pq);
    for (size_t r = 0; r < sketch.rank(); ++r) ASSERT_NEAR(pq[r], together[q * sketch.rank() + r], 1e-4);
    keys.Read(q, a.data());
    keys.Read(q + 100, b.data());
    sketch.Project(a.data(), pa.data());
    sketch.Project(b.data(), pb.data());
    double whole = 0, flat = 0;
    for (size_t d = 0; d < dim; ++d) whole += static_cast<double>(query[d]) * (a[d] - b[d]);
    for (size_t r = 0; r < sketch.rank(); ++r) flat += static_cast<double>(pq[r]) * (pa[r] - pb[r]);
    EXPECT_NEAR(flat, whole, 0.1 + 0.01 * std::abs(whole));
  }
}

}  // namespace
}  // namespace cairn
