// What a verb is about to write.
#pragma once

#include <filesystem>

namespace cairn {

// Throws Error where something stands there already and --force was not given.
void RefuseExisting(const std::filesystem::path& target, bool force);

}  // namespace cairn
