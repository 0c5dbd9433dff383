#include "tokenizer/piecewise_encoder.h"

#include <algorithm>

namespace cairn {

// Leaves in the window exactly the next piece.
void PiecewiseEncoder::FindPiece() {
  // What a cut may depend on after it: the longest character.
  constexpr size_t kAhead = 8;
  const uint64_t left = text_.size() - at_;
  for (uint64_t wanted = piece_;; wanted *= 2) {
    const auto old = window_.size();
    window_.resize(static_cast<size_t>(std::min<uint64_t>(left, std::max<uint64_t>(wanted, 2 * kAhead))));
    text_.Read(at_ + old, std::span(window_).subspan(old));
    if (window_.size() == left) return;
    // Not again where none was found before.
    for (size_t cut = window_.size() - kAhead; cut > (old > kAhead ? old - kAhead : 0); --cut) {
      if (!tokenizer_.IsSafeCut(window_, cut)) continue;
      window_.resize(cut);
      return;
    }
  }
}

bool PiecewiseEncoder::Next(std::vector<int32_t>& ids, std::vector<uint64_t>& ends) {
  if (at_ == text_.size()) return false;
  window_.clear();
  FindPiece();
  const bool begins = at_ == 0;
  const std::vector<int32_t> fresh = begins ? tokenizer_.Encode(window_) : tokenizer_.EncodeMiddle(window_);
  for (size_t i = 0; i < fresh.size(); ++i) {
    // The dummy prefix is no part of the text.
    token_ += begins && i == 0 ? tokenizer_.Decode({&fresh[i], 1}).size() : tokenizer_.TokenBytes(fresh[i]).size();
    ids.push_back(fresh[i]);
    ends.push_back(std::min(token_, text_.size()));
  }
  at_ += window_.size();
  return true;
}

}  // namespace cairn
