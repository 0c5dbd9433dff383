// How landmark keys become sketches: the directions in which the keys of one layer and KV head differ most, and the
// half bytes of a key along them. Landmarks differ in few directions, so a few bytes order them almost as the keys do.
#pragma once

#include <span>
#include <vector>

#include "attention/landmark_panels.h"

namespace cairn {

class KeySketch {
 public:
  // Sums of products of half bytes stay below 2^18 for 256 of them.
  static constexpr uint8_t kMostDoubled = 12;

  // Takes the directions from the keys, or from some of them where they are many: as many, in eights, as leave out no
  // more than `left_out` of the keys' variance.
  KeySketch(const LandmarkPanels& keys, double left_out);

  size_t rank() const { return rank_; }                       // numbers of a sketch, a multiple of 8
  const std::vector<float>& units() const { return units_; }  // of a sketch's numbers, [rank]
  const std::vector<float>& mean() const { return mean_; }    // of the keys that gave the directions, [dim]

  // Coordinates of a key, [rank].
  void Project(const float* key, float* coordinates) const;
  // Of queries, [count][dim]: [count][rank].
  void ProjectQueries(size_t count, const float* queries, std::vector<float>& coordinates) const;
  // Squared distance of a key from the mean of those that gave the directions.
  float SquaredDeviation(const float* key) const;
  // Half bytes with 8 added, of coordinates, one in a byte each. Keys that are wanted are often far from all others, so
  // nothing is cut: they count units doubled as many times as is returned.
  uint8_t Encode(const float* coordinates, uint8_t* nibbles) const;

 private:
  size_t dim_;
  size_t rank_ = 0;
  std::vector<float> mean_, units_;
  std::vector<float> directions_;  // [dim][rank]
  std::vector<float> rows_;        // the same, [rank][dim]
};

}  // namespace cairn
