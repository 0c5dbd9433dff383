#include "base/aligned.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "base/checked.h"
#include "base/error.h"

namespace cairn::internal {

namespace {
constexpr size_t kLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;
}  // namespace

void* AllocateAligned(size_t count, size_t size) {
  const auto product = CheckedMul(count, size);
  const size_t bytes = product.value_or(SIZE_MAX);
  const bool huge = bytes >= 2 * kHugePage;
  const size_t alignment = huge ? kHugePage : kLine;
  if (bytes > SIZE_MAX - alignment)
    Fail("cannot allocate {} elements of {} bytes: no machine has that much", count, size);
  const size_t rounded = RoundUp(bytes, alignment);
  void* data = std::aligned_alloc(alignment, rounded);
  if (data == nullptr) {
    Fail("out of memory: cannot allocate {:.1f} MiB; free memory or ask for less",
         static_cast<double>(bytes) / (1 << 20));
  }
  // Before the first touch, so that the pages are huge from the start.
  if (huge) madvise(data, rounded, MADV_HUGEPAGE);
  std::memset(data, 0, rounded);
  return data;
}

void FreeAligned(void* data) { std::free(data); }

}  // namespace cairn::internal
