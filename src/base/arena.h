// Handing out stretches of one block of memory that was planned beforehand.
#pragma once

#include <cstddef>

#include "base/checked.h"

namespace cairn {

// Gives stretches of floats one after the other, each aligned to 64 bytes. With a null base it only counts: run the
// same plan twice, first to learn the size, then to lay it out.
class ArenaCursor {
 public:
  explicit ArenaCursor(float* base) : base_(base) {}

  float* Take(size_t floats) {
    float* result = base_ == nullptr ? nullptr : base_ + used_;
    used_ += RoundUp(floats, 16);
    return result;
  }
  size_t used() const { return used_; }

 private:
  float* base_;
  size_t used_ = 0;
};

}  // namespace cairn
