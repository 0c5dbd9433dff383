// Errors of the library: Error for what a user can mend, CAIRN_CHECK for bugs.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace cairn {

// Something outside the program is wrong: a file, a flag, a full disk. The message is one line that
// says what was wrong, where, and what to do. Thrown by the library; only main() turns it into an
// exit code.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A broken promise inside the program. Never the user's fault.
class BugError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

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
