// Compressed files and archives: what they hold, and how damage is reported.
#include <gtest/gtest.h>
#include <lzma.h>
#include <zlib.h>

#include "io/file.h"
#include "io/packed_files.h"
#include "model_makers.h"
#include "tests/test_files.h"

namespace cairn {
namespace {

std::string Gzip(const std::string& text) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string Xz(const std::string& text) {
  std::string out(lzma_stream_buffer_bound(text.size()), '\0');
  size_t size = 0;
  EXPECT_EQ(lzma_easy_buffer_encode(1, LZMA_CHECK_CRC64, nullptr, reinterpret_cast<const uint8_t*>(text.data()),
                                    text.size(), reinterpret_cast<uint8_t*>(out.data()), &size, out.size()),
            LZMA_OK);
  out.resize(size);
  return out;
}

std::string TarEntry(const std::string& name, const std::string& text, char type = '0') {
  std::string header(512, '\0');
  header.replace(0, name.size(), name);
  header.replace(124, 11, fmt::format("{:011o}", text.size()));
  header[156] = type;
  header.replace(257, 8,
                 std::string("ustar\0"
                             "00",
                             8));
  std::string body = text;
  body.resize((text.size() + 511) / 512 * 512, '\0');
  return header + body;
}

TEST(PackedFiles, EveryKindGivesItsText) {
  std::string text;
  for (int i = 0; i < 200000; ++i) text += std::to_string(i);  // more than one step of the readers
  for (const std::string& bytes : {text, Gzip(text), Xz(text), Gzip(text.substr(0, 1000)) + Gzip(text.substr(1000))}) {
    const auto files = UnpackFiles(bytes, "name");
    ASSERT_EQ(files.size(), 1u);
    EXPECT_EQ(files[0].name, "name");
    EXPECT_TRUE(files[0].bytes == text);
  }
  const std::string tar =
      TarEntry("folder/", "", '5') + TarEntry("folder/one.txt", text) + TarEntry("two", "") + std::string(1024, '\0');
  for (const std::string& bytes : {tar, Gzip(tar), Xz(tar)}) {
    const auto files = UnpackFiles(bytes, "name");
    ASSERT_EQ(files.size(), 2u);
    EXPECT_EQ(files[0].name, "folder/one.txt");
    EXPECT_TRUE(files[0].bytes == text);
    EXPECT_EQ(files[1].name, "two");
    EXPECT_EQ(files[1].bytes, "");
  }
}

TEST(PackedFiles, DamageAndHugeFilesAreErrors) {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += std::to_string(i * i);
  EXPECT_ERROR(UnpackFiles(Gzip(text), "bomb", 1000), "too large");
  EXPECT_ERROR(UnpackFiles(Xz(text), "bomb", 1000), "too large");
  EXPECT_ERROR(UnpackFiles(text, "plain", 1000), "too large");
  for (const std::string& good : {Gzip(text), Xz(text)}) {
    EXPECT_ERROR(UnpackFiles(good.substr(0, good.size() - 3), "short"), "'short' is damaged");
    std::string bad = good;
    bad[bad.size() / 2] = static_cast<char>(bad[bad.size() / 2] ^ 0x10);
    EXPECT_ERROR(UnpackFiles(bad, "flipped"), "'flipped' is damaged");
  }
  EXPECT_ERROR(UnpackFiles(Gzip(text) + "more", "tail"), "damaged");
  std::string tar = TarEntry("one", text);
  EXPECT_ERROR(UnpackFiles(tar.substr(0, 3000), "tar"), "damaged");
  tar[124] = 'z';
  EXPECT_ERROR(UnpackFiles(tar, "tar"), "damaged");
  EXPECT_ERROR(UnpackFiles(TarEntry("folder", "", '5'), "tar"), "without files");
}

TEST(PackedFiles, LooksPacked) {
  const ScratchDirectory scratch;
  WriteFileAtomically(scratch / "plain", "hello");
  WriteFileAtomically(scratch / "empty", "");
  WriteFileAtomically(scratch / "packed", Gzip("hello"));
  EXPECT_FALSE(LooksPacked(scratch / "plain"));
  EXPECT_FALSE(LooksPacked(scratch / "empty"));
  EXPECT_TRUE(LooksPacked(scratch / "packed"));
  EXPECT_EQ(ReadPackedFiles(scratch / "packed")[0].bytes, "hello");
}

}  // namespace
}  // namespace cairn
