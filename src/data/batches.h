// Batches for training and validation: windows of a dataset with landmarks inserted, found again by their step number.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "data/token_dataset.h"

namespace cairn {

// Target of a position that carries no loss: a landmark, or padding.
inline constexpr int32_t kIgnoredTarget = -1;

inline constexpr int32_t kNoBlock = -1;

enum class DocumentHandling {
  kJoined,    // all tokens are one row: a window may span documents
  kSeparate,  // a window stays inside a document; the last one of a document is padded
};

struct BatchOptions {
  size_t context_length = 512;  // positions of a row, landmarks included
  size_t block_length = 0;      // ordinary tokens before each landmark; 0: no landmarks
  int32_t landmark_id = -1;
  size_t batch_size = 1;  // rows, of each rank
  uint64_t seed = 0;
  DocumentHandling documents = DocumentHandling::kJoined;
  // kJoined: each epoch's windows begin at another random place, so that their borders differ. Costs at most one
  // window.
  bool shift_windows = true;
  size_t rank = 0, world = 1;  // this process takes the rank'th of world equal shares of every step
};

// Row-major [rows][positions]. A landmark stands at index L, 2L + 1, ... of each row. The target of an ordinary token
// is the next ordinary token. Padding has input 0 and kIgnoredTarget.
struct Batch {
  size_t rows = 0, positions = 0;
  std::vector<int32_t> input_ids;
  std::vector<int32_t> targets;
  size_t scored = 0;  // targets that carry loss
  // Blocks of the row in which the target stood before, where that is known (RecallRows); empty without facts.
  std::vector<std::array<int32_t, 2>> answer_blocks;
};

// Ordinary tokens in a row of `context_length` positions.
size_t OrdinaryTokens(size_t context_length, size_t block_length);

// Fills one row from its ordinary tokens: all but the last are inputs, each with its successor as target. `tokens` has
// at most OrdinaryTokens() + 1; the rest of the row is padding. Returns the number of scored positions.
size_t FillRow(std::span<const int32_t> tokens, const BatchOptions& options, std::span<int32_t> input_ids,
               std::span<int32_t> targets);

// A pseudo-random permutation of 0 .. size-1 that is computed, not stored.
class Permutation {
 public:
  Permutation(uint64_t size, uint64_t seed);
  uint64_t operator()(uint64_t index) const;

 private:
  uint64_t size_;
  int half_bits_;
  uint64_t keys_[6];
};

// Where the windows of some datasets are. Immutable and thread-safe.
class WindowIndex {
 public:
  using Datasets = std::vector<std::shared_ptr<const TokenDataset>>;
  // `cover_all`: the last, partial window counts too (validation); else only whole ones do.
  WindowIndex(Datasets datasets, const BatchOptions& options, bool cover_all);

  uint64_t count() const { return count_; }
  // The tokens of a window, at most OrdinaryTokens() + 1. `shift` < OrdinaryTokens() moves the windows of kJoined.
  void Read(uint64_t window, uint64_t shift, std::vector<int32_t>& tokens) const;

 private:
  struct Range {
    uint64_t first_window;
    size_t dataset;
    uint64_t begin, end;  // tokens
    uint64_t slack;       // tokens that the windows leave over, by which they may be shifted
  };
  void AddRange(const Range& range, uint64_t windows);

  Datasets datasets_;
  uint64_t ordinary_;
  std::vector<Range> ranges_;
  uint64_t count_ = 0;
};

// Shuffled batches for ever: every window once an epoch, in an order that the seed and the epoch decide. Any step can
// be made at any time, by any process: resuming is exact, and the ranks of a step take disjoint windows. Processes with
// the same world * batch_size see the same windows in a step.
class BatchMaker {
 public:
  // Throws Error when the options contradict each other or there is not one whole window.
  BatchMaker(WindowIndex::Datasets datasets, const BatchOptions& options);

  // The batch of a step. Thread-safe. Reuses the memory of `batch`.
  void Fill(uint64_t step, Batch& batch) const;
  // The batch of step(), which is then advanced. Not thread-safe.
  void Next(Batch& batch) { Fill(step_++, batch); }
  uint64_t step() const { return step_; }
  void Seek(uint64_t step) { step_ = step; }

  uint64_t windows_per_epoch() const { return index_.count(); }
  // The window of the global sample number `sample` = (step * world + rank) * batch_size + row, for tests and logs.
  uint64_t WindowOf(uint64_t sample) const;
  double EpochOf(uint64_t step) const;  // epochs that are done before the step

 private:
  BatchOptions options_;
  WindowIndex index_;
  uint64_t step_ = 0;
};

// All tokens once, in order, for validation. Every rank gets the same number of batches; rows past the end are padding.
class SequentialBatches {
 public:
  SequentialBatches(WindowIndex::Datasets datasets, const BatchOptions& options);

  uint64_t batch_count() const { return batch_count_; }
  void Fill(uint64_t index, Batch& batch) const;  // thread-safe
  // False at the end.
  bool Next(Batch& batch);
  void Reset() { next_ = 0; }

 private:
  BatchOptions options_;
  WindowIndex index_;
  uint64_t batch_count_;
  uint64_t next_ = 0;
};

}  // namespace cairn
