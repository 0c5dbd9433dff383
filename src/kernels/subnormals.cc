#include "kernels/subnormals.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace cairn {

void FlushSubnormals() {
#if defined(__SSE2__)
  constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
  _mm_setcsr(_mm_getcsr() | kFlushToZero | kDenormalsAreZero);
#endif
}

}  // namespace cairn
