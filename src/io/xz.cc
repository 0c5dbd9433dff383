#include "io/xz.h"

#include <lzma.h>

#include <memory>
#include <vector>

#include "base/error.h"
#include "io/file.h"

namespace cairn {

void UnpackXz(const std::filesystem::path& from, const std::filesystem::path& to) {
  const MappedFile file(from);
  lzma_stream stream = LZMA_STREAM_INIT;
  const std::unique_ptr<lzma_stream, decltype(&lzma_end)> end(&stream, &lzma_end);
  if (lzma_stream_decoder(&stream, uint64_t{1} << 30, LZMA_CONCATENATED) != LZMA_OK) {
    Fail("'{}': cannot start to unpack it", from.string());
  }
  stream.next_in = reinterpret_cast<const uint8_t*>(file.bytes().data());
  stream.avail_in = file.bytes().size();
  WriteFileAtomically(to, [&](const ByteSink& sink) {
    std::vector<std::byte> buffer(size_t{1} << 16);
    for (;;) {
      stream.next_out = reinterpret_cast<uint8_t*>(buffer.data());
      stream.avail_out = buffer.size();
      const lzma_ret result = lzma_code(&stream, LZMA_FINISH);
      sink(std::span<const std::byte>(buffer).first(buffer.size() - stream.avail_out));
      if (result == LZMA_STREAM_END) return;
      if (result != LZMA_OK) Fail("'{}' is damaged or no xz file; get it again", from.string());
    }
  });
}

}  // namespace cairn
