#include "io/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace cairn {

namespace {

// Closes the descriptor when it goes out of scope.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

std::string Reason() { return std::strerror(errno); }

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : name_(path.string()) {
  // O_NONBLOCK: a named pipe without a writer would make us wait for ever.
  const Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) Fail("cannot open '{}': {}; check the path", name_, Reason());
  struct stat info;
  if (fstat(fd.get(), &info) != 0) Fail("cannot read '{}': {}", name_, Reason());
  if (S_ISDIR(info.st_mode)) Fail("'{}' is a directory; name a file in it", name_);
  if (!S_ISREG(info.st_mode)) Fail("'{}' is not a regular file; copy it to one first", name_);
  size_ = static_cast<size_t>(info.st_size);
  if (size_ == 0) return;
  void* data = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) Fail("cannot map '{}': {}", name_, Reason());
  data_ = static_cast<const std::byte*>(data);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)), name_(std::move(other.name_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(name_, other.name_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

void WriteFileAtomically(const std::filesystem::path& path, const std::function<void(const ByteSink&)>& write) {
  struct stat old;
  if (stat(path.c_str(), &old) == 0) {
    if (S_ISDIR(old.st_mode)) Fail("cannot write '{}': it is a directory; name a file in it", path.string());
    // The rename would put a file in the place of /dev/null and its like.
    if (!S_ISREG(old.st_mode)) Fail("cannot write '{}': it is not a regular file; name another", path.string());
  }
  const std::string temporary = path.string() + fmt::format(".tmp-{}", getpid());
  try {
    const Descriptor fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (fd.get() < 0)
      Fail("cannot write '{}': {}; check that the directory exists and may be written", path.string(), Reason());
    std::string buffer;
    const auto flush = [&] {
      size_t done = 0;
      while (done < buffer.size()) {
        const ssize_t n = ::write(fd.get(), buffer.data() + done, buffer.size() - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) Fail("cannot write '{}': {}; nothing was replaced", path.string(), Reason());
        done += static_cast<size_t>(n);
      }
      buffer.clear();
    };
    write([&](std::span<const std::byte> bytes) {
      constexpr size_t kBuffer = size_t{1} << 20;
      while (!bytes.empty()) {
        const size_t n = std::min(bytes.size(), kBuffer - buffer.size());
        buffer.append(reinterpret_cast<const char*>(bytes.data()), n);
        bytes = bytes.subspan(n);
        if (buffer.size() == kBuffer) flush();
      }
    });
    flush();
    if (fsync(fd.get()) != 0) Fail("cannot write '{}': {}; nothing was replaced", path.string(), Reason());
    if (rename(temporary.c_str(), path.c_str()) != 0) Fail("cannot replace '{}': {}", path.string(), Reason());
  } catch (...) {
    unlink(temporary.c_str());
    throw;
  }
  // The rename itself must survive a power cut. Failure to open the directory only weakens that promise.
  const auto parent = path.parent_path().empty() ? std::filesystem::path(".") : path.parent_path();
  if (const Descriptor directory(open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)); directory.get() >= 0) {
    fsync(directory.get());
  }
}

void WriteFileAtomically(const std::filesystem::path& path, std::string_view text) {
  WriteFileAtomically(path, [&](const ByteSink& sink) { sink(std::as_bytes(std::span(text))); });
}

std::string ReadTextFile(const std::filesystem::path& path, size_t limit) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  if (bytes.size() > limit) Fail("'{}' has {} bytes, more than the {} allowed here", file.name(), bytes.size(), limit);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace cairn
