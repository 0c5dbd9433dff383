#include "eval/golden.h"

#include <algorithm>
#include <cmath>

#include "attention/fused.h"
#include "attention/memory_reference.h"
#include "attention/reference.h"
#include "base/cpu.h"
#include "base/error.h"
#include "eval/golden_kinds.h"
#include "infer/memory_attention.h"
#include "io/safetensors.h"

namespace cairn {

namespace {

constexpr double kAttentionTolerance = 1e-5;

// ---- attention_*: forward and backward of grouped-softmax attention ----

struct AttentionGolden {
  AttentionShape shape;
  Tensor q, k, v, dout, out, dq, dk, dv;
  bool has_weights = false;
  Tensor weights;

  explicit AttentionGolden(const SafetensorsFile& file) {
    const Shape s = file.Get("q").shape;
    const Shape kv = file.Get("k").shape;
    if (s.size() != 4 || kv.size() != 4 || std::count(s.begin(), s.end(), 0) > 0 ||
        std::count(kv.begin(), kv.end(), 0) > 0) {
      Fail("'{}': q and k must have four dimensions, none of them 0", file.name());
    }
    if (kv[0] != s[0] || kv[2] != s[2] || kv[3] != s[3] || s[1] % kv[1] != 0 || s[3] > kMaxHeadDim) {
      Fail("'{}': q {} and k {} do not fit together", file.name(), ToString(s), ToString(kv));
    }
    if (file.metadata().count("scale") != 0 && file.MetadataText("scale") != "1/sqrt(dim)") {
      Fail("'{}': scale '{}' is not known; expected '1/sqrt(dim)'", file.name(), file.MetadataText("scale"));
    }
    shape.batch = s[0];
    shape.query_heads = s[1];
    shape.kv_heads = kv[1];
    shape.time = s[2];
    shape.dim = s[3];
    shape.block_length = static_cast<size_t>(file.MetadataInteger("block_length", 1, int64_t{1} << 30));
    q = ReadShaped(file, "q", s);
    k = ReadShaped(file, "k", kv);
    v = ReadShaped(file, "v", kv);
    dout = ReadShaped(file, "dout", s);
    out = ReadShaped(file, "out", s);
    dq = ReadShaped(file, "dq", s);
    dk = ReadShaped(file, "dk", kv);
    dv = ReadShaped(file, "dv", kv);
    has_weights = file.Has("weights");
    if (has_weights) weights = ReadShaped(file, "weights", {s[0], s[1], s[2], s[2]});
  }
};

template <typename T>
void CheckReference(const AttentionGolden& golden, const std::string& name, GoldenReport& report) {
  const auto q = As<T>(golden.q), k = As<T>(golden.k), v = As<T>(golden.v), dout = As<T>(golden.dout);
  std::vector<T> out(q.size()), dq(q.size()), dk(k.size()), dv(k.size());
  std::vector<T> weights(golden.has_weights ? golden.weights.size() : 0);
  const ReferenceInput<T> in{q.data(), k.data(), v.data(), {}};
  ReferenceForward(golden.shape, in, out.data(), golden.has_weights ? weights.data() : nullptr);
  ReferenceBackward(golden.shape, in, dout.data(), {dq.data(), dk.data(), dv.data()});
  const auto check = [&](const char* tensor, const std::vector<T>& actual, const Tensor& expected) {
    report.checks.push_back(Compare<T>(name, tensor, actual, expected.span(), kAttentionTolerance));
  };
  check("out", out, golden.out);
  check("dq", dq, golden.dq);
  check("dk", dk, golden.dk);
  check("dv", dv, golden.dv);
  if (golden.has_weights) check("weights", weights, golden.weights);
}

void CheckFused(const AttentionGolden& golden, const std::string& name, GoldenReport& report) {
  const AttentionShape& s = golden.shape;
  const auto queries = [&](auto* data) { return DenseHeads(data, s.query_heads, s.time, s.dim); };
  const auto keys = [&](auto* data) { return DenseHeads(data, s.kv_heads, s.time, s.dim); };
  Tensor out(golden.q.shape()), dq(golden.q.shape()), dk(golden.k.shape()), dv(golden.k.shape());
  AlignedBuffer<float> memory(SavedFloats(s, false));
  const FusedSaved saved = LayOutSaved(s, false, memory.data());
  const FusedInput in{queries(golden.q.data()), keys(golden.k.data()), keys(golden.v.data()), {}};
  FusedForward(s, in, queries(out.data()), &saved);
  FusedBackward(s, in, queries(out.data()), queries(golden.dout.data()), saved,
                {queries(dq.data()), keys(dk.data()), keys(dv.data())});
  const auto check = [&](const char* tensor, const Tensor& actual, const Tensor& expected) {
    report.checks.push_back(Compare<float>(name, tensor, actual.span(), expected.span(), kAttentionTolerance));
  };
  check("out", out, golden.out);
  check("dq", dq, golden.dq);
  check("dk", dk, golden.dk);
  check("dv", dv, golden.dv);
}

void RunAttention(const SafetensorsFile& file, bool every_instruction_set, GoldenReport& report) {
  const AttentionGolden golden(file);
  CheckReference<float>(golden, "reference f32", report);
  CheckReference<double>(golden, "reference f64", report);
  UnderInstructionSets(every_instruction_set, "fused",
                       [&](const std::string& name) { CheckFused(golden, name, report); });
}

// ---- memory_*: attention of a text fed in chunks, with retrieval ----

Granularity ParseGranularity(const SafetensorsFile& file) {
  const std::string& text = file.MetadataText("granularity");
  const auto granularity = GranularityNamed(text);
  if (!granularity) {
    Fail("'{}': granularity '{}' is not known; expected head_and_token, head or token", file.name(), text);
  }
  return *granularity;
}

// Chunks start right after the prefix of slots. Where the memory has no more blocks than are retrieved, the authors'
// code leaves the separating slot out; both are accepted.
GoldenCheck CheckStarts(const MemoryReferenceOptions& options, const std::vector<int64_t>& lengths,
                        const std::vector<int64_t>& starts) {
  const uint64_t stride = options.block_length + 1;
  uint64_t position = 0;
  double wrong = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const uint64_t blocks = position / stride;
    const uint64_t unfinished = position % stride;
    const uint64_t slots = blocks == 0 ? 0 : std::min<uint64_t>(options.top_k, blocks) + 1;
    const uint64_t authors_slots = std::min<uint64_t>(blocks, options.top_k + 1);
    const auto start = static_cast<uint64_t>(starts[i]);
    wrong += start != slots * stride + unfinished && start != authors_slots * stride + unfinished;
    position += static_cast<uint64_t>(lengths[i]);
  }
  return {"placement", "chunk_starts", wrong, wrong, 0, wrong == 0};
}

template <typename T>
void CheckMemory(const SafetensorsFile& file, const MemoryReferenceOptions& options, const std::string& name,
                 GoldenReport& report) {
  const Shape shape = file.Get("q").shape;
  const Shape kv_shape = file.Get("k").shape;
  const auto q = As<T>(ReadShaped(file, "q", shape));
  const auto k = As<T>(ReadShaped(file, "k", kv_shape));
  const auto v = As<T>(ReadShaped(file, "v", kv_shape));
  const Tensor expected = ReadShaped(file, "out", shape);
  const auto lengths = file.ReadIntegers("chunk_lengths");
  const auto starts = file.ReadIntegers("chunk_starts");
  MemoryReference<T> memory(options);
  std::vector<T> out(q.size());
  size_t done = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    typename MemoryReference<T>::Chunk chunk;
    chunk.time = static_cast<size_t>(lengths[i]);
    chunk.q = q.data() + done * shape[1] * shape[2];
    chunk.k = k.data() + done * kv_shape[1] * shape[2];
    chunk.v = v.data() + done * kv_shape[1] * shape[2];
    chunk.out = out.data() + done * shape[1] * shape[2];
    chunk.start = static_cast<size_t>(starts[i]);
    if (*chunk.start < memory.position() % (options.block_length + 1)) {
      Fail("'{}': chunk {} starts at {}, inside the unfinished block before it", file.name(), i, starts[i]);
    }
    memory.Feed(chunk);
    done += chunk.time;
  }
  report.checks.push_back(Compare<T>(name, "out", out, expected.span(), kAttentionTolerance));
}

