// Tests of src/io: mapped files, writing that replaces whole or not at all, and safetensors, hostile files included.
#include "io/file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/safetensors.h"
#include "tensor/convert.h"
#include "test_files.h"

namespace cairn {
namespace {

template <typename Body>
std::string ErrorOf(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

void ExpectContains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << text << "' lacks '" << part << "'";
}

void Put(const std::filesystem::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

size_t CountFiles(const std::filesystem::path& directory) {
  const std::filesystem::directory_iterator it(directory);
  return static_cast<size_t>(std::distance(begin(it), end(it)));
}

TEST(MappedFile, ReadsAndMoves) {
  const ScratchDirectory scratch;
  Put(scratch / "a", "hello");
  MappedFile first(scratch / "a");
  ASSERT_EQ(first.bytes().size(), 5u);
  EXPECT_EQ(std::memcmp(first.bytes().data(), "hello", 5), 0);
  EXPECT_EQ(first.name(), (scratch / "a").string());
  const auto* data = first.bytes().data();
  MappedFile second(std::move(first));
  EXPECT_EQ(second.bytes().data(), data);
  EXPECT_TRUE(first.bytes().empty());  // NOLINT: the state after a move is promised
  Put(scratch / "b", "");
  MappedFile third(scratch / "b");
  EXPECT_TRUE(third.bytes().empty());
  third = std::move(second);
  EXPECT_EQ(third.bytes().data(), data);
}

TEST(MappedFile, RefusesWhatIsNoFile) {
  const ScratchDirectory scratch;
  const std::string missing = ErrorOf([&] { MappedFile file(scratch / "none"); });
  ExpectContains(missing, (scratch / "none").string());
  ExpectContains(missing, "No such file");
  ExpectContains(ErrorOf([&] { MappedFile file(scratch.path()); }), "is a directory");
  ExpectContains(ErrorOf([&] { MappedFile file("/dev/null"); }), "not a regular file");
  ASSERT_EQ(mkfifo((scratch / "pipe").c_str(), 0600), 0);
  ExpectContains(ErrorOf([&] { MappedFile file(scratch / "pipe"); }), "not a regular file");  // and does not wait
}

TEST(ReadTextFile, ObeysItsLimit) {
  const ScratchDirectory scratch;
  Put(scratch / "a", std::string("x\0y", 3));
  EXPECT_EQ(ReadTextFile(scratch / "a", 3), std::string("x\0y", 3));
  ExpectContains(ErrorOf([&] { ReadTextFile(scratch / "a", 2); }), "3 bytes, more than the 2");
  Put(scratch / "empty", "");
  EXPECT_EQ(ReadTextFile(scratch / "empty"), "");
}

TEST(WriteFileAtomically, CreatesAndReplaces) {
  const ScratchDirectory scratch;
  WriteFileAtomically(scratch / "a", "a long first text");
  EXPECT_EQ(ReadTextFile(scratch / "a"), "a long first text");
  WriteFileAtomically(scratch / "a", "short");
  EXPECT_EQ(ReadTextFile(scratch / "a"), "short");
  WriteFileAtomically(scratch / "a", "");
  EXPECT_EQ(ReadTextFile(scratch / "a"), "");
  EXPECT_EQ(CountFiles(scratch.path()), 1u);
}

TEST(WriteFileAtomically, SinkTakesManyPiecesAndLargeOnes) {
  const ScratchDirectory scratch;
  std::string expected;
  WriteFileAtomically(scratch / "a", [&](const ByteSink& sink) {
    for (int i = 0; i < 1000; ++i) {
      const std::string piece(static_cast<size_t>(i * 7 % 5000), static_cast<char>('a' + i % 26));
      sink(std::as_bytes(std::span(piece)));
      expected += piece;
    }
    const std::string large((size_t{3} << 20) + 17, 'z');
    sink(std::as_bytes(std::span(large)));
    expected += large;
  });
  EXPECT_TRUE(ReadTextFile(scratch / "a") == expected);
}

TEST(WriteFileAtomically, ExceptionOfTheWriterLeavesTheOldFile) {
  const ScratchDirectory scratch;
  WriteFileAtomically(scratch / "a", "old");
  EXPECT_EQ(ErrorOf([&] {
              WriteFileAtomically(scratch / "a", [](const ByteSink& sink) {
                const std::string half(size_t{2} << 20, 'x');
                sink(std::as_bytes(std::span(half)));
                Fail("stop here");
              });
            }),
            "stop here");
  EXPECT_EQ(ReadTextFile(scratch / "a"), "old");
  EXPECT_EQ(CountFiles(scratch.path()), 1u);
}

// Lets this process write no more than `bytes` to a file, as on a full disk.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    old_handler_ = std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{bytes, old_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, old_handler_);
  }

