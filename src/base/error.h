// How errors are thrown: Fail for what a user can mend, CAIRN_CHECK for bugs. Their types are part of the public
// interface; only main() turns them into an exit code.
#pragma once

#include <fmt/format.h>

#include <cairn/error.hpp>
#include <string>
#include <utility>

namespace cairn {

template <typename... Args>
[[noreturn]] void Fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

[[noreturn]] void FailCheck(const char* condition, const char* file, int line, const std::string& message);

}  // namespace cairn

// Throws BugError when `condition` does not hold; optional fmt arguments say more.
#define CAIRN_CHECK(condition, ...)                                                      \
  do {                                                                                   \
    if (!(condition)) [[unlikely]] {                                                     \
      ::cairn::FailCheck(#condition, __FILE__, __LINE__, ::fmt::format("" __VA_ARGS__)); \
    }                                                                                    \
  } while (false)
