// Pictures of what trials of a retrieval task came to.
#pragma once

#include <span>
#include <string>

#include "eval/retrieval_report.h"

namespace cairn {

// Right answers and blocks found over length, with the interval of the answers. `sums` by length.
std::string DrawAccuracy(std::span<const TrialSum> sums, const std::string& title, const std::string& unit);
// Right answers by depth and length. `sums` by length and depth.
std::string DrawAccuracyHeat(std::span<const TrialSum> sums, const std::string& title, const std::string& unit);

}  // namespace cairn
