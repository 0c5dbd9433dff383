#include "eval/retrieval_tasks.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/random.h"
#include "eval/random_words.h"
#include "io/file.h"
#include "io/json.h"

namespace cairn {

namespace {

constexpr uint64_t kLargestNumber = 50000;
const std::string kPairJoint = "\n ";

std::string Replaced(const std::string& text, std::string_view what, const std::string& with) {
  std::string out;
  for (size_t at = 0;;) {
    const size_t found = text.find(what, at);
    out.append(text, at, found == std::string::npos ? found : found - at);
    if (found == std::string::npos) return out;
    out += with;
    at = found + what.size();
  }
}

HiddenFactText Common(const GeneratedTaskOptions& options, const std::string& joint) {
  HiddenFactText text;
  text.seed = options.seed;
  text.fresh_filler = options.fresh_filler;
  text.fact_joint = text.question_joint = options.joint.empty() ? joint : options.joint;
  return text;
}

FillerSource BookFiller(const GeneratedTaskOptions& options, const std::string& joint, uint64_t seed) {
  FillerSource source;
  source.pieces = BookSentences(options.books, seed);
  source.cut_words = true;
  source.joint = joint;
  return source;
}

// A name that is not taken yet.
std::string NewName(const std::function<std::string()>& draw, const std::set<std::string>& taken) {
  for (int i = 0; i < 100000; ++i) {
    std::string name = draw();
    if (!taken.contains(name)) return name;
  }
  Fail("there are not enough names for so many keys; use fewer");
}

// A filler of facts alone, of the kind that is asked for.
FillerSource FactFiller(uint64_t seed, const std::string& joint, std::string (*name)(Random&),
                        std::string (*line)(const std::string& name, Random&)) {
  FillerSource source;
  source.joint = joint;
  source.names = std::make_shared<std::set<std::string>>();
  source.pieces = [names = source.names, random = Random(seed), name, line]() mutable {
    const std::string chosen = NewName([&] { return name(random); }, *names);
    names->insert(chosen);
    return line(chosen, random);
  };
  return source;
}

}  // namespace

PassKeyText ReadPassKeyText(const std::filesystem::path& path) {
  const nlohmann::json json = ParseJson(ReadTextFile(path), path.string());
  if (!json.is_object()) Fail("'{}' must be a JSON object with task, filler, fact and question", path.string());
  PassKeyText text;
  const std::map<std::string, std::string*> known = {
      {"task", &text.task}, {"filler", &text.filler}, {"fact", &text.fact}, {"question", &text.question}};
  for (const auto& [key, value] : json.items()) {
    const auto field = known.find(key);
    if (field == known.end())
      Fail("'{}': \"{}\" is not known; use task, filler, fact and question", path.string(), key);
    if (!value.is_string()) Fail("'{}': \"{}\" must be a text", path.string(), key);
    *field->second = value.get<std::string>();
  }
  if (text.fact.find("{N}") == std::string::npos)
    Fail("'{}': the fact needs {{N}} where the number stands", path.string());
  if (text.question.empty()) Fail("'{}': the question is empty", path.string());
  return text;
}

HiddenFactText PassKeyTask(const PassKeyText& wording, const GeneratedTaskOptions& options) {
  // The paper's code puts every part on a line of its own.
  HiddenFactText text = Common(options, "\n");
  text.head = wording.task;
  text.filler = [options, wording, joint = text.fact_joint](size_t, uint64_t seed) {
    if (options.books) return BookFiller(options, joint, seed);
    FillerSource source;
    source.pieces = RepeatedText(wording.filler);
    source.restarts = true;
    source.joint = joint;
    return source;
  };
  text.draw = [wording](Random& random, const std::set<std::string>&) {
    HiddenFact fact;
    fact.answer = std::to_string(1 + random.Below(kLargestNumber));
    fact.fact = Replaced(wording.fact, "{N}", fact.answer);
    fact.question = wording.question;
    return fact;
  };
  return text;
}

HiddenFactText NeedleTask(std::vector<Needle> needles, const GeneratedTaskOptions& options) {
  CAIRN_CHECK(options.books != nullptr && !needles.empty());
  HiddenFactText text = Common(options, " ");
  text.filler = [options, joint = text.fact_joint](size_t, uint64_t seed) { return BookFiller(options, joint, seed); };
  text.draw = [needles = std::move(needles)](Random& random, const std::set<std::string>&) {
    const Needle& needle = needles[random.Below(needles.size())];
    HiddenFact fact{needle.fact, needle.question, needle.answer, Judge::kContains};
    FillPlaceholders(random, {&fact.fact, &fact.question, &fact.answer});
    return fact;
  };
  return text;
}

HiddenFactText KeyValueSentencesTask(size_t keys, const GeneratedTaskOptions& options) {
  CAIRN_CHECK(options.books != nullptr);
  if (keys == 0 || keys > 2000) Fail("--keys must be from 1 to 2000");
  HiddenFactText text = Common(options, " ");
  text.filler = [options, keys, joint = text.fact_joint](size_t length, uint64_t seed) {
    FillerSource source = BookFiller(options, joint, seed);
    source.names = std::make_shared<std::set<std::string>>();
    if (keys == 1) return source;
    source.insert_every = length / keys;
    source.inserts = [names = source.names, random = Random(seed ^ 0x6b6579), joint]() mutable {
      const std::string name = NewName([&] { return RandomPerson(random); }, *names);
      names->insert(name);
      return fmt::format("{}The code of {} is {}.", joint, name, 1000 + random.Below(9000));
    };
    return source;
  };
  text.draw = [](Random& random, const std::set<std::string>& names) {
    const std::string name = NewName([&] { return RandomPerson(random); }, names);
    HiddenFact fact;
    fact.answer = std::to_string(1000 + random.Below(9000));
    fact.fact = fmt::format("The code of {} is {}.", name, fact.answer);
    fact.question = fmt::format("What is the code of {}? The code of {} is", name, name);
    return fact;
  };
  return text;
}

HiddenFactText KeyValueJsonTask(const GeneratedTaskOptions& options) {
  HiddenFactText text = Common(options, " ");
  text.head = "Extract the value corresponding to the specified key in the JSON object below.\n\nJSON data:\n{";
  text.fact_joint = text.question_joint = kPairJoint;
  text.filler = [](size_t, uint64_t seed) {
    return FactFiller(seed, kPairJoint, RandomUuid, [](const std::string& name, Random& random) {
      return fmt::format("\n \"{}\": \"{}\",", name, RandomUuid(random));
    });
  };
  text.draw = [](Random& random, const std::set<std::string>& names) {
    const std::string key = NewName([&] { return RandomUuid(random); }, names);
    HiddenFact fact;
    fact.judge = Judge::kContains;
    fact.answer = RandomUuid(random);
    fact.fact = fmt::format("\"{}\": \"{}\",", key, fact.answer);
    // The object's last pair has no comma after it.
    const std::string last = RandomUuid(random);
    fact.question = fmt::format("\"{}\": \"{}\"}}\n\nKey: \"{}\"\nCorresponding value:", last, RandomUuid(random), key);
    return fact;
  };
  return text;
}

HiddenFactText LinesTask(const GeneratedTaskOptions& options) {
  HiddenFactText text = Common(options, "\n");
  text.fact_joint = '\n';
  text.question_joint = "\n\n";
  text.head =
      "Below is a record of lines I want you to remember. Each line begins with 'line <line index>' and contains a "
      "'<REGISTER_CONTENT>' at the end of the line as a numerical value. For each line index, memorize its "
      "corresponding <REGISTER_CONTENT>. At the end of the record, I will ask you to retrieve the corresponding "
      "<REGISTER_CONTENT> of a certain line index. Now the record start:\n";
  text.filler = [](size_t, uint64_t seed) {
    return FactFiller(seed, "\n", RandomLineName, [](const std::string& name, Random& random) {
      return fmt::format("\nline {}: REGISTER_CONTENT is <{}>", name, 1 + random.Below(kLargestNumber));
    });
  };
  text.draw = [](Random& random, const std::set<std::string>& names) {
    const std::string name = NewName([&] { return RandomLineName(random); }, names);
    HiddenFact fact;
    fact.answer = std::to_string(1 + random.Below(kLargestNumber));
    fact.fact = fmt::format("line {}: REGISTER_CONTENT is <{}>", name, fact.answer);
    // The answer of the file's question is left to the model's manners; a model without any is given its beginning.
    fact.question = fmt::format(
        "Now the record is over. Tell me what is the <REGISTER_CONTENT> in line {}? I need the number.\n\nline {}: "
        "REGISTER_CONTENT is <",
        name, name);
    return fact;
  };
  return text;
}

}  // namespace cairn
