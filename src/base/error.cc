#include "base/error.h"

#include <string_view>

namespace cairn {

void FailCheck(const char* condition, const char* file, int line, const std::string& message) {
  std::string_view path(file);
  if (const size_t at = path.rfind("/src/"); at != std::string_view::npos) path.remove_prefix(at + 1);
  throw BugError(
      fmt::format("{}:{}: check failed: {}{}{}", path, line, condition, message.empty() ? "" : ": ", message));
}

}  // namespace cairn
