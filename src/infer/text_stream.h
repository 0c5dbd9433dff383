// Generated tokens as text that can be printed at once: whole characters only, and nothing of a stop string.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace cairn {

// All pieces together are the decoded text up to the stop string that is complete first (of several complete at the
// same byte, the longest). Bytes that are no UTF-8 become U+FFFD, one for each broken character. The tokenizer must
// outlive the stream. Not thread-safe.
class TextStream {
 public:
  // `continues_text` says that a prompt stands before: the first token then keeps the space that tokenizers put
  // before a text. Throws Error when a stop string is empty.
  TextStream(const Tokenizer& tokenizer, std::vector<std::string> stops, bool continues_text);

  // What may be printed now that the token is known; often nothing. Empty once stopped.
  std::string Push(int32_t id);
  // What was held back for a stop string or character that did not come.
  std::string Finish();

  // Whether a stop string has appeared.
  bool stopped() const { return stopped_; }

 private:
  // Cuts held_ before the stop string that is complete first.
  void FindStop();
  // Bytes at the end of held_ that may begin a stop string.
  size_t PossibleStop() const;
  // Takes whole characters from the first `size` bytes of held_; with `all` the rest too.
  std::string Take(size_t size, bool all);

  const Tokenizer& tokenizer_;
  const std::vector<std::string> stops_;
  size_t longest_stop_ = 0;
  std::string held_;
  bool begins_;  // no byte has come, and the space before a text is still to be taken off
  bool stopped_ = false;
};

}  // namespace cairn
