// Sketches of landmark keys: a few half bytes a key, made to be searched fast. A scan of sketches keeps the keys that
// promise most, of which the keys themselves are asked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "attention/landmark_panels.h"

namespace cairn {

// A query as signed bytes: a key's sum is start + the product of the bytes. Keys are stored with kNibbleZero added,
// which `start` takes off.
inline constexpr int32_t kNibbleZero = 8;
struct SketchQuery {
  const int8_t* quads;  // padded with zeros
  int32_t start;
  float unit = 1;  // what a sum of one is worth
};

// The bytes of `values`, of which the largest becomes 127, padded with zeros to `bytes`, for keys to which `zero` was
// added. False where they are not finite, or all zero.
bool EncodeSketchQuery(std::span<const float> values, size_t bytes, int32_t zero, int8_t* quads, SketchQuery& out);

// Panels of 64 sketches, [groups][64][4] bytes each, aligned to 64 bytes: the lower halves of the bytes are the first
// four of a group of eight numbers, the upper halves the others. Only the first filled[p] columns of panel p hold keys.
// Place: 64 * panel + column. A key's sum is doubled as often as `doubled` says, [panel][64].
struct SketchPanels {
  const uint8_t* data;
  size_t groups;
  const uint8_t* filled;
  const uint8_t* doubled;

  size_t panel_bytes() const { return groups * 4 * LandmarkPanels::kPanelColumns; }
};

// What a sum must reach to be one of about `wanted` of those whose maxima over 64 slots are given (reordered): keys
// fall into slots by chance, so the number of slots that are reached tells how many keys are above. The key in column c
// of the i-th panel that is scanned falls into slot (c + kSketchShift * i) % 64.
inline constexpr size_t kSketchShift = 16;
int32_t SketchThreshold(size_t wanted, int32_t* maxima);

// The places of all keys of `panels` whose sum reaches SketchThreshold, in that order, for every query; where they are
// `limit` or more, some of the best of them. Of many panels every eighth tells the threshold, so that keys should not
// stand in them by what they say. When the panels have been scanned, `refine` may name more: it is given, for every
// query, what about `best` of the keys so far reach. Only for up to kMostRefined queries.
inline constexpr size_t kMostRefined = 24;
struct SketchScan {
  std::span<const uint32_t> panels;
  size_t wanted;
  size_t limit;
  size_t best = 0;
  std::function<void(std::span<const int32_t> reached, std::vector<uint32_t>& more)> refine;
};
// What a query found: places, and the sums of their keys.
struct SketchPlaces {
  std::vector<uint32_t> places;
  std::vector<int32_t> sums;

  bool operator==(const SketchPlaces&) const = default;
};
void ScanSketches(const SketchPanels& sketches, const SketchScan& scan, size_t count, const SketchQuery* queries,
                  SketchPlaces* found);

// Marks the `take` panels, or a few more that are as good, of which the most is expected: chosen[p] = 1 where mean[p] +
// deviations * sqrt(variance[p]) is among the largest. What is not finite is marked too.
struct PanelPromise {
  std::span<const float> mean, variance;
  float deviations;
};
void MarkPromising(const PanelPromise& promise, size_t take, uint8_t* chosen);

// Marks the `take` panels, or a few more, that reach `least` most likely: those whose mean is the fewest deviations
// below it, none that is more than promise.deviations below.
void MarkReaching(const PanelPromise& promise, float least, size_t take, uint8_t* chosen);

}  // namespace cairn
