// Files compressed by xz.
#pragma once

#include <filesystem>

namespace cairn {

// Unpacks `from` into `to`, a few kilobytes at a time. Throws Error when it is damaged or there is no room.
void UnpackXz(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace cairn