 private:
  rlimit old_;
  void (*old_handler_)(int);
};

TEST(WriteFileAtomically, FullDiskLeavesTheOldFile) {
  const ScratchDirectory scratch;
  WriteFileAtomically(scratch / "a", "old");
  std::string message;
  {
    const FullDisk full(size_t{1} << 20);
    message = ErrorOf([&] { WriteFileAtomically(scratch / "a", std::string(size_t{2} << 20, 'x')); });
  }
  ExpectContains(message, "cannot write");
  ExpectContains(message, "nothing was replaced");
  EXPECT_EQ(ReadTextFile(scratch / "a"), "old");
  EXPECT_EQ(CountFiles(scratch.path()), 1u);
}

TEST(WriteFileAtomically, RefusesPlacesThatCannotBeWritten) {
  const ScratchDirectory scratch;
  const std::string message = ErrorOf([&] { WriteFileAtomically(scratch / "no" / "a", "x"); });
  ExpectContains(message, (scratch / "no" / "a").string());
  ExpectContains(message, "check that the directory exists");
  ExpectContains(ErrorOf([&] { WriteFileAtomically(scratch.path(), "x"); }), "is a directory");
  // A device must not be replaced by a file.
  ExpectContains(ErrorOf([&] { WriteFileAtomically("/dev/full", "x"); }), "not a regular file");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
  EXPECT_EQ(CountFiles(scratch.path()), 0u);
  if (geteuid() != 0) {  // root may write everywhere
    std::filesystem::permissions(scratch.path(),
                                 std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
    ExpectContains(ErrorOf([&] { WriteFileAtomically(scratch / "a", "x"); }), "Permission denied");
    std::filesystem::permissions(scratch.path(), std::filesystem::perms::owner_all);
  }
}

constexpr DType kAllTypes[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kI64,
                               DType::kI32, DType::kI16, DType::kI8,  DType::kU8,   DType::kBool};

TEST(Safetensors, RoundTripOfEveryType) {
  const ScratchDirectory scratch;
  std::vector<std::vector<std::byte>> data;
  std::vector<TensorToWrite> tensors;
  for (const DType dtype : kAllTypes) {
    std::vector<std::byte> bytes(6 * SizeOf(dtype));
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 11 + data.size());
    data.push_back(std::move(bytes));
  }
  for (size_t i = 0; i < data.size(); ++i) {
    tensors.push_back({"layer." + std::string(NameOf(kAllTypes[i])), kAllTypes[i], {2, 3}, data[i]});
  }
  const float scalar = 2.5f;
  tensors.push_back({"scalar", DType::kF32, {}, std::as_bytes(std::span(&scalar, 1))});
  tensors.push_back({"empty", DType::kF32, {0, 7}, {}});
  WriteSafetensors(scratch / "a", tensors, {{"kind", "test"}, {"unicode", "Läufer \"x\"\n"}, {"count", "42"}});

  const SafetensorsFile file(scratch / "a");
  EXPECT_EQ(file.tensors().size(), tensors.size());
  EXPECT_EQ(file.metadata().at("unicode"), "Läufer \"x\"\n");
  for (const TensorToWrite& tensor : tensors) {
    ASSERT_TRUE(file.Has(tensor.name));
    const TensorEntry& entry = file.Get(tensor.name);
    EXPECT_EQ(entry.dtype, tensor.dtype);
    EXPECT_EQ(entry.shape, tensor.shape);
    EXPECT_EQ(entry.count * SizeOf(entry.dtype), tensor.bytes.size());
    EXPECT_TRUE(std::equal(entry.bytes.begin(), entry.bytes.end(), tensor.bytes.begin(), tensor.bytes.end()));
  }
  EXPECT_EQ(file.ReadFloats("scalar")[0], 2.5f);
  EXPECT_EQ(file.ReadFloats("scalar").shape(), Shape{});
  EXPECT_EQ(file.ReadFloats("empty").size(), 0u);
  EXPECT_EQ(file.ReadIntegers("layer.U8"), (std::vector<int64_t>{8, 19, 30, 41, 52, 63}));
}

TEST(Safetensors, DataIsAligned) {
  const ScratchDirectory scratch;
  const std::vector<float> values = {1, 2, 3};
  for (size_t length = 1; length < 80; ++length) {  // any length of the header
    const std::vector<TensorToWrite> tensors = {
        {std::string(length, 'n'), DType::kF32, {3}, std::as_bytes(std::span(values))}};
    WriteSafetensors(scratch / "a", tensors, {});
    const SafetensorsFile file(scratch / "a");
    const auto address = reinterpret_cast<uintptr_t>(file.Get(std::string(length, 'n')).bytes.data());
    ASSERT_EQ(address % 64, 0u) << length;
  }
}

TEST(Safetensors, AsksForTheRightKind) {
  const ScratchDirectory scratch;
  const std::vector<float> values = {1, 2};
  const std::vector<int32_t> integers = {-1, 5};
  const std::vector<TensorToWrite> tensors = {{"f", DType::kF32, {2}, std::as_bytes(std::span(values))},
                                              {"i", DType::kI32, {2}, std::as_bytes(std::span(integers))}};
  WriteSafetensors(scratch / "a", tensors,
                   {{"n", "7"}, {"word", "seven"}, {"huge", "99999999999999999999"}, {"none", ""}});
  const SafetensorsFile file(scratch / "a");
  EXPECT_EQ(file.ReadIntegers("i"), (std::vector<int64_t>{-1, 5}));
  ExpectContains(ErrorOf([&] { file.ReadFloats("i"); }), "tensor 'i' has type I32");
  ExpectContains(ErrorOf([&] { file.ReadIntegers("f"); }), "tensor 'f' has type F32");
  ExpectContains(ErrorOf([&] { file.Get("x"); }), "has no tensor 'x'");
  EXPECT_EQ(file.MetadataInteger("n", 0, 7), 7);
  ExpectContains(ErrorOf([&] { file.MetadataInteger("n", 0, 6); }), "'n' is '7', not an integer from 0 to 6");
  for (const char* key : {"word", "huge", "none"}) {
    ExpectContains(ErrorOf([&] { file.MetadataInteger(key, 0, INT64_MAX); }), "not an integer");
  }
  ExpectContains(ErrorOf([&] { file.MetadataText("missing"); }), "no metadata 'missing'");
}

TEST(Safetensors, WriterRefusesNonsense) {
  const ScratchDirectory scratch;
  const std::vector<float> values = {1, 2};
  const auto bytes = std::as_bytes(std::span(values));
  const auto write = [&](const std::vector<TensorToWrite>& tensors) { WriteSafetensors(scratch / "a", tensors, {}); };
  EXPECT_THROW(write({{"f", DType::kF32, {3}, bytes}}), BugError);
  EXPECT_THROW(write({{"f", DType::kF32, {2}, bytes}, {"f", DType::kF32, {2}, bytes}}), BugError);
  EXPECT_THROW(write({{"f", DType::kF32, {uint64_t{1} << 62, 4, 2}, bytes}}), BugError);
  ExpectContains(ErrorOf([&] { write({{"\xff\xfe", DType::kF32, {2}, bytes}}); }), "not valid UTF-8");
  EXPECT_EQ(CountFiles(scratch.path()), 0u);
}

// A file by hand: the header's length, the header, and `data` zero bytes.
std::string FileOf(const std::string& header, size_t data) {
  const uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), 8) + header + std::string(data, '\0');
}

