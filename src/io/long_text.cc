#include "io/long_text.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"

namespace cairn {

namespace {

constexpr size_t kBuffer = size_t{256} << 10;

}  // namespace

LongText LongText::OfFile(const std::filesystem::path& path) {
  LongText text;
  text.name_ = path.string();
  // O_NONBLOCK: a named pipe without a writer would make us wait for ever.
  text.fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (text.fd_ < 0) Fail("cannot open '{}': {}; check the path", text.name_, std::strerror(errno));
  struct stat info;
  if (fstat(text.fd_, &info) != 0) Fail("cannot read '{}': {}", text.name_, std::strerror(errno));
  if (!S_ISREG(info.st_mode)) Fail("'{}' is not a regular file; copy it to one first", text.name_);
  text.size_ = static_cast<uint64_t>(info.st_size);
  return text;
}

LongText LongText::OfStream(int fd, const std::string& name) {
  LongText text;
  text.name_ = name;
  std::string pattern = (std::filesystem::temp_directory_path() / "cairn-text-XXXXXX").string();
  text.fd_ = mkostemp(pattern.data(), O_CLOEXEC);
  if (text.fd_ < 0) Fail("cannot make a temporary file '{}': {}; set TMPDIR", pattern, std::strerror(errno));
  unlink(pattern.c_str());
  std::vector<char> buffer(kBuffer);
  for (;;) {
    const ssize_t got = read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) Fail("cannot read '{}': {}", name, std::strerror(errno));
    if (got == 0) return text;
    for (ssize_t done = 0; done < got;) {
      const ssize_t n = write(text.fd_, buffer.data() + done, static_cast<size_t>(got - done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {
        Fail("cannot keep '{}' in '{}': {}; make room there, or set TMPDIR", name,
             std::filesystem::path(pattern).parent_path().string(), std::strerror(errno));
      }
      done += n;
    }
    text.size_ += static_cast<uint64_t>(got);
  }
}

LongText LongText::OfBytes(std::string_view bytes) {
  LongText text;
  text.bytes_ = bytes;
  text.size_ = bytes.size();
  return text;
}

LongText::LongText(LongText&& other) noexcept
    : name_(std::move(other.name_)),
      fd_(std::exchange(other.fd_, -1)),
      bytes_(std::exchange(other.bytes_, {})),
      size_(std::exchange(other.size_, 0)) {}

LongText& LongText::operator=(LongText&& other) noexcept {
  std::swap(name_, other.name_);
  std::swap(fd_, other.fd_);
  std::swap(bytes_, other.bytes_);
  std::swap(size_, other.size_);
  return *this;
}

LongText::~LongText() {
  if (fd_ >= 0) close(fd_);
}

void LongText::Read(uint64_t offset, std::span<char> out) const {
  CAIRN_CHECK(offset <= size_ && out.size() <= size_ - offset);
  if (fd_ < 0) {
    std::copy_n(bytes_.begin() + static_cast<ptrdiff_t>(offset), out.size(), out.begin());
    return;
  }
  while (!out.empty()) {
    const ssize_t n = pread(fd_, out.data(), out.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) Fail("cannot read '{}': {}", name_, std::strerror(errno));
    if (n == 0) Fail("'{}' became shorter while it was being read; start again when it is at rest", name_);
    offset += static_cast<uint64_t>(n);
    out = out.subspan(static_cast<size_t>(n));
  }
}

uint64_t LongText::Checksum() const {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), XXH3_freeState);
  XXH3_64bits_reset(state.get());
  std::vector<char> buffer(kBuffer);
  for (uint64_t at = 0; at < size_;) {
    const std::span<char> part(buffer.data(), static_cast<size_t>(std::min<uint64_t>(kBuffer, size_ - at)));
    Read(at, part);
    XXH3_64bits_update(state.get(), part.data(), part.size());
    at += part.size();
  }
  return XXH3_64bits_digest(state.get());
}

}  // namespace cairn
