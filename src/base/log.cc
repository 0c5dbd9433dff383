#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

#include <cstdlib>
#include <string>

#include "base/error.h"

namespace cairn {

void InitLogging() {
  auto logger = std::make_shared<spdlog::logger>("cairn", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_pattern("%^%l%$: %v");
  if (const char* text = std::getenv("CAIRN_LOG"); text != nullptr && *text != '\0') {
    const auto level = spdlog::level::from_str(text);
    if (level == spdlog::level::off && std::string(text) != "off") {
      Fail("CAIRN_LOG is '{}'; set it to trace, debug, info, warn, error or off", text);
    }
    logger->set_level(level);
  }
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace cairn