std::string FileWithLength(uint64_t length, const std::string& rest) {
  return std::string(reinterpret_cast<const char*>(&length), 8) + rest;
}

// One tensor "t" with the given fields, then 16 bytes of data.
std::string OneTensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return FileOf(R"({"t":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}", 16);
}

std::string Repeat(const std::string& text, int count) {
  std::string result;
  for (int i = 0; i < count; ++i) result += text;
  return result;
}

struct HostileFile {
  std::string name;     // of the test
  std::string content;  // whole file
  std::string message;  // what the error must say
};

void PrintTo(const HostileFile& file, std::ostream* out) { *out << file.name; }

class HostileSafetensors : public ::testing::TestWithParam<HostileFile> {};

TEST_P(HostileSafetensors, IsRefusedWithAClearMessage) {
  const ScratchDirectory scratch;
  Put(scratch / "hostile.safetensors", GetParam().content);
  const std::string message = ErrorOf([&] { SafetensorsFile file(scratch / "hostile.safetensors"); });
  ExpectContains(message, "hostile.safetensors");
  ExpectContains(message, GetParam().message);
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_LT(message.size(), 1000u);
}

const std::string kTwo = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";

INSTANTIATE_TEST_SUITE_P(
    Files, HostileSafetensors,
    ::testing::Values(
        HostileFile{"Empty", "", "has 0 bytes, too few"},              //
        HostileFile{"SevenBytes", "1234567", "has 7 bytes, too few"},  //
        HostileFile{"HeaderLengthHuge", FileWithLength(UINT64_MAX, "{}"), "header claims 18446744073709551615 bytes"},
        HostileFile{"HeaderLengthWraps", FileWithLength(UINT64_MAX - 7, "{}"), "header claims"},
        HostileFile{"HeaderPastTheEnd", FileWithLength(3, "{}"), "header claims 3 bytes, but the file has 10"},
        HostileFile{"HeaderEmpty", FileWithLength(0, ""), "not valid JSON"},
        HostileFile{"NotJson", FileOf("PK\x03\x04 zip", 4), "not valid JSON"},
        HostileFile{"CutJson", FileOf("{\"a\":", 4), "not valid JSON"},
        HostileFile{"TrailingJson", FileOf("{}{}", 4), "not valid JSON"},
        HostileFile{"InvalidUtf8", FileOf("{\"\xff\":1}", 4), "not valid JSON"},
        HostileFile{"DeepArrays", FileOf(Repeat("[", 1000000), 0), "nested too deeply"},
        HostileFile{"DeepObjects", FileOf(Repeat("{\"a\":", 200000), 0), "nested too deeply"},
        HostileFile{"Array", FileOf("[1,2]", 0), "not a JSON object"},
        HostileFile{"Number", FileOf("7", 0), "not a JSON object"},
        HostileFile{"Null", FileOf("null", 0), "not a JSON object"},
        HostileFile{"NameTwice", FileOf("{" + kTwo + "," + kTwo + "}", 8), "'a' stands twice"},
        HostileFile{"TensorIsNumber", FileOf(R"({"t":1})", 8), "'t' lacks a valid dtype"},
        HostileFile{"TensorIsNull", FileOf(R"({"t":null})", 8), "'t' lacks a valid dtype"},
        HostileFile{"NoShape", FileOf(R"({"t":{"dtype":"F32","data_offsets":[0,8]}})", 8), "'t' lacks a valid"},
        HostileFile{"NoOffsets", FileOf(R"({"t":{"dtype":"F32","shape":[2]}})", 8), "'t' lacks a valid"},
        HostileFile{"ShapeIsObject", OneTensor("\"F32\"", "{}", "[0,4]"), "'t' lacks a valid"},
        HostileFile{"ThreeOffsets", OneTensor("\"F32\"", "[4]", "[0,8,16]"), "'t' lacks a valid"},
        HostileFile{"DtypeIsNumber", OneTensor("32", "[4]", "[0,16]"), "'t' lacks a valid"},
        HostileFile{"DtypeUnknown", OneTensor("\"F7\"", "[4]", "[0,16]"), "element type 'F7'"},
        HostileFile{"OffsetsReversed", OneTensor("\"F32\"", "[4]", "[16,0]"), "at bytes 16 to 0 of 16"},
        HostileFile{"OffsetsPastTheEnd", OneTensor("\"F32\"", "[5]", "[0,20]"), "truncated or damaged"},
        HostileFile{"OffsetsFarPastTheEnd", OneTensor("\"U8\"", "[4]", "[18446744073709551611,18446744073709551615]"),
                    "truncated or damaged"},
        HostileFile{"EmptyTensorPastTheEnd", OneTensor("\"U8\"", "[0]", "[999,999]"), "truncated or damaged"},
        HostileFile{"TooFewBytes", OneTensor("\"F32\"", "[5]", "[0,16]"), "needs 20 bytes but has 16"},
        HostileFile{"TooManyBytes", OneTensor("\"F16\"", "[4]", "[0,16]"), "needs 8 bytes but has 16"},
        HostileFile{"ProductWraps", OneTensor("\"F32\"", "[4294967296,4294967296]", "[0,0]"), "impossibly large"},
        HostileFile{"BytesWrap", OneTensor("\"F32\"", "[4611686018427387908]", "[0,16]"), "impossibly large"},
        HostileFile{"HugeButEmpty", OneTensor("\"F32\"", "[1000000000000]", "[0,0]"), "needs 4000000000000 bytes"},
        HostileFile{"NegativeSize", OneTensor("\"F32\"", "[-4]", "[0,16]"), "no non-negative integer"},
        HostileFile{"FloatSize", OneTensor("\"F32\"", "[4.0]", "[0,16]"), "no non-negative integer"},
        HostileFile{"SizeTooBigForJson", OneTensor("\"F32\"", "[18446744073709551616]", "[0,16]"), "no non-negative"},
        HostileFile{"StringSize", OneTensor("\"F32\"", "[\"4\"]", "[0,16]"), "no non-negative integer"},
        HostileFile{"NegativeOffset", OneTensor("\"F32\"", "[4]", "[-16,0]"), "no non-negative integer"},
        HostileFile{"ManyDimensions", OneTensor("\"F32\"", "[1" + Repeat(",1", 100000) + "]", "[0,4]"), "dimensions"},
        HostileFile{"Overlap", FileOf("{" + kTwo + R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12),
                    "two tensors overlap"},
        HostileFile{"SameBytesTwice",
                    FileOf("{" + kTwo + R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8),
                    "two tensors overlap"},
        HostileFile{"MetadataNotObject", FileOf(R"({"__metadata__":[1]})", 0), "__metadata__ is not a JSON object"},
        HostileFile{"MetadataNotString", FileOf(R"({"__metadata__":{"n":1}})", 0), "metadata 'n' is not a string"}),
    [](const auto& test) { return test.param.name; });

