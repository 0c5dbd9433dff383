// The naive reference of attention with a memory: it equals training's forward pass in one chunk, and any other split
// while everything fits; choices, slots and eviction follow the method.
#include <gtest/gtest.h>

#include "attention/memory_reference.h"
#include "attention/reference.h"
#include "base/random.h"

namespace cairn {
namespace {

struct Text {
  MemoryReferenceOptions options;
  size_t time;
  std::vector<double> q, k, v;

  Text(const MemoryReferenceOptions& o, size_t t, uint64_t seed) : options(o), time(t) {
    Random random(seed);
    for (auto* values : {&q, &k, &v}) {
      values->resize(t * (values == &q ? o.query_heads : o.kv_heads) * o.dim);
      for (double& x : *values) x = random.Normal();
    }
  }

  // Output of feeding the text in chunks of the given lengths; the last length is repeated to the end.
  std::vector<double> Feed(const std::vector<size_t>& lengths, MemoryReference<double>* keep = nullptr) const {
    MemoryReference<double> own(options);
    MemoryReference<double>& memory = keep ? *keep : own;
    std::vector<double> out(q.size());
    size_t done = 0;
    for (size_t i = 0; done < time; ++i) {
      MemoryReference<double>::Chunk chunk;
      chunk.time = std::min(lengths[std::min(i, lengths.size() - 1)], time - done);
      chunk.q = q.data() + done * options.query_heads * options.dim;
      chunk.k = k.data() + done * options.kv_heads * options.dim;
      chunk.v = v.data() + done * options.kv_heads * options.dim;
      chunk.out = out.data() + done * options.query_heads * options.dim;
      memory.Feed(chunk);
      done += chunk.time;
    }
    return out;
  }

