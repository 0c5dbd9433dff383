#include "apps/target.h"

#include "base/error.h"

namespace cairn {

void RefuseExisting(const std::filesystem::path& target, bool force) {
  std::error_code ignored;
  if (force || !std::filesystem::exists(target, ignored)) return;
  Fail("'{}' exists; choose another name or add --force to replace it", target.string());
}

}  // namespace cairn