// The same through the attention of the inference engine.
void CheckMemoryEngine(const SafetensorsFile& file, const MemoryReferenceOptions& reference, const std::string& name,
                       GoldenReport& report) {
  const Tensor q = file.ReadFloats("q"), k = file.ReadFloats("k"), v = file.ReadFloats("v");
  const Tensor expected = ReadShaped(file, "out", q.shape());
  const auto lengths = file.ReadIntegers("chunk_lengths");
  const auto starts = file.ReadIntegers("chunk_starts");
  const size_t time = q.shape()[0];
  const size_t queries = reference.query_heads * reference.dim;
  const size_t keys = reference.kv_heads * reference.dim;
  std::vector<float> qkv;
  for (size_t t = 0; t < time; ++t) {
    qkv.insert(qkv.end(), q.data() + t * queries, q.data() + (t + 1) * queries);
    qkv.insert(qkv.end(), k.data() + t * keys, k.data() + (t + 1) * keys);
    qkv.insert(qkv.end(), v.data() + t * keys, v.data() + (t + 1) * keys);
  }
  MemoryAttentionOptions options;
  options.query_heads = reference.query_heads;
  options.kv_heads = reference.kv_heads;
  options.dim = reference.dim;
  options.block = {reference.dim, reference.block_length, true, BlockFormat::kF32};
  options.rotary = reference.rotary;
  for (size_t i = 0; i < reference.dim / 2; ++i) {
    options.frequencies.push_back(
        std::pow(reference.rotary_base, -2.0 * static_cast<double>(i) / static_cast<double>(reference.dim)));
  }
  options.top_k = reference.top_k;
  options.memory_blocks = reference.memory_blocks;
  options.granularity = reference.granularity;
  MemoryAttention attention(options);
  LayerMemory memory(options.block, options.kv_heads);
  std::vector<float> out(q.size());
  size_t done = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    MemoryAttention::Chunk chunk;
    chunk.time = static_cast<size_t>(lengths[i]);
    chunk.qkv = qkv.data() + done * (queries + 2 * keys);
    chunk.out = out.data() + done * queries;
    chunk.prefix_blocks = (static_cast<size_t>(starts[i]) - memory.unfinished()) / options.block.columns();
    attention.Run(memory, chunk);
    done += chunk.time;
  }
  report.checks.push_back(Compare<float>(name, "out", out, expected.span(), kAttentionTolerance));
}

