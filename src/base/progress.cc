#include "base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace cairn {

namespace {
constexpr int kWidth = 30;
}

Progress::Progress(std::string label, uint64_t total)
    : label_(std::move(label)),
      total_(std::max<uint64_t>(total, 1)),
      shown_(isatty(STDERR_FILENO) == 1),
      start_(std::chrono::steady_clock::now()),
      drawn_(start_) {}

Progress::~Progress() {
  if (shown_) std::fputs("\r\x1b[K", stderr);
}

void Progress::Add(uint64_t amount) {
  const std::lock_guard lock(mutex_);
  done_ = std::min(total_, done_ + amount);
  const auto now = std::chrono::steady_clock::now();
  if (!shown_ || now - drawn_ < std::chrono::milliseconds(100)) return;
  drawn_ = now;
  Draw();
}

void Progress::Draw() {
  const double share = static_cast<double>(done_) / static_cast<double>(total_);
  const double elapsed = std::chrono::duration<double>(drawn_ - start_).count();
  const double left = share > 0 ? elapsed * (1 - share) / share : 0;
  const auto filled = static_cast<int>(share * kWidth);
  const std::string bar =
      std::string(static_cast<size_t>(filled), '#') + std::string(static_cast<size_t>(kWidth - filled), '.');
  fmt::print(stderr, "\r{} [{}] {:3.0f}%  {:.0f} s left\x1b[K", label_, bar, share * 100, left);
  std::fflush(stderr);
}

}  // namespace cairn
