// ParallelFor on threads that live for one loop. Slower than OpenMP, but ThreadSanitizer understands it.
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/threads.h"

namespace cairn {

namespace {
thread_local bool inside_loop = false;
}

void ParallelFor(size_t count, const std::function<void(size_t, int)>& body) {
  const int threads = ThreadCount();
  if (count <= 1 || threads == 1 || inside_loop) {
    for (size_t i = 0; i < count; ++i) body(i, 0);
    return;
  }
  std::atomic<size_t> next{0};
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto work = [&](int thread) {
    inside_loop = true;
    try {
      for (size_t i = next++; i < count; i = next++) body(i, thread);
    } catch (...) {
      next = count;
      const std::lock_guard lock(failure_mutex);
      if (!failure) failure = std::current_exception();
    }
    inside_loop = false;
  };
  std::vector<std::thread> others;
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(work, thread);
  work(0);
  for (std::thread& other : others) other.join();
  if (failure) std::rethrow_exception(failure);
}

void ShareThreadCount() {}  // this build has no OpenMP of its own; the libraries keep their default

}  // namespace cairn
