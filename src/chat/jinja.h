// Jinja templates, as far as chat templates use them: parsed once, rendered with values. Templates come from strangers:
// whatever one says, rendering ends within its limits, by a text or by an Error.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "chat/jinja_value.h"
#include "chat/marked_text.h"

namespace cairn::jinja {

using Variables = std::vector<std::pair<std::string, Value>>;

// Immutable and thread-safe.
//
// Known: output, if, for (with if and else, break, continue), set, macro, raw, comments, white space control; Python's
// literals, operators, indices, cuts and common methods; common filters and tests; range, dict, namespace,
// raise_exception, strftime_now. {% generation %} is ignored. Lists and dictionaries cannot be changed. Anything else
// is an Error that names the line.
class Template {
 public:
  // `name` says in messages where the template came from.
  Template(const std::string& source, std::string name);
  ~Template();
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;

  // The values of `variables` live in `heap`, whose limits hold. `now` is what strftime_now() tells, else the clock.
  MarkedText Render(Heap& heap, const Variables& variables, std::optional<std::time_t> now = std::nullopt) const;

 private:
  struct Tree;
  std::unique_ptr<const Tree> tree_;
};

}  // namespace cairn::jinja
