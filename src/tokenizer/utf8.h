// UTF-8 character by character, for text that may be invalid, and the printable spelling of bytes that byte-level
// vocabularies use.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cairn {

// One character of a text. An invalid byte is a character of its own whose code is kInvalidByte + the byte, so that
// any bytes can be walked without loss.
struct Utf8Character {
  uint32_t code;
  uint32_t length;  // bytes, >= 1
};

inline constexpr uint32_t kInvalidByte = 0x110000;
inline constexpr std::string_view kSpaceSymbol = "\xe2\x96\x81";  // U+2581, SentencePiece's spelling of a space

// The character at text[position]; position < text.size().
inline Utf8Character ReadUtf8(std::string_view text, size_t position) {
  const auto byte = [&](size_t i) -> uint32_t { return static_cast<uint8_t>(text[position + i]); };
  const uint32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  const uint32_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  const Utf8Character invalid{kInvalidByte + first, 1};
  if (first < 0xc2 || first > 0xf4 || length > text.size() - position) return invalid;
  uint32_t code = first & (0x7fu >> length);
  for (uint32_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return invalid;
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr std::array<uint32_t, 5> kSmallest = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kSmallest[length] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return invalid;
  return {code, length};
}

bool IsValidUtf8(std::string_view text);
void AppendUtf8(uint32_t code, std::string& text);

// "<0x0A>" gives 10.
std::optional<uint8_t> ParseBytePiece(std::string_view piece);

// Space <-> U+2581.
std::string ReplaceSpaceSymbol(std::string_view piece);
std::string InsertSpaceSymbol(std::string_view text);

// GPT-2's printable spelling of bytes. FromPrintable is empty when a character is not one of the 256.
std::string BytesToPrintable(std::string_view bytes);
std::optional<std::string> PrintableToBytes(std::string_view piece);

}  // namespace cairn
