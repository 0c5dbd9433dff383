#include "eval/retrieval_task.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/random.h"

namespace cairn {

namespace {

// Numbers of the tokens that hold any of the bytes [first, last) of what `ids` spell, ids[0] being token `at`.
void TokensOfBytes(const Tokenizer& tokenizer, std::span<const int32_t> ids, size_t at, size_t first, size_t last,
                   std::vector<size_t>& tokens) {
  size_t begin = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const size_t end = begin + tokenizer.TokenBytes(ids[i]).size();
    if (begin < last && end > first) tokens.push_back(at + i);
    begin = end;
  }
}

// Bytes of every place of `answer` in `text`, whole words alone.
std::vector<size_t> PlacesOf(const std::string& answer, const std::string& text) {
  std::vector<size_t> places;
  if (answer.empty()) return places;
  for (size_t at = text.find(answer); at != std::string::npos; at = text.find(answer, at + 1)) {
    const size_t before = at == 0 ? 0 : at - 1;
    if (IsRight(Judge::kContains, std::string_view(text).substr(before, at - before + answer.size() + 1), answer)) {
      places.push_back(at);
    }
  }
  return places;
}

}  // namespace

HiddenFactTask::HiddenFactTask(std::shared_ptr<const Tokenizer> tokenizer, std::vector<int32_t> begin,
                               HiddenFactText text)
    : tokenizer_(std::move(tokenizer)), text_(std::move(text)), opening_(std::move(begin)) {
  const std::vector<int32_t> head = tokenizer_->Encode(text_.head);
  opening_.insert(opening_.end(), head.begin(), head.end());
}

uint64_t HiddenFactTask::SeedOf(const TrialKey& key, uint64_t purpose) const {
  Random random(text_.seed);
  uint64_t seed = random.Next();
  const auto depth = static_cast<uint64_t>(std::llround((key.depth + 1) * 1e6));
  for (const uint64_t word : {purpose, static_cast<uint64_t>(key.length), depth, static_cast<uint64_t>(key.number)}) {
    seed = Random(seed ^ word).Next();
  }
  return seed;
}

double HiddenFactTask::DepthOf(const TrialKey& key) const {
  return key.depth >= 0 ? key.depth : Random(SeedOf(key, 1)).Uniform();
}

std::shared_ptr<Filler> HiddenFactTask::FillerOf(const TrialKey& key) {
  if (!text_.fresh_filler && filler_ && filler_length_ == key.length) return filler_;
  const uint64_t seed = text_.fresh_filler ? SeedOf(key, 2) : text_.seed;
  auto filler = std::make_shared<Filler>(tokenizer_, text_.filler(key.length, seed), text_.head.empty());
  filler->Tokens(key.length);  // names are drawn against what a whole prompt's filler has
  if (!text_.fresh_filler) {
    filler_ = filler;
    filler_length_ = key.length;
  }
  return filler;
}

