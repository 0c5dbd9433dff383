#include "infer/text_stream.h"

#include <algorithm>

#include "base/error.h"
#include "tokenizer/utf8.h"

namespace cairn {

namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

// The bytes of a broken character at the start of `text`: as many as could have begun a good one, at least 1.
// `open` says that the text ended before anything was wrong.
size_t BrokenLength(std::string_view text, bool& open) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  open = false;
  const uint8_t first = byte(0);
  if (first < 0xc2 || first > 0xf4) return 1;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) {
      open = true;
      return i;
    }
    // The second byte says whether the code is too small, a surrogate, or too large.
    const uint8_t low = i > 1 ? 0x80 : first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    const uint8_t high = i > 1 ? 0xbf : first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (byte(i) < low || byte(i) > high) return i;
  }
  return length;
}

}  // namespace

TextStream::TextStream(const Tokenizer& tokenizer, std::vector<std::string> stops, bool continues_text)
    : tokenizer_(tokenizer), stops_(std::move(stops)), begins_(!continues_text) {
  for (const std::string& stop : stops_) {
    if (stop.empty()) Fail("--stop was given an empty text, which stands before every token; leave it out");
    longest_stop_ = std::max(longest_stop_, stop.size());
  }
}

std::string TextStream::Push(int32_t id) {
  if (stopped_) return "";
  const std::string bytes = tokenizer_.TokenBytes(id);
  if (begins_ && !bytes.empty()) {
    held_ = tokenizer_.Decode({&id, 1});  // without the space
    begins_ = false;
  } else {
    held_ += bytes;
  }
  FindStop();
  return stopped_ ? Take(held_.size(), true) : Take(held_.size() - PossibleStop(), false);
}

std::string TextStream::Finish() { return Take(held_.size(), true); }

void TextStream::FindStop() {
  size_t best_begin = 0, best_end = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t begin = held_.find(stop);
    if (begin == std::string::npos) continue;
    const size_t end = begin + stop.size();
    if (end < best_end || (end == best_end && begin < best_begin)) {
      best_begin = begin;
      best_end = end;
    }
  }
  if (best_end == std::string::npos) return;
  held_.resize(best_begin);
  stopped_ = true;
}

size_t TextStream::PossibleStop() const {
  if (stops_.empty()) return 0;
  const std::string_view held = held_;
  for (size_t size = std::min(longest_stop_ - 1, held.size()); size > 0; --size) {
    const std::string_view end = held.substr(held.size() - size);
    for (const std::string& stop : stops_) {
      if (stop.size() > size && std::string_view(stop).substr(0, size) == end) return size;
    }
  }
  return 0;
}

std::string TextStream::Take(size_t size, bool all) {
  const std::string_view held(held_.data(), size);
  std::string text;
  size_t taken = 0;
  while (taken < size) {
    const Utf8Character character = ReadUtf8(held, taken);
    if (character.code < kInvalidByte) {
      text.append(held.substr(taken, character.length));
      taken += character.length;
      continue;
    }
    bool open = false;
    const size_t broken = BrokenLength(held.substr(taken), open);
    if (open && !all) break;
    text.append(kReplacement);
    taken += broken;
  }
  held_.erase(0, taken);
  return text;
}

}  // namespace cairn
