// The training form of attention with a memory against the naive reference that feeds chunk by chunk.
#include <gtest/gtest.h>

#include <cmath>

#include "attention/fused.h"
#include "attention/memory_reference.h"
#include "attention/retrieval.h"
#include "base/aligned.h"
#include "base/random.h"

namespace cairn {
namespace {

// One row of `time` positions in chunks of whole blocks; rotated q and k, as training has them.
struct Row {
  MemoryReferenceOptions options;
  size_t time, chunk;
  std::vector<float> q, k, v, rotated_q, rotated_k;

  Row(const MemoryReferenceOptions& o, size_t t, size_t c, uint64_t seed) : options(o), time(t), chunk(c) {
    Random random(seed);
    const auto fill = [&](std::vector<float>& to, size_t heads) {
      to.resize(time * heads * o.dim);
      for (float& x : to) x = static_cast<float>(random.Normal());
    };
    fill(q, o.query_heads);
    fill(k, o.kv_heads);
    fill(v, o.kv_heads);
    const auto rotate = [&](const std::vector<float>& from, size_t heads) {
      std::vector<float> to(from.size());
      for (size_t i = 0; i < time * heads; ++i) {
        RotateReference(&from[i * o.dim], o.dim, static_cast<double>(i / heads), o.rotary_base, o.rotary,
                        &to[i * o.dim]);
      }
      return to;
    };
    rotated_q = rotate(q, o.query_heads);
    rotated_k = rotate(k, o.kv_heads);
  }

  std::vector<float> Reference(std::vector<std::vector<BlockRead>>* reads) const {
    MemoryReference<float> memory(options);
    std::vector<float> out(q.size());
    const size_t qs = options.query_heads * options.dim, ks = options.kv_heads * options.dim;
    for (size_t done = 0; done < time; done += chunk) {
      memory.Feed(
          {std::min(chunk, time - done), &q[done * qs], &k[done * ks], &v[done * ks], &out[done * qs], {}, nullptr});
      for (const auto& row : memory.reads()) reads->push_back(row);
    }
    return out;
  }
};

TEST(Retrieval, AgreesWithTheReference) {
  for (const auto layout : {RotaryLayout::kHalf, RotaryLayout::kInterleaved}) {
    for (const size_t k : {1, 2, 5, 20}) {
      MemoryReferenceOptions o;
      o.query_heads = 4;
      o.kv_heads = 2;
      o.dim = 6;
      o.block_length = 3;
      o.top_k = k;
      o.rotary = layout;
      const Row row(o, 46, 8, k);
      std::vector<std::vector<BlockRead>> reads;
      const std::vector<float> expected = row.Reference(&reads);

      std::vector<double> frequencies;
      for (size_t i = 0; i < o.dim / 2; ++i)
        frequencies.push_back(std::pow(o.rotary_base, -2.0 * static_cast<double>(i) / 6.0));
      const BlockTurns turns(frequencies, layout, 4, 40);
      const RetrievalShape shape{4, 2, o.dim, 3, k, &turns};
      const size_t qs = 4 * o.dim, ks = 2 * o.dim;
      std::vector<float> out(row.q.size());
      for (size_t first = 0; first < row.time; first += 8) {
        AttentionShape local;
        local.query_heads = 4;
        local.kv_heads = 2;
        local.dim = o.dim;
        local.block_length = 3;
        local.time = std::min<size_t>(8, row.time - first);
        std::vector<float> state(SavedFloats(local, false));
        const FusedSaved saved = LayOutSaved(local, false, state.data());
        const HeadsView<const float> q{&row.rotated_q[first * qs], 0, o.dim, qs};
        const HeadsView<float> o_view{&out[first * qs], 0, o.dim, qs};
        FusedForward(local, {q, {&row.rotated_k[first * ks], 0, o.dim, ks}, {&row.v[first * ks], 0, o.dim, ks}, {}},
                     o_view, &saved);
        std::vector<MemoryBlock> memory;
        for (size_t b = 0; b < first / 4; ++b) {
          memory.push_back({&row.rotated_k[b * 4 * ks], &row.v[b * 4 * ks], ks, o.dim, static_cast<ptrdiff_t>(b)});
        }
        std::vector<int32_t> chosen(4 * local.time * k, -1);
        const RetrievalChunk chunk{local.time,
                                   static_cast<ptrdiff_t>(first / 4),
                                   memory,
                                   q,
                                   o_view,
                                   saved.home_max,
                                   saved.home_inverse,
                                   local.time,
                                   chosen.data()};
        for (size_t h = 0; h < 2; ++h) RetrievalForward(shape, chunk, h);
        for (size_t t = 0; t < local.time; ++t) {
          for (size_t h = 0; h < 4; ++h) {
            const auto& read = reads[(first + t) * 4 + h];
            for (size_t i = 0; i < read.size(); ++i) {
              ASSERT_EQ(static_cast<size_t>(chosen[(h * local.time + t) * k + i]), read[i].block)
                  << "k " << k << " position " << first + t;
            }
          }
        }
      }
      for (size_t i = 0; i < out.size(); ++i)
        ASSERT_NEAR(out[i], expected[i], 2e-5) << "k " << k << " position " << i / qs;
    }
  }
}

// Gradients of what a chunk reads, keys, values and queries, against differences of the forward pass. All blocks are
// chosen, so that no choice changes on the way. Packs that were made before give the same as those made on the way.
TEST(Retrieval, BackwardIsTheGradient) {
  MemoryReferenceOptions o;
  o.query_heads = 4;
  o.kv_heads = 2;
  o.dim = 6;
  o.block_length = 3;
  o.top_k = 6;
  constexpr size_t kFirst = 24, kTime = 7, kBlocks = 6;
  Row row(o, kFirst + kTime, 8, 5);
  std::vector<double> frequencies;
  for (size_t i = 0; i < o.dim / 2; ++i) {
    frequencies.push_back(std::pow(o.rotary_base, -2.0 * static_cast<double>(i) / 6.0));
  }
  const BlockTurns turns(frequencies, RotaryLayout::kHalf, 4, 40);
  const RetrievalShape shape{4, 2, o.dim, 3, o.top_k, &turns};
  const size_t qs = 4 * o.dim, ks = 2 * o.dim;
  std::vector<float> out(kTime * qs), dout(out.size()), dq(out.size());
  std::vector<float> dk(kFirst * ks), dv(kFirst * ks);
  Random random(9);
  for (float& x : dout) x = static_cast<float>(random.Normal());

  AttentionShape local;
  local.query_heads = 4;
  local.kv_heads = 2;
  local.dim = o.dim;
  local.block_length = 3;
  local.time = kTime;
  std::vector<float> state(SavedFloats(local, false));
  const FusedSaved saved = LayOutSaved(local, false, state.data());
  std::vector<int32_t> chosen(4 * kTime * o.top_k);
  std::vector<MemoryBlock> memory;
  for (size_t b = 0; b < kBlocks; ++b) {
    memory.push_back({&row.rotated_k[b * 4 * ks], &row.v[b * 4 * ks], ks, o.dim, static_cast<ptrdiff_t>(b),
                      &dk[b * 4 * ks], &dv[b * 4 * ks], ks, o.dim});
  }
  const HeadsView<const float> q{&row.rotated_q[kFirst * qs], 0, o.dim, qs};
  const RetrievalChunk chunk{
      kTime, kFirst / 4,   memory, q, {out.data(), 0, o.dim, qs}, saved.home_max, saved.home_inverse,
      kTime, chosen.data()};
  // The product of the whole output with dout.
  const auto forward = [&] {
    FusedForward(local, {q, {&row.rotated_k[kFirst * ks], 0, o.dim, ks}, {&row.v[kFirst * ks], 0, o.dim, ks}, {}},
                 chunk.out, &saved);
    for (size_t h = 0; h < 2; ++h) RetrievalForward(shape, chunk, h);
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i) sum += static_cast<double>(out[i]) * static_cast<double>(dout[i]);
    return sum;
  };
  forward();
  const RetrievalGradients gradients{{dout.data(), 0, o.dim, qs}, {dq.data(), 0, o.dim, qs}};
  for (size_t h = 0; h < 2; ++h) RetrievalBackward(shape, chunk, h, gradients);

