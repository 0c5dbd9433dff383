// A progress bar on standard error, for work that takes long; silent when that is not a terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace cairn {

// Thread-safe. The bar is drawn at most ten times a second and wiped off by the destructor.
class Progress {
 public:
  // `total` in units of the caller's choice.
  Progress(std::string label, uint64_t total);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  void Add(uint64_t amount);

 private:
  void Draw();

  const std::string label_;
  const uint64_t total_;
  const bool shown_;
  const std::chrono::steady_clock::time_point start_;
  std::mutex mutex_;
  uint64_t done_ = 0;
  std::chrono::steady_clock::time_point drawn_;
};

}  // namespace cairn
