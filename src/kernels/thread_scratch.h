// Memory of one thread that grows to the largest use and stays.
#pragma once

#include "base/aligned.h"

namespace cairn {

// At least `size` elements. Uses that may overlap on a thread have tags of their own; `Use` may be incomplete.
template <typename T, class Use>
T* ThreadScratch(size_t size) {
  thread_local AlignedBuffer<T> buffer;
  if (buffer.size() < size) buffer = AlignedBuffer<T>(size);
  return buffer.data();
}

}  // namespace cairn
