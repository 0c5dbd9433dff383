#include "chat/jinja_lexer.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/error.h"
#include "tokenizer/utf8.h"

namespace cairn::jinja {

namespace {

bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameBegin(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool IsNamePart(char c) { return IsNameBegin(c) || IsDigit(c); }

// Line ends become \n, and one at the end is dropped.
std::string Normalize(const std::string& source) {
  std::string result;
  result.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    const bool pair = source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n';
    if (!pair) result.push_back(source[i] == '\r' ? '\n' : source[i]);
  }
  if (!result.empty() && result.back() == '\n') result.pop_back();
  return result;
}

class Lexer {
 public:
  Lexer(const std::string& source, int& line) : source_(Normalize(source)), line_(line) { line_ = 1; }

  std::vector<Token> Run() {
    while (position_ < source_.size()) {
      const size_t tag = FindTag();
      EmitData(tag);
      if (tag == std::string::npos) break;
      Tag();
    }
    Emit(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  bool At(std::string_view text) const { return source_.compare(position_, text.size(), text) == 0; }
  char Peek(size_t offset = 0) const {
    return position_ + offset < source_.size() ? source_[position_ + offset] : '\0';
  }
  void Emit(TokenKind kind, std::string text) { tokens_.push_back({kind, line_, std::move(text)}); }
  // Moves on, counting lines.
  void Advance(size_t count) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(position_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(position_ + count), '\n'));
    position_ += count;
  }
  void SkipSpace() {
    size_t end = position_;
    while (end < source_.size() && IsSpace(source_[end])) ++end;
    Advance(end - position_);
  }

  size_t FindTag() const {
    for (size_t i = source_.find('{', position_); i != std::string::npos; i = source_.find('{', i + 1)) {
      const char next = i + 1 < source_.size() ? source_[i + 1] : '\0';
      if (next == '{' || next == '%' || next == '#') return i;
    }
    return std::string::npos;
  }

  // The text up to a tag, less the white space that the tag takes away.
  void EmitData(size_t tag) {
    const bool is_last = tag == std::string::npos;
    size_t end = is_last ? source_.size() : tag;
    const size_t next = end;
    const char sign = !is_last && tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    if (sign == '-') {
      while (end > position_ && IsSpace(source_[end - 1])) --end;
    } else if (!is_last && sign != '+' && source_[tag + 1] != '{') {
      size_t begin = end;
      while (begin > position_ && IsSpace(source_[begin - 1]) && source_[begin - 1] != '\n') --begin;
      const bool line_begins = begin == position_ ? line_begins_ : source_[begin - 1] == '\n';
      if (line_begins) end = begin;
    }
    if (end > position_) Emit(TokenKind::kData, source_.substr(position_, end - position_));
    Advance(next - position_);
  }

  // A whole tag, and the white space after it that it takes away.
  void Tag() {
    const char kind = source_[position_ + 1];
    const size_t begin = position_;
    Advance(2);
    if (Peek() == '-' || Peek() == '+') Advance(1);
    if (kind == '#') {
      const size_t end = source_.find("#}", position_);
      if (end == std::string::npos) Fail("the comment that begins here with {{# does not end");
      Advance(end - position_);
      const char sign = position_ > begin + 2 ? source_[position_ - 1] : '\0';
      Advance(2);
      AfterTag(sign, true);
    } else if (kind == '%' && RawBlock()) {
      return;
    } else {
      const bool block = kind == '%';
      Emit(block ? TokenKind::kBlockBegin : TokenKind::kOutputBegin, "");
      const char sign = Tokens(block ? "%}" : "}}");
      Emit(block ? TokenKind::kBlockEnd : TokenKind::kOutputEnd, "");
      AfterTag(sign, block);
    }
  }

  void AfterTag(char sign, bool trims_line_end) {
    if (sign == '-') {
      SkipSpace();
    } else if (sign != '+' && trims_line_end && Peek() == '\n') {
      Advance(1);
    }
    line_begins_ = position_ > 0 && source_[position_ - 1] == '\n';
  }

  // {% raw %} ... {% endraw %}: what stands between is text.
  bool RawBlock() {
    const auto tag = [&](size_t from, std::string_view word) -> size_t {  // the end of "raw %}", or npos
      size_t i = from;
      while (i < source_.size() && IsSpace(source_[i])) ++i;
      if (source_.compare(i, word.size(), word) != 0) return std::string::npos;
      i += word.size();
      while (i < source_.size() && IsSpace(source_[i])) ++i;
      if (i < source_.size() && (source_[i] == '-' || source_[i] == '+')) ++i;
      return source_.compare(i, 2, "%}") == 0 ? i + 2 : std::string::npos;
    };
    const size_t content = tag(position_, "raw");
    if (content == std::string::npos) return false;
    Advance(content - position_);
    AfterTag(source_[content - 3], false);
    for (size_t i = source_.find("{%", position_); i != std::string::npos; i = source_.find("{%", i + 1)) {
      const bool signed_tag = i + 2 < source_.size() && (source_[i + 2] == '-' || source_[i + 2] == '+');
      const size_t end = tag(i + (signed_tag ? 3 : 2), "endraw");
      if (end == std::string::npos) continue;
      EmitData(i);
      Advance(end - position_);
      AfterTag(source_[end - 3], true);
      return true;
    }
    Fail("{{% raw %}} does not end with {{% endraw %}}");
  }

