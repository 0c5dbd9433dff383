// `cairn golden`'s engine: the authors' files pass, files made here pass, and one changed number fails.
#include "eval/golden.h"

#include <gtest/gtest.h>

#include <cstring>

#include "attention/memory_reference.h"
#include "attention/reference.h"
#include "base/error.h"
#include "io/safetensors.h"
#include "tests/attention_cases.h"
#include "tests/test_files.h"

namespace cairn {
namespace {

std::vector<std::filesystem::path> GoldenFiles(const std::filesystem::path& shared, const std::string& prefix) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(shared / "golden")) {
    if (entry.path().filename().string().rfind(prefix, 0) == 0) files.push_back(entry.path());
  }
  EXPECT_FALSE(files.empty());
  return files;
}

void ExpectOk(const GoldenReport& report) {
  for (const GoldenCheck& check : report.checks) {
    EXPECT_TRUE(check.ok) << report.file << " " << check.implementation << " " << check.tensor << " "
                          << check.relative_error;
  }
  EXPECT_TRUE(report.ok());
}

// A copy of `from` with one element of one f32 tensor, counted from its end, changed by a part of the tensor's largest
// magnitude. (Some inputs cannot matter: a landmark's value, the first token's query.)
void CopyWithOneChange(const std::filesystem::path& from, const std::filesystem::path& to, const std::string& tensor,
                       double part, size_t from_end) {
  const SafetensorsFile file(from);
  const TensorEntry& entry = file.Get(tensor);
  std::vector<float> values(entry.count);
  std::memcpy(values.data(), entry.bytes.data(), entry.bytes.size());
  float largest = 0;
  for (const float x : values) largest = std::max(largest, std::abs(x));
  values[values.size() - from_end] += static_cast<float>(part) * largest;
  std::vector<TensorToWrite> tensors;
  for (const auto& [name, e] : file.tensors()) {
    tensors.push_back({name, e.dtype, e.shape, name == tensor ? std::as_bytes(std::span(values)) : e.bytes});
  }
  WriteSafetensors(to, tensors, file.metadata());
}

TEST(Golden, AuthorsAttentionFilesPassUnderEveryInstructionSet) {
  CAIRN_NEED_SHARED(shared);
  for (const auto& file : GoldenFiles(shared, "attention_")) ExpectOk(RunGolden(file, true));
}

TEST(Golden, AuthorsMemoryFilesPass) {
  CAIRN_NEED_SHARED(shared);
  for (const auto& file : GoldenFiles(shared, "memory_")) ExpectOk(RunGolden(file, true));
}

TEST(Golden, OneChangedNumberFails) {
  CAIRN_NEED_SHARED(shared);
  const ScratchDirectory scratch;
  for (const char* tensor : {"q", "k", "v", "dout", "out", "dq", "dk", "dv", "weights"}) {
    CopyWithOneChange(shared / "golden" / "attention_small.safetensors", scratch / "changed.safetensors", tensor, 1e-3,
                      5);
    EXPECT_FALSE(RunGolden(scratch / "changed.safetensors", true).ok()) << tensor;
  }
  for (const char* tensor : {"q", "k", "v", "out"}) {
    CopyWithOneChange(shared / "golden" / "memory_head.safetensors", scratch / "changed.safetensors", tensor, 1e-2,
                      5 + 24);
    EXPECT_FALSE(RunGolden(scratch / "changed.safetensors", true).ok()) << tensor;
  }
}

// An attention file written here: grouped queries, which the authors' files do not have.
struct OwnFile {
  AttentionCase<float> c;
  std::vector<float> out, dq, dk, dv;

  explicit OwnFile(const AttentionShape& shape) : c(shape, false, 1) {
    out.resize(c.q.size());
    dq.resize(c.q.size());
    dk.resize(c.k.size());
    dv.resize(c.k.size());
    const ReferenceInput<float> in{c.q.data(), c.k.data(), c.v.data(), {}};
    ReferenceForward(shape, in, out.data());
    ReferenceBackward(shape, in, c.dout.data(), {dq.data(), dk.data(), dv.data()});
  }

  void Write(const std::filesystem::path& path, std::map<std::string, std::string> metadata) const {
    const AttentionShape& s = c.shape;
    const Shape q{s.batch, s.query_heads, s.time, s.dim}, kv{s.batch, s.kv_heads, s.time, s.dim};
    const auto tensor = [](const char* name, const Shape& shape, const std::vector<float>& values) {
      return TensorToWrite{name, DType::kF32, shape, std::as_bytes(std::span(values))};
    };
    const std::vector<TensorToWrite> tensors{tensor("q", q, c.q),       tensor("k", kv, c.k),  tensor("v", kv, c.v),
                                             tensor("dout", q, c.dout), tensor("out", q, out), tensor("dq", q, dq),
                                             tensor("dk", kv, dk),      tensor("dv", kv, dv)};
    WriteSafetensors(path, tensors, metadata);
  }
};

AttentionShape SmallShape() {
  AttentionShape s;
  s.batch = 2;
  s.query_heads = 4;
  s.kv_heads = 2;
  s.time = 70;
  s.dim = 12;
  s.block_length = 9;
  return s;
}

