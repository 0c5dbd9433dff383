// Landmark keys rounded to bytes, with proven bounds of their scores: a search reads a half or a quarter of what the
// keys themselves take, and only keys that may be among the best are scored in full. What it finds is bit for bit what
// SearchLandmarks finds.
#pragma once

#include <vector>

#include "attention/landmark_panels.h"

namespace cairn {

// Codes of the first panels of a LandmarkPanels, whole panels only: [panel][dim / 4][column][4] bytes. A key is
// centre + unit * (scale * code + error), the scale its own, centre and unit (a power of two) of each dimension taken
// from the keys: landmarks have much in common, which the centre takes off.
class LandmarkCodes {
 public:
  // Of a panel: over its keys, upper bounds of |error| / scale, |code|, |key| and the scale.
  struct Bounds {
    float error;
    float code;
    float key;
    float scale;
  };

  explicit LandmarkCodes(size_t dim);
  LandmarkCodes(const LandmarkCodes& other);
  LandmarkCodes(LandmarkCodes&&) noexcept = default;
  LandmarkCodes& operator=(LandmarkCodes&&) noexcept = default;

  // Panels that have codes follow the keys: call after every change of them. `removed`: as EraseFront returned.
  void Follow(const LandmarkPanels& keys, size_t removed = 0);

  size_t dim() const { return dim_; }
  size_t panels() const { return bounds_.size(); }
  const uint8_t* panel(size_t index) const { return codes_.data() + index * panel_bytes(); }
  const float* scales(size_t index) const { return scales_.data() + index * LandmarkPanels::kPanelColumns; }
  const Bounds& bounds(size_t index) const { return bounds_[index]; }
  const float* units() const { return units_.data(); }
  size_t bytes() const;

 private:
  size_t panel_bytes() const { return quads_ * 4 * LandmarkPanels::kPanelColumns; }
  void Calibrate(const LandmarkPanels& keys, size_t panels);
  void Encode(const LandmarkPanels& keys, size_t panel);

  size_t dim_;
  size_t quads_;
  size_t calibrated_ = 0;  // panels that centre and units were taken from
  std::vector<float> centre_, units_;
  AlignedBuffer<uint8_t> codes_;
  AlignedBuffer<float> scales_;
  std::vector<Bounds> bounds_;
};

// Whether SearchCodes is the faster one for many queries too: where the processor multiplies bytes. For a few it always
// is, because it reads less.
bool CodesServeManyQueries();

// As SearchLandmarks, with the same result. `codes` have followed `keys`.
void SearchCodes(const LandmarkCodes& codes, const LandmarkPanels& keys, size_t first, size_t last, size_t count,
                 const float* queries, BestBlocks* best);

}  // namespace cairn
