// Parsing of JSON text that comes from outside: nesting is limited, and keys that stand twice are refused.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace cairn {

// `name` says in messages what the text is, e.g. the file's path. Throws Error when the text is not valid JSON.
nlohmann::json ParseJson(std::string_view text, const std::string& name);

}  // namespace cairn
