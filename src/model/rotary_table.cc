#include "model/rotary_table.h"

#include <cmath>

#include "base/threads.h"
#include "kernels/elementwise.h"

namespace cairn {

RotaryTable::RotaryTable(const ModelConfig& config)
    : dim_(config.head_dim),
      interleaved_(config.rotary_layout == RotaryLayout::kInterleaved),
      frequencies_(RotaryFrequencies(config)) {}

void RotaryTable::At(double position, float* cosine, float* sine) const {
  for (size_t i = 0; i < dim_ / 2; ++i) {
    cosine[i] = static_cast<float>(std::cos(position * frequencies_[i]));
    sine[i] = static_cast<float>(std::sin(position * frequencies_[i]));
  }
}

void RotaryTable::Set(const int32_t* positions, size_t rows, size_t time, bool miss) {
  const size_t half = dim_ / 2;
  const size_t wanted = positions == nullptr ? time : rows * time;
  const bool unchanged = positions == nullptr && standard_ && table_rows_ == time;
  data_rows_ = rows * time;
  if (unchanged) return;
  table_rows_ = wanted;
  standard_ = positions == nullptr;
  cosine_.resize((wanted + 1) * half);
  sine_.resize((wanted + 1) * half);
  ParallelFor(wanted, [&](size_t i, int) {
    At(positions == nullptr ? static_cast<double>(i) : positions[i], &cosine_[i * half], &sine_[i * half]);
  });
  if (miss) At(-1.0, &cosine_[wanted * half], &sine_[wanted * half]);
}

void RotaryTable::Apply(float* data, size_t row_stride, size_t heads, size_t count, bool inverse) const {
  const size_t half = dim_ / 2;
  RunRotary(data_rows_,
            {data, row_stride, heads, dim_, cosine_.data(), sine_.data(), table_rows_, interleaved_, inverse});
  if (count > data_rows_) {
    RunRotary(1, {data + data_rows_ * row_stride, row_stride, heads, dim_, &cosine_[table_rows_ * half],
                  &sine_[table_rows_ * half], 1, interleaved_, inverse});
  }
}

}  // namespace cairn
