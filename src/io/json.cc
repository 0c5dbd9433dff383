#include "io/json.h"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/error.h"

namespace cairn {

nlohmann::json ParseJson(std::string_view text, const std::string& name) {
  using Json = nlohmann::json;
  constexpr int kMaxDepth = 64;
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  try {
    return Json::parse(text, [&](int depth, Json::parse_event_t event, Json& value) {
      if (depth > kMaxDepth) Fail("'{}': the JSON is nested more than {} levels deep", name, kMaxDepth);
      if (event == Json::parse_event_t::object_start) keys.emplace_back();
      if (event == Json::parse_event_t::object_end) keys.pop_back();
      if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
        Fail("'{}': the key '{}' stands twice in one object; keep one of them", name, value.get<std::string>());
      }
      return true;
    });
  } catch (const Json::parse_error& error) {
    Fail("'{}' is not valid JSON (near byte {}); the file is damaged or of another kind", name, error.byte);
  } catch (const Json::exception&) {
    Fail("'{}' is not valid JSON; a number is out of range or the text is damaged", name);
  }
}

}  // namespace cairn
