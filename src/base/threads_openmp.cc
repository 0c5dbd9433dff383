// ParallelFor on OpenMP's threads, which it shares with oneDNN.
#include <omp.h>

#include <atomic>
#include <exception>
#include <mutex>

#include "base/threads.h"

namespace cairn {

void ParallelFor(size_t count, const std::function<void(size_t, int)>& body) {
  const int threads = ThreadCount();
  if (count <= 1 || threads == 1 || omp_in_parallel()) {
    for (size_t i = 0; i < count; ++i) body(i, 0);
    return;
  }
  std::atomic<size_t> next{0};
  std::exception_ptr failure;
  std::mutex failure_mutex;
#pragma omp parallel num_threads(threads)
  {
    const int thread = omp_get_thread_num();
    try {
      for (size_t i = next++; i < count; i = next++) body(i, thread);
    } catch (...) {
      next = count;
      const std::lock_guard lock(failure_mutex);
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

void ShareThreadCount() { omp_set_num_threads(ThreadCount()); }

}  // namespace cairn
