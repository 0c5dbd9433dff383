// Cuts a text into words by regular expressions, as byte-level vocabularies want it. Served by ICU.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {

// Immutable and thread-safe.
class PreTokenizer {
 public:
  // The patterns are applied one after the other, each to every word that the one before left; matches and the gaps
  // between them are words. Throws Error for a pattern that is not understood; `origin` is named in it.
  PreTokenizer(const std::vector<std::string>& patterns, const std::string& origin);
  ~PreTokenizer();

  // `text` must be valid UTF-8. The words are views into it, in order, and together are the text.
  void Split(std::string_view text, const std::function<void(std::string_view)>& word) const;

  // Whether a cut between an ASCII letter or digit and a newline changes no word: true for the patterns known here.
  bool cuts_before_newline() const { return cuts_before_newline_; }

 private:
  struct Compiled;
  std::unique_ptr<const Compiled> compiled_;
  bool cuts_before_newline_;
  std::string origin_;
};

// GPT-2's pattern, which Hugging Face's ByteLevel applies by itself; and the numbers pattern of its Digits.
extern const char* const kGpt2Pattern;
extern const char* const kSingleDigitPattern;
extern const char* const kDigitsPattern;

}  // namespace cairn