void RunMemory(const SafetensorsFile& file, bool every_instruction_set, GoldenReport& report) {
  const Shape shape = file.Get("q").shape;
  const Shape kv = file.Get("k").shape;
  if (shape.size() != 3 || kv.size() != 3 || shape[0] != kv[0] || shape[2] != kv[2] || shape[1] == 0 || kv[1] == 0 ||
      shape[1] % kv[1] != 0 || shape[2] < 2 || shape[2] % 2 != 0) {
    Fail("'{}': q {} and k {} do not fit together", file.name(), ToString(shape), ToString(kv));
  }
  MemoryReferenceOptions options;
  options.query_heads = shape[1];
  options.kv_heads = kv[1];
  options.dim = shape[2];
  options.block_length = static_cast<size_t>(file.MetadataInteger("block_length", 1, int64_t{1} << 30));
  options.top_k = static_cast<size_t>(file.MetadataInteger("top_k", 0, int64_t{1} << 30));
  options.memory_blocks = static_cast<size_t>(file.MetadataInteger("memory_blocks", 1, int64_t{1} << 30));
  options.granularity = ParseGranularity(file);
  if (file.metadata().count("rope") != 0 && file.MetadataText("rope").rfind("half", 0) == 0) {
    options.rotary = RotaryLayout::kHalf;
  }
  const auto lengths = file.ReadIntegers("chunk_lengths");
  const auto starts = file.ReadIntegers("chunk_starts");
  uint64_t total = 0;
  for (const int64_t length : lengths) {
    if (length < 1 || static_cast<uint64_t>(length) > shape[0])
      Fail("'{}': a chunk has length {}", file.name(), length);
    total += static_cast<uint64_t>(length);
  }
  if (total != shape[0] || starts.size() != lengths.size()) {
    Fail("'{}': {} chunks with {} positions do not make {} positions", file.name(), lengths.size(), total, shape[0]);
  }
  for (const int64_t start : starts) {
    if (start < 0 || start > (int64_t{1} << 40)) Fail("'{}': a chunk starts at position {}", file.name(), start);
  }
  // Landmarks must stand where the block length says: the reference knows them by place.
  const auto is_landmark = file.ReadIntegers("is_landmark");
  if (is_landmark.size() != shape[0])
    Fail("'{}': is_landmark has {} entries, not {}", file.name(), is_landmark.size(), shape[0]);
  double misplaced = 0;
  for (size_t i = 0; i < is_landmark.size(); ++i) {
    const bool expected = i % (options.block_length + 1) == options.block_length;
    misplaced += (is_landmark[i] != 0) != expected;
  }
  report.checks.push_back({"placement", "is_landmark", misplaced, misplaced, 0, misplaced == 0});
  report.checks.push_back(CheckStarts(options, lengths, starts));
  CheckMemory<float>(file, options, "memory reference f32", report);
  CheckMemory<double>(file, options, "memory reference f64", report);
  UnderInstructionSets(every_instruction_set, "engine",
                       [&](const std::string& name) { CheckMemoryEngine(file, options, name, report); });
}

}  // namespace

void UnderInstructionSets(bool every, const std::string& name, const std::function<void(const std::string&)>& check) {
  if (!every) {
    check(name + " " + ActiveInstructionSet().name);
    return;
  }
  for (const InstructionSet& set : InstructionSets()) {
    ForceInstructionSet(set.name);
    check(name + " " + set.name);
  }
  ForceInstructionSet("");
}

bool GoldenReport::ok() const {
  return !checks.empty() &&
         std::all_of(checks.begin(), checks.end(), [](const GoldenCheck& check) { return check.ok; });
}

GoldenReport RunGolden(const std::filesystem::path& path, bool every_instruction_set) {
  const SafetensorsFile file(path);
  GoldenReport report;
  report.file = path.filename().string();
  if (file.Has("q") && file.Has("dout")) {
    report.kind = "attention";
    RunAttention(file, every_instruction_set, report);
  } else if (file.Has("q") && file.Has("chunk_lengths")) {
    report.kind = "memory";
    RunMemory(file, every_instruction_set, report);
  } else if (file.Has("targets") && file.Has("loss")) {
    report.kind = "training step";
    RunTrainingStepGolden(file, report);
  } else if (file.Has("chunk_ends") && file.Has("next_token_logprob")) {
    report.kind = "stories";
    RunStoriesGolden(file, path, every_instruction_set, report);
  } else {
    Fail(
        "'{}' is of a kind that this version does not know; it runs attention, memory, training-step and stories files",
        path.string());
  }
  return report;
}

}  // namespace cairn
