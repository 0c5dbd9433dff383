#include "bench/attention_bench.h"

#include "attention/fused.h"
#include "attention/reference.h"
#include "base/aligned.h"
#include "base/random.h"
#include "base/threads.h"
#include "bench/timing.h"

namespace cairn {

namespace {

// Dense inputs and outputs of one benchmark length.
struct Buffers {
  explicit Buffers(const AttentionShape& s)
      : q(s.batch * s.query_heads * s.time * s.dim),
        k(s.batch * s.kv_heads * s.keys() * s.dim),
        v(k.size()),
        out(q.size()),
        dout(q.size()),
        dq(q.size()),
        dk(k.size()),
        dv(k.size()),
        saved(SavedFloats(s, false)) {
    Random random(1);
    for (AlignedBuffer<float>* buffer : {&q, &k, &v, &dout}) {
      // Sums of uniform numbers: near enough to normal, and quick to make.
      for (float& x : *buffer) x = static_cast<float>(random.Uniform() + random.Uniform() + random.Uniform() - 1.5) * 2;
    }
  }
  AlignedBuffer<float> q, k, v, out, dout, dq, dk, dv, saved;
};

double ReferenceSeconds(const AttentionShape& full) {
  // Longer sequences are timed on one head and multiplied: heads cost the same.
  AttentionShape shape = full;
  if (shape.time > 512) shape.batch = shape.query_heads = shape.kv_heads = 1;
  Buffers b(shape);
  const ReferenceInput<float> in{b.q.data(), b.k.data(), b.v.data(), {}};
  const double begin = SecondsNow();
  ReferenceForward(shape, in, b.out.data());
  ReferenceBackward(shape, in, b.dout.data(), {b.dq.data(), b.dk.data(), b.dv.data()});
  const double scale =
      static_cast<double>(full.batch * full.query_heads) / static_cast<double>(shape.batch * shape.query_heads);
  return (SecondsNow() - begin) * scale;
}

AttentionBenchRow BenchOne(const AttentionBenchOptions& options, const MachineLimits& machine, size_t length,
                           bool landmarks) {
  AttentionShape s;
  s.batch = options.batch;
  s.query_heads = options.heads;
  s.kv_heads = options.kv_heads;
  s.time = length;
  s.dim = options.dim;
  s.block_length = landmarks ? options.block_length : kNoLandmarks;
  Buffers b(s);
  const FusedSaved saved = LayOutSaved(s, false, b.saved.data());
  const FusedInput in{DenseHeads<const float>(b.q.data(), s.query_heads, s.time, s.dim),
                      DenseHeads<const float>(b.k.data(), s.kv_heads, s.keys(), s.dim),
                      DenseHeads<const float>(b.v.data(), s.kv_heads, s.keys(), s.dim),
                      {}};
  const auto out = DenseHeads(b.out.data(), s.query_heads, s.time, s.dim);
  const auto dout = DenseHeads<const float>(b.dout.data(), s.query_heads, s.time, s.dim);
  const FusedGradients grads{DenseHeads(b.dq.data(), s.query_heads, s.time, s.dim),
                             DenseHeads(b.dk.data(), s.kv_heads, s.keys(), s.dim),
                             DenseHeads(b.dv.data(), s.kv_heads, s.keys(), s.dim)};
  const double forward = BestTime(options.min_seconds, [&] { FusedForward(s, in, out, &saved); });
  const double both = BestTime(options.min_seconds, [&] {
    FusedForward(s, in, out, &saved);
    FusedBackward(s, in, out, dout, saved, grads);
  });
  const double pairs = static_cast<double>(length) * static_cast<double>(length) / 2;
  const double forward_flop = 4 * pairs * static_cast<double>(s.dim * s.query_heads * s.batch);
  AttentionBenchRow row;
  row.length = length;
  row.landmarks = landmarks;
  row.forward_ms = forward * 1e3;
  row.both_ms = both * 1e3;
  row.forward_percent = 100 * forward_flop / forward * 1e-9 / machine.f32_gflops;
  row.both_percent = 100 * 3.5 * forward_flop / both * 1e-9 / machine.f32_gflops;
  row.extra_mb = 1e-6 * static_cast<double>(b.saved.size() * sizeof(float) +
                                            std::max(ForwardScratchBytes(s, false), BackwardScratchBytes(s, false)));
  if (landmarks && length <= options.reference_limit) row.reference_ratio = ReferenceSeconds(s) / both;
  return row;
}

}  // namespace

AttentionBenchResult BenchAttention(const AttentionBenchOptions& options) {
  AttentionBenchResult result;
  result.machine = MeasureMachine();
  result.threads = ThreadCount();
  for (const size_t length : options.lengths) {
    for (const bool landmarks : {true, false})
      result.rows.push_back(BenchOne(options, result.machine, length, landmarks));
  }
  return result;
}

}  // namespace cairn
