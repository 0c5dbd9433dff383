// Cuts a template into text and the tokens of its tags, with Jinja's rules of white space (trim_blocks and
// lstrip_blocks are on, as for every chat template).
#pragma once

#include <string>
#include <vector>

namespace cairn::jinja {

enum class TokenKind : uint8_t {
  kData,  // text between tags
  kOutputBegin,
  kOutputEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kInteger,
  kFloat,
  kString,  // content, escapes resolved
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 1;
  std::string text;
};

// Ends with a token of kind kEnd. Throws Error; `line` is then the line of the mistake.
std::vector<Token> Tokenize(const std::string& source, int& line);

}  // namespace cairn::jinja
