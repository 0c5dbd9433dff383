#include "tokenizer/pre_tokenizer.h"

#include <unicode/regex.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "tokenizer/vocabulary.h"

namespace cairn {

const char* const kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const char* const kSingleDigitPattern = R"(\p{N})";
const char* const kDigitsPattern = R"(\p{N}+)";

namespace {

const char* const kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr size_t kMaxPattern = 8192;
// ICU's unit is about a millisecond: a pattern that needs longer for one match is hostile.
constexpr int32_t kTimeLimit = 5000;

// The expressions mean Unicode's White_Space by \s; ICU's own \s is narrower.
std::string WithUnicodeSpaces(const std::string& pattern) {
  std::string result;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '\\' || i + 1 == pattern.size()) {
      result += pattern[i];
      continue;
    }
    const char next = pattern[++i];
    if (next == 's') {
      result += R"(\p{White_Space})";
    } else if (next == 'S') {
      result += R"(\P{White_Space})";
    } else {
      result += {'\\', next};
    }
  }
  return result;
}

// Bytes in UTF-8 of a UTF-16 unit; each half of a surrogate pair counts two.
size_t Utf8Length(char16_t unit) {
  if (unit < 0x80) return 1;
  if (unit < 0x800 || (unit >= 0xd800 && unit < 0xe000)) return 2;
  return 3;
}

}  // namespace

std::vector<std::string> SplitPatternsOf(const std::string& name) {
  const auto is = [&](std::initializer_list<const char*> names) {
    return std::any_of(names.begin(), names.end(), [&](const char* known) { return name == known; });
  };
  if (is({"", "default", "gpt-2", "gpt2", "mpt", "olmo", "jais", "phi-2", "roberta-bpe", "exaone"}))
    return {kGpt2Pattern};
  if (is({"llama-bpe", "llama3", "llama-v3", "dbrx", "smaug-bpe", "falcon3"})) return {kLlama3Pattern};
  if (is({"qwen2", "deepseek-r1-qwen", "stablelm2"})) return {kQwen2Pattern};
  if (is({"smollm", "starcoder", "refact", "command-r", "codeshell"})) return {kSingleDigitPattern, kGpt2Pattern};
  Fail("the pre-tokenizer '{}' is not known; known are gpt-2, llama-bpe, qwen2, smollm and their kin", name);
}

struct PreTokenizer::Compiled {
  std::vector<std::unique_ptr<icu::RegexPattern>> patterns;
};

PreTokenizer::PreTokenizer(const std::vector<std::string>& patterns, const std::string& origin) : origin_(origin) {
  auto compiled = std::make_unique<Compiled>();
  cuts_before_newline_ = !patterns.empty();
  for (const std::string& pattern : patterns) {
    const std::array known = {kGpt2Pattern, kSingleDigitPattern, kDigitsPattern, kLlama3Pattern, kQwen2Pattern};
    cuts_before_newline_ &= std::find(known.begin(), known.end(), pattern) != known.end();
    if (pattern.size() > kMaxPattern) Fail("'{}': a split pattern has {} bytes, too many", origin, pattern.size());
    UErrorCode status = U_ZERO_ERROR;
    UParseError where;
    compiled->patterns.emplace_back(
        icu::RegexPattern::compile(icu::UnicodeString::fromUTF8(WithUnicodeSpaces(pattern)), where, status));
    if (U_FAILURE(status)) {
      Fail("'{}': the split pattern '{}' is not understood: {} at character {}", origin, pattern, u_errorName(status),
           where.offset);
    }
  }
  compiled_ = std::move(compiled);
}

PreTokenizer::~PreTokenizer() = default;

void PreTokenizer::Split(std::string_view text, const std::function<void(std::string_view)>& word) const {
  if (text.size() > (size_t{1} << 30)) Fail("a text of {} bytes is too long to encode at once", text.size());
  const icu::UnicodeString units = icu::UnicodeString::fromUTF8({text.data(), static_cast<int32_t>(text.size())});
  // Borders of the words, in UTF-16 units; each pattern refines them.
  std::vector<int32_t> borders = {0, units.length()}, refined;
  for (const auto& pattern : compiled_->patterns) {
    UErrorCode status = U_ZERO_ERROR;
    const std::unique_ptr<icu::RegexMatcher> matcher(pattern->matcher(units, status));
    if (U_SUCCESS(status)) matcher->setTimeLimit(kTimeLimit, status);
    refined.assign(1, 0);
    const auto border = [&](int32_t place) {
      if (place > refined.back()) refined.push_back(place);
    };
    for (size_t i = 0; i + 1 < borders.size() && U_SUCCESS(status); ++i) {
      // Opaque and anchoring bounds are the default: a word is matched as if it were a text of its own.
      matcher->region(borders[i], borders[i + 1], status);
      while (U_SUCCESS(status) && matcher->find(status)) {
        border(matcher->start(status));
        border(matcher->end(status));
      }
      border(borders[i + 1]);
    }
    if (U_FAILURE(status)) Fail("'{}': a split pattern fails on the text: {}", origin_, u_errorName(status));
    borders.swap(refined);
  }
  const char16_t* const data = units.getBuffer();
  size_t begin = 0;
  for (size_t i = 0; i + 1 < borders.size(); ++i) {
    size_t end = begin;
    for (int32_t unit = borders[i]; unit < borders[i + 1]; ++unit) end += Utf8Length(data[unit]);
    word(text.substr(begin, end - begin));
    begin = end;
  }
}

}  // namespace cairn
