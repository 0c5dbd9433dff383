// The exceptions that Cairn throws.
#pragma once

#include <stdexcept>

namespace cairn {

// Something outside the library is wrong: a file, an option, a full disk. The message is one line that says what was
// wrong, where, and what to do.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A broken promise inside the library. Never the user's fault.
class BugError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

}  // namespace cairn
