// Numbers too small for full precision cost a processor a hundred times as much as others; training has no use for
// them.
#pragma once

namespace cairn {

// From now on this thread, and the threads that it starts, take subnormal numbers as 0. Call it before the first
// parallel loop. Does nothing where the processor has no such mode.
void FlushSubnormals();

}  // namespace cairn
