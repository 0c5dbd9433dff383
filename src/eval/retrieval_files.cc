// Retrieval prompts from the files of lost-in-the-middle and LongEval.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "eval/retrieval_tasks.h"
#include "io/json.h"
#include "io/packed_files.h"

namespace cairn {

namespace {

using Json = nlohmann::json;

// Calls `take` with every JSON object of the file's lines; a value that is missing or of another type is the user's
// error.
void EachLine(const std::filesystem::path& path, const std::string& wanted,
              const std::function<FixedPrompt(const Json&)>& take, std::vector<FixedPrompt>& prompts) {
  for (const PackedFile& file : ReadPackedFiles(path)) {
    std::istringstream lines(file.bytes);
    std::string line;
    for (size_t number = 1; std::getline(lines, line); ++number) {
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      const std::string where = fmt::format("{}, line {}", file.name, number);
      const Json json = ParseJson(line, where);
      FixedPrompt prompt;
      try {
        prompt = take(json);
      } catch (const Json::exception&) {
        Fail("{}: expected {}", where, wanted);
      }
      if (prompt.fact_last <= prompt.fact_first) Fail("{}: the line that is asked for is not in the prompt", where);
      prompts.push_back(std::move(prompt));
    }
  }
  if (prompts.empty()) Fail("'{}' has no prompts; expected lines of {}", path.string(), wanted);
}

}  // namespace

std::vector<FixedPrompt> ReadKeyValuePrompts(const std::filesystem::path& path) {
  std::vector<FixedPrompt> prompts;
  EachLine(
      path, "{\"ordered_kv_records\": [[key, value], ...], \"key\": ..., \"value\": ...}",
      [](const Json& json) {
        const std::string key = json.at("key").get<std::string>();
        const Json& records = json.at("ordered_kv_records");
        FixedPrompt prompt;
        prompt.judge = Judge::kContains;
        prompt.answer = json.at("value").get<std::string>();
        prompt.length = records.size();
        prompt.text = "Extract the value corresponding to the specified key in the JSON object below.\n\nJSON data:\n{";
        bool first = true;
        for (const Json& record : records) {
          const std::string name = record.at(0).get<std::string>();
          if (!first) prompt.text += ",\n ";
          first = false;
          if (name == key) prompt.fact_first = prompt.text.size();
          prompt.text += fmt::format("\"{}\": \"{}\"", name, record.at(1).get<std::string>());
          if (name == key) prompt.fact_last = prompt.text.size();
        }
        prompt.text += fmt::format("}}\n\nKey: \"{}\"\nCorresponding value:", key);
        return prompt;
      },
      prompts);
  return prompts;
}

std::vector<FixedPrompt> ReadLinesPrompts(const std::filesystem::path& path) {
  std::vector<FixedPrompt> prompts;
  EachLine(
      path, "{\"prompt\": ..., \"correct_line\": ..., \"expected_number\": ..., \"num_lines\": ...}",
      [](const Json& json) {
        FixedPrompt prompt;
        prompt.text = json.at("prompt").get<std::string>();
        prompt.answer = std::to_string(json.at("expected_number").get<int64_t>());
        prompt.length = json.at("num_lines").get<size_t>();
        const std::string line = json.at("correct_line").get<std::string>();
        const size_t at = prompt.text.find(line);
        if (at != std::string::npos && !line.empty()) {
          prompt.fact_first = at;
          prompt.fact_last = at + line.size();
        }
        return prompt;
      },
      prompts);
  return prompts;
}

}  // namespace cairn
