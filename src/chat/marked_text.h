// Text that remembers which of its bytes came from outside, so that they cannot pass for control tokens.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace cairn {

struct MarkedText {
  std::string bytes;
  std::string marks;  // one a byte, 1 where it is untrusted; empty when the whole text is trusted

  MarkedText() = default;
  explicit MarkedText(std::string text) : bytes(std::move(text)) {}  // trusted
  static MarkedText Untrusted(std::string text) {
    MarkedText result(std::move(text));
    result.marks.assign(result.bytes.size(), '\1');
    return result;
  }

  size_t size() const { return bytes.size(); }
  bool untrusted(size_t i) const { return !marks.empty() && marks[i] != 0; }
  bool any_untrusted() const { return marks.find('\1') != std::string::npos; }

  void Append(std::string_view trusted) {
    bytes.append(trusted);
    if (!marks.empty()) marks.resize(bytes.size(), '\0');
  }
  // Bytes [begin, begin + count) of another text.
  void Append(const MarkedText& text, size_t begin = 0, size_t count = std::string::npos) {
    const size_t old = bytes.size();
    bytes.append(text.bytes, begin, count);
    if (!text.marks.empty()) {
      marks.resize(old, '\0');
      marks.append(text.marks, begin, count);
    } else if (!marks.empty()) {
      marks.resize(bytes.size(), '\0');
    }
  }
  MarkedText Part(size_t begin, size_t count = std::string::npos) const {
    MarkedText result;
    result.Append(*this, begin, count);
    return result;
  }
};

}  // namespace cairn
