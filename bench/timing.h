// Timing of repeated work.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>

namespace cairn {

inline double SecondsNow() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The best time of one call, in seconds: repeats for `min_seconds`, and at least three times unless one call alone
// takes longer than five seconds. The best, because everything that disturbs a run makes it longer.
inline double BestTime(double min_seconds, const std::function<void()>& work) {
  double best = std::numeric_limits<double>::infinity();
  const double start = SecondsNow();
  for (int runs = 0; runs < 3 || SecondsNow() - start < min_seconds; ++runs) {
    const double begin = SecondsNow();
    work();
    const double elapsed = SecondsNow() - begin;
    best = std::min(best, elapsed);
    if (elapsed > 5.0) break;
  }
  return best;
}

}  // namespace cairn
