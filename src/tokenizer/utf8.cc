#include "tokenizer/utf8.h"

#include <fmt/format.h>

#include <map>

namespace cairn {

namespace {

// The character that stands for each byte: itself where it is printable, else the next free one from U+0100 on.
const std::array<uint32_t, 256>& PrintableTable() {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> result{};
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
      result[byte] = printable ? byte : next++;
    }
    return result;
  }();
  return table;
}

std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  size_t begin = 0;
  for (size_t found; (found = text.find(from, begin)) != std::string_view::npos; begin = found + from.size()) {
    result.append(text, begin, found - begin).append(to);
  }
  return result.append(text, begin);
}

}  // namespace

bool IsValidUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const Utf8Character c = ReadUtf8(text, i);
    if (c.code >= kInvalidByte) return false;
    i += c.length;
  }
  return true;
}

void AppendUtf8(uint32_t code, std::string& text) {
  const auto put = [&](uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xc0 | code >> 6), put(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    put(0xe0 | code >> 12), put(0x80 | (code >> 6 & 0x3f)), put(0x80 | (code & 0x3f));
  } else {
    put(0xf0 | code >> 18), put(0x80 | (code >> 12 & 0x3f)), put(0x80 | (code >> 6 & 0x3f)), put(0x80 | (code & 0x3f));
  }
}

std::optional<uint8_t> ParseBytePiece(std::string_view piece) {
  if (piece.size() != 6 || piece.substr(0, 3) != "<0x" || piece[5] != '>') return std::nullopt;
  unsigned value = 0;
  for (const char c : piece.substr(3, 2)) {
    if (c >= '0' && c <= '9') {
      value = value * 16 + static_cast<unsigned>(c - '0');
    } else if (c >= 'A' && c <= 'F') {
      value = value * 16 + static_cast<unsigned>(c - 'A' + 10);
    } else {
      return std::nullopt;
    }
  }
  return static_cast<uint8_t>(value);
}

std::string ReplaceSpaceSymbol(std::string_view piece) { return ReplaceAll(piece, kSpaceSymbol, " "); }
std::string InsertSpaceSymbol(std::string_view text) { return ReplaceAll(text, " ", kSpaceSymbol); }

std::string BytesToPrintable(std::string_view bytes) {
  std::string result;
  for (const char c : bytes) AppendUtf8(PrintableTable()[static_cast<uint8_t>(c)], result);
  return result;
}

std::optional<std::string> PrintableToBytes(std::string_view piece) {
  static const std::map<uint32_t, char> inverse = [] {
    std::map<uint32_t, char> result;
    for (size_t byte = 0; byte < 256; ++byte) result[PrintableTable()[byte]] = static_cast<char>(byte);
    return result;
  }();
  std::string result;
  for (size_t i = 0; i < piece.size();) {
    const Utf8Character c = ReadUtf8(piece, i);
    const auto found = inverse.find(c.code);
    if (found == inverse.end()) return std::nullopt;
    result.push_back(found->second);
    i += c.length;
  }
  return result;
}

}  // namespace cairn
