// Threads: how many, and a parallel loop. Served by OpenMP, or by std::thread in ThreadSanitizer builds
// (threads_openmp.cc, threads_std.cc).
#pragma once

#include <cstddef>
#include <functional>

namespace cairn {

// Threads that a parallel loop uses: what SetThreadCount said, else CAIRN_THREADS, else every core this
// process may run on.
int ThreadCount();

// 0 returns to the default. Not thread-safe: call at start, or between loops.
void SetThreadCount(int count);

// Calls body(index, thread) for index in [0, count), thread in [0, ThreadCount()). Indexes are handed out in
// ascending order, one at a time. The first exception of a body is thrown again here. Loops inside a loop run
// on their caller's thread alone.
void ParallelFor(size_t count, const std::function<void(size_t index, int thread)>& body);

// Makes libraries that run on OpenMP (oneDNN) use ThreadCount() threads when the calling thread calls them.
void ShareThreadCount();

namespace internal {
int DefaultThreadCount();
}

}  // namespace cairn