TEST(Golden, OwnFileWithGroupedQueriesPassesAndAChangeFails) {
  const ScratchDirectory scratch;
  OwnFile own(SmallShape());
  own.Write(scratch / "own.safetensors", {{"block_length", "9"}});
  const GoldenReport report = RunGolden(scratch / "own.safetensors", true);
  EXPECT_EQ(report.kind, "attention");
  ExpectOk(report);
  own.Write(scratch / "own.safetensors", {{"block_length", "8"}});
  EXPECT_FALSE(RunGolden(scratch / "own.safetensors", true).ok());
  own.dk[17] = NAN;
  own.Write(scratch / "own.safetensors", {{"block_length", "9"}});
  EXPECT_FALSE(RunGolden(scratch / "own.safetensors", true).ok());
}

TEST(Golden, MemoryFileChecksPlacement) {
  const ScratchDirectory scratch;
  MemoryReferenceOptions o;
  o.query_heads = o.kv_heads = 2;
  o.dim = 4;
  o.block_length = 3;
  o.top_k = 2;
  o.memory_blocks = 64;
  const size_t time = 30;
  std::vector<float> q(time * 8), k(time * 8), v(time * 8), out(time * 8);
  Random random(5);
  for (auto* values : {&q, &k, &v}) {
    for (float& x : *values) x = static_cast<float>(random.Normal());
  }
  std::vector<int64_t> lengths{17, 13}, starts{0, 13};  // 4 blocks and one token, then (2 + 1) * 4 + 1
  MemoryReference<float> memory(o);
  memory.Feed({17, q.data(), k.data(), v.data(), out.data(), {}, nullptr});
  memory.Feed({13, &q[17 * 8], &k[17 * 8], &v[17 * 8], &out[17 * 8], {}, nullptr});
  std::vector<uint8_t> is_landmark(time);
  for (size_t i = 3; i < time; i += 4) is_landmark[i] = 1;
  const auto write = [&] {
    const Shape shape{time, 2, 4};
    const std::vector<TensorToWrite> tensors{{"q", DType::kF32, shape, std::as_bytes(std::span(q))},
                                             {"k", DType::kF32, shape, std::as_bytes(std::span(k))},
                                             {"v", DType::kF32, shape, std::as_bytes(std::span(v))},
                                             {"out", DType::kF32, shape, std::as_bytes(std::span(out))},
                                             {"is_landmark", DType::kU8, {time}, std::as_bytes(std::span(is_landmark))},
                                             {"chunk_lengths", DType::kI64, {2}, std::as_bytes(std::span(lengths))},
                                             {"chunk_starts", DType::kI64, {2}, std::as_bytes(std::span(starts))}};
    WriteSafetensors(
        scratch / "m.safetensors", tensors,
        {{"block_length", "3"}, {"top_k", "2"}, {"memory_blocks", "64"}, {"granularity", "head_and_token"}});
    return RunGolden(scratch / "m.safetensors", true);
  };
  ExpectOk(write());
  starts[0] = 1;
  EXPECT_FALSE(write().ok());
  starts = {0, 14};
  EXPECT_FALSE(write().ok());
  starts = {0, 13};
  is_landmark[4] = 1;
  EXPECT_FALSE(write().ok());
  is_landmark[4] = 0;
  lengths = {17, 12};
  EXPECT_THROW(write(), Error);
}

TEST(Golden, StoriesReadInChunksGiveTheAuthorsLogProbabilities) {
  CAIRN_NEED_SHARED(shared);
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(shared / "golden")) {
    if (entry.path().filename().string().rfind("stories15M_", 0) != 0) continue;
    ++files;
    const GoldenReport report = RunGolden(entry.path(), false);
    EXPECT_EQ(report.kind, "stories");
    ExpectOk(report);
    // Almost every row is judged; see RoundingDecides for the others.
    for (const GoldenCheck& check : report.checks) {
      if (check.tensor == "rows that rounding decides") {
        EXPECT_LT(check.absolute_error, 1e-2);
      }
    }
  }
  EXPECT_GE(files, 3u);
}

TEST(Golden, UnknownKindsAndBadFilesAreErrors) {
  const ScratchDirectory scratch;
  const auto message = [&](const std::filesystem::path& path) -> std::string {
    try {
      RunGolden(path, true);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_NE(message(scratch / "absent").find("cannot open"), std::string::npos);
  WriteSafetensors(scratch / "empty.safetensors", std::vector<TensorToWrite>(), {});
  EXPECT_NE(message(scratch / "empty.safetensors").find("does not know"), std::string::npos);
  const OwnFile own(SmallShape());
  own.Write(scratch / "own.safetensors", {});
  EXPECT_NE(message(scratch / "own.safetensors").find("no metadata 'block_length'"), std::string::npos);
  own.Write(scratch / "own.safetensors", {{"block_length", "0"}});
  EXPECT_NE(message(scratch / "own.safetensors").find("not an integer from"), std::string::npos);
  own.Write(scratch / "own.safetensors", {{"block_length", "9"}, {"scale", "2"}});
  EXPECT_NE(message(scratch / "own.safetensors").find("scale"), std::string::npos);
}

}  // namespace
}  // namespace cairn
