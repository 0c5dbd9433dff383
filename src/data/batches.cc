#include "data/batches.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"
#include "base/random.h"

namespace cairn {

namespace {

uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// A seed for one purpose of one epoch.
uint64_t EpochSeed(uint64_t seed, uint64_t epoch, uint64_t purpose) {
  return Mix(Mix(seed + 0x9e3779b97f4a7c15u * (epoch + 1)) + purpose);
}

const BatchOptions& Checked(const BatchOptions& options) {
  if (options.context_length < 2) Fail("a context of {} positions is too short", options.context_length);
  if (options.batch_size < 1) Fail("a batch needs at least one row");
  if (options.block_length > 0 && options.landmark_id < 0) {
    Fail("blocks of {} tokens need a landmark, but the tokenizer has none; add one with 'cairn tokenizer add-landmark'",
         options.block_length);
  }
  if (options.world < 1 || options.rank >= options.world)
    Fail("rank {} of {} is impossible", options.rank, options.world);
  return options;
}

void Shape(const BatchOptions& options, Batch& batch) {
  batch.rows = options.batch_size;
  batch.positions = options.context_length;
  batch.input_ids.resize(batch.rows * batch.positions);
  batch.targets.resize(batch.rows * batch.positions);
  batch.scored = 0;
}

void AddRow(const std::vector<int32_t>& tokens, size_t row, const BatchOptions& options, Batch& batch) {
  batch.scored += FillRow(tokens, options, std::span(batch.input_ids).subspan(row * batch.positions, batch.positions),
                          std::span(batch.targets).subspan(row * batch.positions, batch.positions));
}

}  // namespace

size_t OrdinaryTokens(size_t context_length, size_t block_length) {
  return block_length == 0 ? context_length : context_length - context_length / (block_length + 1);
}

size_t FillRow(std::span<const int32_t> tokens, const BatchOptions& options, std::span<int32_t> input_ids,
               std::span<int32_t> targets) {
  CAIRN_CHECK(tokens.size() <= OrdinaryTokens(input_ids.size(), options.block_length) + 1);
  const size_t stride = options.block_length + 1;
  size_t next = 0, scored = 0;
  for (size_t i = 0; i < input_ids.size(); ++i) {
    targets[i] = kIgnoredTarget;
    if (options.block_length > 0 && i % stride == options.block_length) {
      input_ids[i] = options.landmark_id;
      continue;
    }
    input_ids[i] = next < tokens.size() ? tokens[next] : 0;
    if (++next < tokens.size()) {
      targets[i] = tokens[next];
      ++scored;
    }
  }
  return scored;
}

Permutation::Permutation(uint64_t size, uint64_t seed) : size_(size), half_bits_(1) {
  CAIRN_CHECK(size >= 1 && size <= uint64_t{1} << 62);
  while ((uint64_t{1} << (2 * half_bits_)) < size) ++half_bits_;
  Random random(seed);
  for (uint64_t& key : keys_) key = random.Next();
}

uint64_t Permutation::operator()(uint64_t index) const {
  CAIRN_CHECK(index < size_);
  // A Feistel network permutes 0 .. 4^half_bits - 1; results outside are fed in again until one is inside.
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  do {
    uint64_t left = index >> half_bits_, right = index & mask;
    for (const uint64_t key : keys_) {
      const uint64_t mixed = left ^ (Mix(right + key) & mask);
      left = right;
      right = mixed;
    }
    index = left << half_bits_ | right;
  } while (index >= size_);
  return index;
}

WindowIndex::WindowIndex(Datasets datasets, const BatchOptions& options, bool cover_all)
    : datasets_(std::move(datasets)), ordinary_(OrdinaryTokens(options.context_length, options.block_length)) {
  for (size_t d = 0; d < datasets_.size(); ++d) {
    const TokenDataset& dataset = *datasets_[d];
    if (options.documents == DocumentHandling::kSeparate) {
      for (uint64_t i = 0; i < dataset.document_count(); ++i) {
        const uint64_t begin = dataset.document_begin(i), end = dataset.document_end(i);
        AddRange({count_, d, begin, end, 0}, DivideUp(end - begin - 1, ordinary_));
      }
    } else if (dataset.token_count() > 0) {
      const uint64_t predicted = dataset.token_count() - 1;
      uint64_t windows = cover_all ? DivideUp(predicted, ordinary_) : predicted / ordinary_;
      if (!cover_all && options.shift_windows && windows > 1) --windows;  // room for the shift
      const uint64_t whole = windows * ordinary_;
      AddRange({count_, d, 0, dataset.token_count(), predicted > whole ? predicted - whole : 0}, windows);
    }
  }
  if (count_ == 0) {
    uint64_t tokens = 0;
    for (const auto& dataset : datasets_) tokens += dataset->token_count();
    Fail("the data has {} tokens; a window takes {} and one to predict: give more text or a shorter context", tokens,
         ordinary_);
  }
}

void WindowIndex::AddRange(const Range& range, uint64_t windows) {
  if (windows == 0) return;
  ranges_.push_back(range);
  count_ += windows;
}

void WindowIndex::Read(uint64_t window, uint64_t shift, std::vector<int32_t>& tokens) const {
  CAIRN_CHECK(window < count_);
  const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), window,
                                      [](uint64_t value, const Range& range) { return value < range.first_window; });
  const Range& range = *(after - 1);
  const uint64_t begin = range.begin + (window - range.first_window) * ordinary_ + shift % (range.slack + 1);
  CAIRN_CHECK(begin < range.end);
  tokens.resize(std::min(range.end - begin, ordinary_ + 1));
  datasets_[range.dataset]->Read(begin, tokens);
}

