#include "base/threads.h"

#include <sched.h>

#include <cstdlib>
#include <string>

#include "base/error.h"

namespace cairn {

namespace {
int forced_count = 0;
}

int ThreadCount() {
  static const int default_count = internal::DefaultThreadCount();
  return forced_count > 0 ? forced_count : default_count;
}

void SetThreadCount(int count) {
  if (count < 0 || count > 1024) Fail("cannot use {} threads; ask for 1 to 1024, or 0 for every core", count);
  forced_count = count;
}

int internal::DefaultThreadCount() {
  if (const char* text = std::getenv("CAIRN_THREADS"); text != nullptr && *text != '\0') {
    char* end = nullptr;
    const long value = std::strtol(text, &end, 10);
    if (*end != '\0' || value < 1 || value > 1024) {
      Fail("CAIRN_THREADS is '{}'; set it to a number from 1 to 1024, or unset it", text);
    }
    return static_cast<int>(value);
  }
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
  return 1;
}

}  // namespace cairn
