// Who chooses the blocks that are retrieved, and the record of what was read.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace cairn {

enum class Granularity {
  kHeadAndToken,  // each query row of each head chooses for itself
  kHead,          // all rows of a chunk choose together, each head for itself
  kToken,         // all heads choose together, each row for itself
};

std::string_view NameOf(Granularity granularity);                    // "head-and-token", "head", "token"
std::optional<Granularity> GranularityNamed(std::string_view name);  // also with underscores

// What one query row of one head read: which blocks, numbered from the start of the text, and how much each weighed
// (0 where the context-miss token kept the row from reading).
struct BlockRead {
  size_t block;
  double gate;
};

}  // namespace cairn