BatchMaker::BatchMaker(WindowIndex::Datasets datasets, const BatchOptions& options)
    : options_(Checked(options)), index_(std::move(datasets), options, false) {}

uint64_t BatchMaker::WindowOf(uint64_t sample) const {
  const uint64_t epoch = sample / index_.count();
  return Permutation(index_.count(), EpochSeed(options_.seed, epoch, 1))(sample % index_.count());
}

double BatchMaker::EpochOf(uint64_t step) const {
  return static_cast<double>(step) * static_cast<double>(options_.world * options_.batch_size) /
         static_cast<double>(index_.count());
}

void BatchMaker::Fill(uint64_t step, Batch& batch) const {
  Shape(options_, batch);
  const uint64_t ordinary = OrdinaryTokens(options_.context_length, options_.block_length);
  std::vector<int32_t> tokens;
  for (size_t row = 0; row < batch.rows; ++row) {
    const uint64_t sample = (step * options_.world + options_.rank) * options_.batch_size + row;
    uint64_t shift = 0;
    if (options_.shift_windows && options_.documents == DocumentHandling::kJoined) {
      shift = Random(EpochSeed(options_.seed, sample / index_.count(), 2)).Below(ordinary);
    }
    index_.Read(WindowOf(sample), shift, tokens);
    AddRow(tokens, row, options_, batch);
  }
}

SequentialBatches::SequentialBatches(WindowIndex::Datasets datasets, const BatchOptions& options)
    : options_(Checked(options)),
      index_(std::move(datasets), options, true),
      batch_count_(DivideUp(index_.count(), options.batch_size * options.world)) {}

void SequentialBatches::Fill(uint64_t index, Batch& batch) const {
  CAIRN_CHECK(index < batch_count_);
  Shape(options_, batch);
  std::vector<int32_t> tokens;
  for (size_t row = 0; row < batch.rows; ++row) {
    const uint64_t window = (index * options_.world + options_.rank) * options_.batch_size + row;
    tokens.clear();
    if (window < index_.count()) index_.Read(window, 0, tokens);
    AddRow(tokens, row, options_, batch);
  }
}

bool SequentialBatches::Next(Batch& batch) {
  if (next_ == batch_count_) return false;
  Fill(next_++, batch);
  return true;
}

}  // namespace cairn
