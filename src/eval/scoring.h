// Judging answers to questions about a hidden fact, and how sure a share of right answers is.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace cairn {

enum class Judge {
  kFirstInteger,  // the first integer of the answer is the expected one
  kContains,      // the answer contains the expected words, whole ones, whatever their case
};

// The first run of digits without leading zeros; signs and points are not looked at.
std::optional<std::string> FirstInteger(std::string_view text);

bool IsRight(Judge judge, std::string_view given, std::string_view expected);

struct Interval {
  double low, high;
};

// Wilson's score interval of 95% for `right` of `trials`; [0, 1] without trials.
Interval WilsonInterval(size_t right, size_t trials);

}  // namespace cairn
