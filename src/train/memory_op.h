// Training with memory: a long row is processed in chunks; each attends to itself and retrieves from the blocks of the
// earlier chunks, mapped into slots as at inference, with gradients through everything it reads. Distractor blocks of
// other rows, or of a bank of earlier steps, may stand in the memory too.
#pragma once

#include <utility>
#include <vector>

#include "train/attention_op.h"

namespace cairn {

// The distractors of one row in one chunk when they come from the batch's other rows: (row, block) pairs, the same in
// every layer and in both passes.
std::vector<std::pair<size_t, size_t>> DrawBatchDistractors(const MemoryTrainingConfig& config, uint64_t key,
                                                            size_t row, size_t chunk, size_t rows, size_t blocks);

std::unique_ptr<AttentionOp> MakeMemoryOp(const ModelConfig& config, size_t max_rows, size_t max_time);

}  // namespace cairn
