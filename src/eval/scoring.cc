#include "eval/scoring.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace cairn {

namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
// Bytes above ASCII belong to letters.
bool IsWordByte(char c) {
  return IsDigit(c) || (Lower(c) >= 'a' && Lower(c) <= 'z') || static_cast<signed char>(c) < 0;
}

}  // namespace

std::optional<std::string> FirstInteger(std::string_view text) {
  const auto first = std::find_if(text.begin(), text.end(), IsDigit);
  if (first == text.end()) return std::nullopt;
  const auto last = std::find_if_not(first, text.end(), IsDigit);
  const auto significant = std::find_if(first, last - 1, [](char c) { return c != '0'; });
  return std::string(significant, last);
}

bool IsRight(Judge judge, std::string_view given, std::string_view expected) {
  if (judge == Judge::kFirstInteger) {
    const auto wanted = FirstInteger(expected);
    CAIRN_CHECK(wanted.has_value(), "'{}' has no integer", expected);
    return FirstInteger(given) == wanted;
  }
  if (expected.empty()) return false;
  const auto same = [](char a, char b) { return Lower(a) == Lower(b); };
  for (auto from = given.begin();; ++from) {
    from = std::search(from, given.end(), expected.begin(), expected.end(), same);
    if (from == given.end()) return false;
    const auto to = from + static_cast<ptrdiff_t>(expected.size());
    const bool begins = from == given.begin() || !IsWordByte(from[-1]) || !IsWordByte(*from);
    const bool ends = to == given.end() || !IsWordByte(*to) || !IsWordByte(to[-1]);
    if (begins && ends) return true;
  }
}

Interval WilsonInterval(size_t right, size_t trials) {
  CAIRN_CHECK(right <= trials);
  if (trials == 0) return {0, 1};
  constexpr double kZ = 1.959963984540054;  // of the standard normal's 97.5%
  const double n = static_cast<double>(trials);
  const double share = static_cast<double>(right) / n;
  const double middle = (share + kZ * kZ / (2 * n)) / (1 + kZ * kZ / n);
  const double half = kZ / (1 + kZ * kZ / n) * std::sqrt(share * (1 - share) / n + kZ * kZ / (4 * n * n));
  // Rounding must not leave the ends of the scale.
  return {right == 0 ? 0 : std::max(0.0, middle - half), right == trials ? 1 : std::min(1.0, middle + half)};
}

}  // namespace cairn