  const auto difference = [&](float& x) {
    constexpr float kStep = 0.01f;
    const float before = x;
    x = before + kStep;
    const double above = forward();
    x = before - kStep;
    const double below = forward();
    x = before;
    return (above - below) / (2.0 * static_cast<double>(kStep));
  };
  for (size_t i = 0; i < kFirst * ks; ++i) {
    ASSERT_NEAR(dk[i], difference(row.rotated_k[i]), 3e-3) << "key " << i;
    ASSERT_NEAR(dv[i], difference(row.v[i]), 3e-3) << "value " << i;
  }
  // Queries also meet the local keys.
  std::vector<float> local_dq(out.size()), local_dk(kTime * ks), local_dv(kTime * ks);
  forward();
  FusedBackward(local, {q, {&row.rotated_k[kFirst * ks], 0, o.dim, ks}, {&row.v[kFirst * ks], 0, o.dim, ks}, {}},
                {out.data(), 0, o.dim, qs}, {dout.data(), 0, o.dim, qs}, saved,
                {{local_dq.data(), 0, o.dim, qs}, {local_dk.data(), 0, o.dim, ks}, {local_dv.data(), 0, o.dim, ks}});
  for (size_t i = 0; i < dq.size(); ++i) {
    ASSERT_NEAR(dq[i] + local_dq[i], difference(row.rotated_q[kFirst * qs + i]), 3e-3) << "query " << i;
  }

  forward();
  const std::vector<float> expected = out, expected_dk = dk;
  const size_t bytes = RetrievalPackBytes(shape, false), backward_bytes = RetrievalPackBytes(shape, true);
  AlignedBuffer<std::byte> packs(kBlocks * 2 * bytes), backward_packs(kBlocks * 2 * backward_bytes);
  const auto use = [&](AlignedBuffer<std::byte>& to, size_t each, bool backward) {
    for (size_t b = 0; b < kBlocks; ++b) {
      for (size_t h = 0; h < 2; ++h) PackBlock(shape, memory[b], h, backward, to.data() + (2 * b + h) * each);
      memory[b].packs = to.data() + 2 * b * each;
    }
  };
  use(packs, bytes, false);
  forward();
  EXPECT_EQ(out, expected);
  use(backward_packs, backward_bytes, true);
  std::fill(dk.begin(), dk.end(), 0.0f);
  for (size_t h = 0; h < 2; ++h) RetrievalBackward(shape, chunk, h, gradients);
  EXPECT_EQ(dk, expected_dk);
}

}  // namespace
}  // namespace cairn