// Every cut of a good file must be refused; none may crash.
TEST(Safetensors, EveryTruncationIsRefused) {
  const ScratchDirectory scratch;
  const std::vector<float> values = {1, 2, 3, 4};
  const std::vector<TensorToWrite> tensors = {{"t", DType::kF32, {4}, std::as_bytes(std::span(values))}};
  WriteSafetensors(scratch / "good", tensors, {{"k", "v"}});
  const std::string good = ReadTextFile(scratch / "good");
  for (size_t length = 0; length < good.size(); ++length) {
    Put(scratch / "cut", good.substr(0, length));
    EXPECT_THROW(SafetensorsFile file(scratch / "cut"), Error) << length;
  }
}

// Flipping any byte of the header gives a clear Error or a file that still reads within its bounds.
TEST(Safetensors, ChangedBytesNeverCrash) {
  const ScratchDirectory scratch;
  const std::vector<float> values = {1, 2, 3, 4};
  const std::vector<TensorToWrite> tensors = {{"t", DType::kF32, {2, 2}, std::as_bytes(std::span(values))}};
  WriteSafetensors(scratch / "good", tensors, {{"k", "v"}});
  const std::string good = ReadTextFile(scratch / "good");
  size_t refused = 0;
  for (size_t at = 0; at < good.size() - 16; ++at) {
    for (const char flip : {'\x01', '\x10', '\x80'}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ flip);
      Put(scratch / "bad", bad);
      try {
        const SafetensorsFile file(scratch / "bad");
        for (const auto& [name, entry] : file.tensors()) {
          EXPECT_EQ(entry.bytes.size(), entry.count * SizeOf(entry.dtype));
          if (IsFloat(entry.dtype)) file.ReadFloats(name);
        }
      } catch (const Error&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, good.size());
}

TEST(Safetensors, ReadsGoldenFiles) {
  CAIRN_NEED_SHARED(shared);
  const SafetensorsFile file(shared / "golden" / "attention_small.safetensors");
  EXPECT_EQ(file.ReadFloats("q").shape().size(), 4u);
  EXPECT_FALSE(file.metadata().empty());
}

}  // namespace
}  // namespace cairn