  // Training's forward pass: rotate everything to its true position, then grouped softmax.
  std::vector<double> Training() const {
    AttentionShape s;
    s.query_heads = options.query_heads;
    s.kv_heads = options.kv_heads;
    s.time = time;
    s.dim = options.dim;
    s.block_length = options.block_length;
    const auto dense = [&](const std::vector<double>& from, size_t heads, bool rotate) {
      std::vector<double> to(from.size());
      for (size_t t = 0; t < time; ++t) {
        for (size_t h = 0; h < heads; ++h) {
          const double* x = from.data() + (t * heads + h) * s.dim;
          double* y = to.data() + (h * time + t) * s.dim;
          if (rotate) {
            RotateReference(x, s.dim, static_cast<double>(t), options.rotary_base, options.rotary, y);
          } else {
            std::copy(x, x + s.dim, y);
          }
        }
      }
      return to;
    };
    const auto dq = dense(q, s.query_heads, true), dk = dense(k, s.kv_heads, true), dv = dense(v, s.kv_heads, false);
    std::vector<double> heads_first(q.size()), out(q.size());
    ReferenceForward<double>(s, {dq.data(), dk.data(), dv.data(), {}}, heads_first.data());
    for (size_t t = 0; t < time; ++t) {
      for (size_t h = 0; h < s.query_heads; ++h) {
        std::copy_n(heads_first.data() + (h * time + t) * s.dim, s.dim, out.data() + (t * s.query_heads + h) * s.dim);
      }
    }
    return out;
  }
};

void ExpectNear(const std::vector<double>& a, const std::vector<double>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-10) << i;
}

MemoryReferenceOptions Options(size_t length, size_t k) {
  MemoryReferenceOptions o;
  o.query_heads = 4;
  o.kv_heads = 2;
  o.dim = 6;
  o.block_length = length;
  o.top_k = k;
  return o;
}

TEST(MemoryReference, OneChunkEqualsTraining) {
  for (const auto layout : {RotaryLayout::kInterleaved, RotaryLayout::kHalf}) {
    MemoryReferenceOptions o = Options(4, 3);
    o.rotary = layout;
    const Text text(o, 37, 1);
    ExpectNear(text.Feed({37}), text.Training());
  }
}

TEST(MemoryReference, AnySplitAgreesWhileEveryBlockIsRead) {
  // With N <= k every block is retrieved; slots then keep true distances because the separating slot stays empty only
  // on the left.
  for (const auto granularity : {Granularity::kHeadAndToken, Granularity::kHead, Granularity::kToken}) {
    MemoryReferenceOptions o = Options(4, 10);
    o.granularity = granularity;
    const Text text(o, 43, 2);
    const std::vector<double> whole = text.Training();
    for (const std::vector<size_t>& split : {std::vector<size_t>{10}, {7}, {1}, {5, 11, 3, 8}, {20, 1}}) {
      ExpectNear(text.Feed(split), whole);
    }
  }
}

TEST(MemoryReference, ChoosesTheBlockWithTheBestLandmark) {
  MemoryReferenceOptions o = Options(3, 1);
  o.query_heads = o.kv_heads = 1;
  Text text(o, 41, 3);
  // Make the landmark of block 2 (key 11) point along the query at 40, both before rotation; it is an old block, so it
  // is scored in slot 0 at position 3 for a query at 2 * 4 = 8.
  for (size_t i = 0; i < o.dim; ++i) text.q[40 * o.dim + i] = 3.0;
  std::vector<double> target(o.dim), query(text.q.end() - 6, text.q.end());
  RotateReference(query.data(), o.dim, 8.0 - 3.0, o.rotary_base, o.rotary, target.data());
  for (size_t i = 0; i < o.dim; ++i) text.k[11 * o.dim + i] = 5 * target[i];
  MemoryReference<double> memory(o);
  text.Feed({40, 1}, &memory);
  ASSERT_EQ(memory.reads().size(), 1u);
  ASSERT_EQ(memory.reads()[0].size(), 1u);
  EXPECT_EQ(memory.reads()[0][0].block, 2u);
  EXPECT_GT(memory.reads()[0][0].gate, 0.0);
}

TEST(MemoryReference, EvictsTheOldestBlocks) {
  MemoryReferenceOptions o = Options(3, 5);
  o.memory_blocks = 2;
  const Text text(o, 41, 4);
  MemoryReference<double> memory(o);
  text.Feed({8}, &memory);
  EXPECT_EQ(memory.blocks(), 10u);
  for (const auto& row : memory.reads()) {
    ASSERT_EQ(row.size(), 2u);
    EXPECT_EQ(row[0].block, 8u);
    EXPECT_EQ(row[1].block, 9u);
  }
}

TEST(MemoryReference, SharedChoices) {
  MemoryReferenceOptions o = Options(3, 2);
  o.granularity = Granularity::kHead;
  const Text text(o, 48, 5);
  MemoryReference<double> by_head(o);
  text.Feed({40, 8}, &by_head);
  const auto blocks = [](const std::vector<BlockRead>& row) {
    std::vector<size_t> result;
    for (const BlockRead& read : row) result.push_back(read.block);
    return result;
  };
  for (size_t t = 1; t < 8; ++t) {
    for (size_t h = 0; h < 4; ++h) EXPECT_EQ(blocks(by_head.reads()[t * 4 + h]), blocks(by_head.reads()[h]));
  }
  MemoryReferenceOptions by_token_options = o;
  by_token_options.granularity = Granularity::kToken;
  MemoryReference<double> by_token(by_token_options);
  Text(by_token_options, 48, 5).Feed({40, 8}, &by_token);
  for (size_t t = 0; t < 8; ++t) {
    for (size_t h = 1; h < 4; ++h) EXPECT_EQ(blocks(by_token.reads()[t * 4 + h]), blocks(by_token.reads()[t * 4]));
  }
  MemoryReferenceOptions by_group_options = Options(3, 2);
  by_group_options.group_chooses_together = true;
  MemoryReference<double> by_group(by_group_options);
  Text(by_group_options, 48, 5).Feed({40, 8}, &by_group);
  bool groups_differ = false;
  for (size_t t = 0; t < 8; ++t) {
    EXPECT_EQ(blocks(by_group.reads()[t * 4]), blocks(by_group.reads()[t * 4 + 1]));
    EXPECT_EQ(blocks(by_group.reads()[t * 4 + 2]), blocks(by_group.reads()[t * 4 + 3]));
    groups_differ |= blocks(by_group.reads()[t * 4]) != blocks(by_group.reads()[t * 4 + 2]);
  }
  EXPECT_TRUE(groups_differ);
}

TEST(MemoryReference, ContextMissTokenSkipsTheMemoryBelowItsCutoff) {
  MemoryReferenceOptions o = Options(3, 2);
  const Text text(o, 41, 6);
  const std::vector<double> miss_key(o.kv_heads * o.dim, 0.1);
  const auto last_row = [&](double cutoff, const double* miss) {
    MemoryReferenceOptions with = o;
    with.miss_cutoff = cutoff;
    MemoryReference<double> memory(with);
    std::vector<double> out(o.query_heads * o.dim);
    memory.Feed({40, text.q.data(), text.k.data(), text.v.data(), std::vector<double>(40 * 4 * 6).data(), {}, nullptr});
    memory.Feed(
        {1, text.q.data() + 40 * 4 * 6, text.k.data() + 40 * 2 * 6, text.v.data() + 40 * 2 * 6, out.data(), {}, miss});
    double gates = 0;
    for (const auto& row : memory.reads()) {
      for (const BlockRead& read : row) gates += read.gate;
    }
    return std::pair(out, gates);
  };
  const auto [read, read_gates] = last_row(0.0, miss_key.data());
  const auto [skipped, skipped_gates] = last_row(1.1, miss_key.data());
  EXPECT_GT(read_gates, 0.0);
  EXPECT_EQ(skipped_gates, 0.0);
  EXPECT_NE(read, skipped);
}

}  // namespace
}  // namespace cairn
