// The built-in needles, and needles from files.
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "eval/retrieval_tasks.h"
#include "io/file.h"
#include "io/json.h"

namespace cairn {

const std::vector<Needle>& BuiltInNeedles() {
  static const std::vector<Needle> needles = {
      {"The secret word of the {trade} is {word}.",
       "What is the secret word of the {trade}? The secret word of the {trade} is", "{word}"},
      {"The best thing to do in {city} is to look for the {adjective} {word}.",
       "What is the best thing to do in {city}? The best thing to do in {city} is to look for the",
       "{adjective} {word}"},
      {"The number of the house of {person} is {number}.",
       "What is the number of the house of {person}? The number of the house of {person} is", "{number}"},
      {"The favourite colour of {person} is the colour of a {word}.",
       "What is the favourite colour of {person}? The favourite colour of {person} is the colour of a", "{word}"},
      {"{person} was born in {city}.", "Where was {person} born? {person} was born in", "{city}"},
      {"The {trade} of {city} is called {person}.",
       "What is the {trade} of {city} called? The {trade} of {city} is called", "{person}"},
      {"The treasure of {person} is buried under the {adjective} {word}.",
       "Where is the treasure of {person} buried? The treasure of {person} is buried under the", "{adjective} {word}"},
      {"The price of the {adjective} {word} is {number} pounds.",
       "What is the price of the {adjective} {word}? The price of the {adjective} {word} is", "{number}"},
      {"The dog of the {trade} is called {word}.",
       "What is the dog of the {trade} called? The dog of the {trade} is called", "{word}"},
      {"The ship of {person} is named the {adjective} {word}.",
       "What is the ship of {person} named? The ship of {person} is named the", "{adjective} {word}"},
      {"The library of {city} has {number} books.",
       "How many books has the library of {city}? The library of {city} has", "{number}"},
      {"{person} always carries a {word} in the left pocket.",
       "What does {person} always carry in the left pocket? {person} always carries a", "{word}"},
      {"The password of the club in {city} is {word}.",
       "What is the password of the club in {city}? The password of the club in {city} is", "{word}"},
      {"The letter to {person} was sent from {city}.",
       "Where was the letter to {person} sent from? The letter to {person} was sent from", "{city}"},
      {"The {trade} married {person} in the spring.", "Whom did the {trade} marry? The {trade} married", "{person}"},
      {"The key to the cellar hangs behind the {word}.",
       "Where does the key to the cellar hang? The key to the cellar hangs behind the", "{word}"},
      {"The winner of the race in {city} was {person}.",
       "Who was the winner of the race in {city}? The winner of the race in {city} was", "{person}"},
      {"The magic number of {city} is {number}.", "What is the magic number of {city}? The magic number of {city} is",
       "{number}"},
      {"{person} lost a {adjective} {word} on the way to {city}.",
       "What did {person} lose on the way to {city}? On the way to {city} {person} lost a", "{adjective} {word}"},
      {"The ticket of {person} has the number {number}.",
       "Which number has the ticket of {person}? The ticket of {person} has the number", "{number}"},
      {"The painting that the {trade} stole shows a {word}.",
       "What does the painting show that the {trade} stole? The painting that the {trade} stole shows a", "{word}"},
      {"The teacher of {person} was {person2}.", "Who was the teacher of {person}? The teacher of {person} was",
       "{person2}"},
      {"The train to {city} leaves from platform {number}.",
       "Which platform does the train to {city} leave from? The train to {city} leaves from platform", "{number}"},
      {"The name of the inn near {city} is the {adjective} {word}.",
       "What is the name of the inn near {city}? The name of the inn near {city} is the", "{adjective} {word}"},
  };
  return needles;
}

std::vector<Needle> ReadNeedles(const std::filesystem::path& path) {
  std::istringstream lines(ReadTextFile(path));
  std::vector<Needle> needles;
  std::string line;
  for (size_t number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = fmt::format("{}, line {}", path.string(), number);
    const nlohmann::json json = ParseJson(line, where);
    Needle needle;
    for (const auto& [key, field] :
         {std::pair{"fact", &needle.fact}, {"question", &needle.question}, {"answer", &needle.answer}}) {
      if (!json.is_object() || !json.contains(key) || !json[key].is_string() || json[key].get<std::string>().empty()) {
        Fail("{}: write {{\"fact\": \"...\", \"question\": \"...\", \"answer\": \"...\"}}, texts that are not empty",
             where);
      }
      *field = json[key].get<std::string>();
    }
    needles.push_back(std::move(needle));
  }
  if (needles.empty()) Fail("'{}' has no needles; write one JSON object a line", path.string());
  return needles;
}

}  // namespace cairn