  // The tokens of a tag up to its end; returns the sign before the end.
  char Tokens(std::string_view end) {
    std::string open;  // brackets that are not closed yet
    for (;;) {
      SkipSpace();
      if (position_ >= source_.size()) Fail("a tag does not end with {}", end);
      const char c = Peek();
      if (open.empty()) {
        const bool has_sign = (c == '-' || (c == '+' && end == "%}")) && source_.compare(position_ + 1, 2, end) == 0;
        if (has_sign || At(end)) {
          Advance(has_sign ? 3 : 2);
          return has_sign ? c : '\0';
        }
      }
      if (IsNameBegin(c)) {
        size_t length = 1;
        while (IsNamePart(Peek(length))) ++length;
        Emit(TokenKind::kName, source_.substr(position_, length));
        Advance(length);
      } else if (IsDigit(c)) {
        Number();
      } else if (c == '"' || c == '\'') {
        String(c);
      } else {
        Operator(open);
      }
    }
  }

  void Number() {
    size_t length = 0;
    const auto digits = [&] {
      while (IsDigit(Peek(length)) || (Peek(length) == '_' && IsDigit(Peek(length + 1)))) ++length;
    };
    digits();
    bool is_float = false;
    if (Peek(length) == '.' && IsDigit(Peek(length + 1))) {
      is_float = true;
      ++length;
      digits();
    }
    if (Peek(length) == 'e' || Peek(length) == 'E') {
      const size_t sign = Peek(length + 1) == '-' || Peek(length + 1) == '+' ? 1 : 0;
      if (IsDigit(Peek(length + 1 + sign))) {
        is_float = true;
        length += 1 + sign;
        digits();
      }
    }
    std::string text = source_.substr(position_, length);
    std::erase(text, '_');
    Emit(is_float ? TokenKind::kFloat : TokenKind::kInteger, std::move(text));
    Advance(length);
  }

  void String(char quote) {
    std::string text;
    const int begin = line_;
    Advance(1);
    while (Peek() != quote) {
      if (position_ >= source_.size()) {
        line_ = begin;
        Fail("a text does not end with {}", quote);
      }
      if (Peek() == '\\') {
        Escape(text);
      } else {
        text.push_back(Peek());
        Advance(1);
      }
    }
    Advance(1);
    Emit(TokenKind::kString, std::move(text));
  }

  void Escape(std::string& text) {
    const char c = Peek(1);
    constexpr std::string_view kNames = "nrtbfav0\\'\"", kCodes("\n\r\t\b\f\a\v\0\\'\"", 11);
    if (c == 'x' || c == 'u' || c == 'U') {
      const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      uint32_t code = 0;
      for (size_t i = 0; i < digits; ++i) {
        const char d = Peek(2 + i);
        const int value = IsDigit(d)             ? d - '0'
                          : d >= 'a' && d <= 'f' ? d - 'a' + 10
                          : d >= 'A' && d <= 'F' ? d - 'A' + 10
                                                 : -1;
        if (value < 0 || code > 0x10ffff) Fail("\\{} in a text needs {} hexadecimal digits of a character", c, digits);
        code = code * 16 + static_cast<uint32_t>(value);
      }
      if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) Fail("\\{} in a text names no character", c);
      AppendUtf8(code, text);
      Advance(2 + digits);
    } else if (c == '\n') {
      Advance(2);
    } else if (const size_t known = c == '\0' ? std::string_view::npos : kNames.find(c);
               known != std::string_view::npos) {
      text.push_back(kCodes[known]);
      Advance(2);
    } else {
      text.push_back('\\');  // as Python does
      Advance(1);
    }
  }

  void Operator(std::string& open) {
    constexpr std::array<std::string_view, 6> kLong = {"==", "!=", "<=", ">=", "//", "**"};
    constexpr std::string_view kShort = "+-*/%~<>=()[]{}.,:|";
    std::string text(1, Peek());
    for (const std::string_view candidate : kLong) {
      if (At(candidate)) text = candidate;
    }
    if (text.size() == 1 && kShort.find(text[0]) == std::string_view::npos) {
      Fail("the character '{}' has no meaning here", source_.substr(position_, ReadUtf8(source_, position_).length));
    }
    if (const size_t bracket = std::string_view("([{").find(text); bracket != std::string_view::npos) {
      open.push_back(")]}"[bracket]);
    } else if (text == ")" || text == "]" || text == "}") {
      if (open.empty() || open.back() != text[0]) Fail("'{}' closes nothing", text);
      open.pop_back();
    }
    Emit(TokenKind::kOperator, text);
    Advance(text.size());
  }

  const std::string source_;
  size_t position_ = 0;
  int& line_;
  bool line_begins_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> Tokenize(const std::string& source, int& line) { return Lexer(source, line).Run(); }

}  // namespace cairn::jinja
