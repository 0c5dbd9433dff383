// The retrieval tasks by name: pass key, needle, key-value pairs, lines of a register; generated, or read from files.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "eval/retrieval_task.h"

namespace cairn {

// What the generated tasks share.
struct GeneratedTaskOptions {
  uint64_t seed = 0;
  bool fresh_filler = false;
  std::string joint;                                      // before fact and question; "" = the task's own
  std::shared_ptr<const std::vector<std::string>> books;  // filler; null: the task's own, where it has one
};

// The paper's wording, or another one.
struct PassKeyText {
  std::string task =
      "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you "
      "about the important information there.";
  std::string filler = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";
  std::string fact = "The pass key is {N}. Remember it. {N} is the pass key.";
  std::string question = "What is the pass key? The pass key is";
};
// {"task", "filler", "fact", "question"}; what is left out stays as it is. Throws Error when something else stands
// there, or when the fact lacks {N}.
PassKeyText ReadPassKeyText(const std::filesystem::path& path);

// Facts may hold placeholders (FillPlaceholders).
struct Needle {
  std::string fact, question, answer;
};
const std::vector<Needle>& BuiltInNeedles();
// One JSON object a line. Throws Error naming the line.
std::vector<Needle> ReadNeedles(const std::filesystem::path& path);

HiddenFactText PassKeyTask(const PassKeyText& text, const GeneratedTaskOptions& options);
// Needs books.
HiddenFactText NeedleTask(std::vector<Needle> needles, const GeneratedTaskOptions& options);
// "The code of NAME is NNNN." in books, among `keys` - 1 others of its kind spread over the filler.
HiddenFactText KeyValueSentencesTask(size_t keys, const GeneratedTaskOptions& options);
// A JSON object of random UUIDs, as long as the prompt.
HiddenFactText KeyValueJsonTask(const GeneratedTaskOptions& options);
// "line NAME: REGISTER_CONTENT is <NNNNN>", as many as the prompt takes.
HiddenFactText LinesTask(const GeneratedTaskOptions& options);

// Files of lost-in-the-middle (ordered_kv_records, key, value) and LongEval (prompt, correct_line, expected_number),
// one JSON object a line; compressed files and archives too. Throws Error naming file and line.
std::vector<FixedPrompt> ReadKeyValuePrompts(const std::filesystem::path& path);
std::vector<FixedPrompt> ReadLinesPrompts(const std::filesystem::path& path);

}  // namespace cairn