Prompt HiddenFactTask::Build(const TrialKey& key) {
  const std::shared_ptr<Filler> filler = FillerOf(key);
  Random random(SeedOf(key, 3));
  const std::set<std::string> none;
  const HiddenFact fact = text_.draw(random, filler->source().names ? *filler->source().names : none);

  const std::string fact_text = text_.fact_joint + fact.fact + text_.after_fact;
  const std::vector<int32_t> fact_ids = tokenizer_->EncodeMiddle(fact_text);
  const std::vector<int32_t> question = tokenizer_->EncodeMiddle(text_.question_joint + fact.question);
  const size_t fixed = opening_.size() + fact_ids.size() + question.size();
  if (fixed > key.length) {
    Fail("a prompt of {} tokens is too short: without any filler it has {}; use larger --lengths", key.length, fixed);
  }
  const size_t room = key.length - fixed;
  Prompt prompt;
  prompt.depth = DepthOf(key);
  prompt.question = fact.question;
  prompt.answer = fact.answer;
  prompt.judge = fact.judge;
  const auto wanted = static_cast<size_t>(std::llround(prompt.depth * static_cast<double>(room)));
  // At the very end the filler may have to be cut inside a piece.
  size_t before = wanted == room ? filler->Cut(room) : filler->PieceEnd(wanted);
  // A text does not begin with the white space before the fact.
  if (before == 0 && text_.head.empty()) before = filler->Cut(std::min<size_t>(room, 64));
  const std::vector<int32_t>& tokens = filler->Tokens(room + 1);
  const auto at = [&](size_t i) { return tokens.begin() + static_cast<ptrdiff_t>(i); };

  prompt.ids = opening_;
  prompt.ids.insert(prompt.ids.end(), at(0), at(before));
  prompt.fact_first = prompt.ids.size();
  prompt.ids.insert(prompt.ids.end(), fact_ids.begin(), fact_ids.end());
  prompt.fact_last = prompt.ids.size();
  if (filler->source().restarts) {
    prompt.ids.insert(prompt.ids.end(), at(0), at(filler->Cut(room - before)));
  } else {
    prompt.ids.insert(prompt.ids.end(), at(before), at(std::max(before, filler->Cut(room))));
  }
  prompt.ids.insert(prompt.ids.end(), question.begin(), question.end());

  for (const size_t place : PlacesOf(fact.answer, fact_text)) {
    TokensOfBytes(*tokenizer_, fact_ids, prompt.fact_first, place, place + fact.answer.size(), prompt.value_tokens);
  }
  if (prompt.value_tokens.empty()) {
    prompt.value_tokens.resize(fact_ids.size());
    std::iota(prompt.value_tokens.begin(), prompt.value_tokens.end(), prompt.fact_first);
  }
  return prompt;
}

FixedPromptTask::FixedPromptTask(std::shared_ptr<const Tokenizer> tokenizer, std::vector<int32_t> begin,
                                 std::vector<FixedPrompt> prompts, std::string unit)
    : tokenizer_(std::move(tokenizer)), begin_(std::move(begin)), unit_(std::move(unit)) {
  for (FixedPrompt& prompt : prompts) prompts_[prompt.length].push_back(std::move(prompt));
}

std::map<size_t, size_t> FixedPromptTask::Lengths() const {
  std::map<size_t, size_t> lengths;
  for (const auto& [length, prompts] : prompts_) lengths[length] = prompts.size();
  return lengths;
}

const FixedPrompt& FixedPromptTask::Find(const TrialKey& key) const {
  const auto found = prompts_.find(key.length);
  if (found == prompts_.end()) Fail("the file has no prompt of {} {}", key.length, unit_);
  CAIRN_CHECK(key.number < found->second.size());
  return found->second[key.number];
}

double FixedPromptTask::DepthOf(const TrialKey& key) const {
  const FixedPrompt& prompt = Find(key);
  return static_cast<double>(prompt.fact_first) / static_cast<double>(prompt.text.size());
}

Prompt FixedPromptTask::Build(const TrialKey& key) {
  const FixedPrompt& fixed = Find(key);
  Prompt prompt;
  prompt.ids = begin_;
  const std::vector<int32_t> ids = tokenizer_->Encode(fixed.text);
  prompt.ids.insert(prompt.ids.end(), ids.begin(), ids.end());
  prompt.depth = DepthOf(key);
  prompt.answer = fixed.answer;
  prompt.judge = fixed.judge;
  // Encoding may have put a space before the text.
  size_t bytes = 0;
  for (const int32_t id : ids) bytes += tokenizer_->TokenBytes(id).size();
  const size_t shift = bytes > fixed.text.size() ? bytes - fixed.text.size() : 0;
  const auto tokens = [&](size_t first, size_t last, std::vector<size_t>& out) {
    TokensOfBytes(*tokenizer_, ids, begin_.size(), first + shift, last + shift, out);
  };
  std::vector<size_t> fact;
  tokens(fixed.fact_first, fixed.fact_last, fact);
  if (fact.empty()) Fail("a prompt of {} {} lost its fact when it was encoded", key.length, unit_);
  prompt.fact_first = fact.front();
  prompt.fact_last = fact.back() + 1;
  const std::string fact_text = fixed.text.substr(fixed.fact_first, fixed.fact_last - fixed.fact_first);
  for (const size_t place : PlacesOf(fixed.answer, fact_text)) {
    tokens(fixed.fact_first + place, fixed.fact_first + place + fixed.answer.size(), prompt.value_tokens);
  }
  if (prompt.value_tokens.empty()) prompt.value_tokens = fact;
  return prompt;
}

}  // namespace cairn
