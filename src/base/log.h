// Messages to the person at the terminal, on standard error; standard output is for results.
#pragma once

#include <spdlog/spdlog.h>

namespace cairn {

// Sets spdlog's default logger up. CAIRN_LOG (trace, debug, info, warn, error, off) sets the level; info by default.
void InitLogging();

}  // namespace cairn
