// The hierarchical index: leaves of similar keys, a sketch of a few half bytes of
// every key in them, and the keys themselves. Each level is asked only about what
// the one above finds promising. A key goes into the
// leaf whose mean is nearest; a full leaf is split in two. While keys are few,
// leaves are filled in turn, and all of them are scanned.
#include <hwy/cache_control.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>

#include "attention/landmark_sketch.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/random.h"
#include "kernels/rows.h"
#include "memory/key_sketch.h"
#include "memory/landmark_index.h"

namespace cairn {

namespace {

constexpr size_t kLeaf = LandmarkPanels::kPanelColumns;  // most keys of a leaf
constexpr size_t kBuiltLeaf = 48;                        // keys of a leaf that was just built
constexpr size_t kFirst = 1024;                          // fewer keys are scanned
// The directions of the sketches are taken anew whenever there are twice as
// many keys, up to so many.
constexpr size_t kSettled = 65536;
// The best key of a leaf is expected so many deviations above its mean.
constexpr float kDeviations = 2.0f;
// A key is far from the sketches' directions where the square of what they leave out of it is so many times the mean.
// Of many alike keys and a few others the directions are those of the many, and a sketch says nothing of the others:
// the farthest of these, one key in kFarPart or kFewFar, are looked at by every search.
constexpr float kFarTimes = 9;
constexpr size_t kFarPart = 256, kFewFar = 64;
// So many queries together scan all sketches: that costs less than choosing
// leaves for each.
constexpr size_t kManyQueries = 17;
constexpr size_t kFewLeaves = 48;  // all are scanned
// Taken beyond k: sums in another order may swap neighbours near the k-th place.
constexpr size_t kSpare = 4;
// Of a short list so many, those that the sketches say the most of, are scored first. They show how wrong sketches are
// for the query, and which of the others can still be among the best: those that reach these if their sketch is wrong
// by less than so many deviations.
constexpr size_t kRankedFirst = 32;
constexpr float kErrors = 4;
// Keys of the short list that are asked for before their turn.
constexpr size_t kMembersAhead = 24;
// More than so many at once are looked for by scanning: sketches are for a few.
constexpr size_t kMostWanted = 64;

// A key of a leaf: its number, and whether it is one of the far keys.
struct Member {
  uint32_t number;
  uint32_t far;
};

struct FarKey {
  float distance;  // squared, from the space of the sketches
  uint32_t number;

  bool operator>(const FarKey& other) const { return distance > other.distance; }
};

struct alignas(64) CacheLine {
  uint8_t bytes[64];
};

// The direction in which rows [order][rank] differ most, by power iteration;
// false where they do not differ.
bool MainDirection(const std::vector<float>& rows, size_t rank, std::span<const uint32_t> order,
                   std::vector<float>& mean, std::vector<float>& direction) {
  mean.assign(rank, 0.0f);
  for (const uint32_t i : order) {
    for (size_t r = 0; r < rank; ++r) mean[r] += rows[i * rank + r];
  }
  for (float& x : mean) x /= static_cast<float>(order.size());
  direction.assign(rank, 0.0f);
  direction[0] = 1;
  std::vector<float> next(rank);
  bool found = false;
  for (int round = 0; round < 4; ++round) {
    std::fill(next.begin(), next.end(), 0.0f);
    for (const uint32_t i : order) {
      const float* row = &rows[i * rank];
      float weight = 0;
      for (size_t r = 0; r < rank; ++r) weight += (row[r] - mean[r]) * direction[r];
      for (size_t r = 0; r < rank; ++r) next[r] += weight * (row[r] - mean[r]);
    }
    const float length = std::sqrt(std::inner_product(next.begin(), next.end(), next.begin(), 0.0f));
    if (!(length > 0) || !std::isfinite(length)) break;
    for (size_t r = 0; r < rank; ++r) direction[r] = next[r] / length;
    found = true;
  }
  return found;
}

// Orders rows so that its halves differ most; returns where the second half
// begins.
size_t Halve(const std::vector<float>& rows, size_t rank, std::span<uint32_t> order) {
  const size_t half = order.size() / 2;
  std::vector<float> mean, direction;
  if (!MainDirection(rows, rank, order, mean, direction)) return half;
  std::vector<std::pair<float, uint32_t>> places;
  for (const uint32_t i : order) {
    places.emplace_back(std::inner_product(direction.begin(), direction.end(), &rows[i * rank], 0.0f), i);
  }
  std::nth_element(places.begin(), places.begin() + static_cast<ptrdiff_t>(half), places.end());
  for (size_t i = 0; i < order.size(); ++i) order[i] = places[i].second;
  return half;
}

// What a search works in; kept for the next of the thread.
struct Scratch {
  std::vector<float> coordinates, squared, scaled, promise, spread;
  std::vector<int8_t> quads;
  std::vector<uint8_t> chosen, visited;
  std::vector<SketchQuery> queries;
  std::vector<SketchPlaces> lists;
  std::vector<uint32_t> panels, turn;
  std::vector<int32_t> order, far, found;
  std::vector<std::pair<float, uint32_t>> ranked;
  // Of keys that are scored: row, place in the list, score.
  std::vector<uint32_t> which, at;
  std::vector<float> scores;

  static Scratch& Get() {
    thread_local Scratch scratch;
    return scratch;
  }
};

// The `take` best of the ranked rows, of equals those with the lowest numbers, in order, and the one that was just
// ranked: in a list, because few of many ever enter it.
void KeepRanked(size_t take, std::pair<float, uint32_t> row, std::vector<std::pair<float, uint32_t>>& ranked) {
  if (ranked.size() == take) {
    if (!(row < ranked.back())) return;
    ranked.pop_back();
  }
  ranked.insert(std::upper_bound(ranked.begin(), ranked.end(), row), row);
}

class HierarchicalIndex : public LandmarkIndex {
 public:
  HierarchicalIndex(LandmarkPanels keys, const HierarchicalOptions& options)
      : LandmarkIndex(std::move(keys)), options_(options) {
    Added();
  }

  IndexKind kind() const override { return IndexKind::kHierarchical; }
  std::unique_ptr<LandmarkIndex> Clone() const override { return std::make_unique<HierarchicalIndex>(*this); }
  void Search(size_t first, size_t last, size_t count, const float* queries, BestBlocks* best) const override;
  void ReadKey(size_t index, float* key) const override;

 private:
  size_t ExtraBytes() const override;
  void Added() override;
  void Truncated() override;
  void ErasedFront(size_t count, size_t panels) override;

  size_t rank() const { return sketch_->rank(); }
  size_t leaves() const { return filled_.size(); }
  size_t end() const { return erased_ + keys_.size(); }
  uint8_t* SketchByte(size_t place, size_t r) {
    const size_t group = (place / kLeaf * (rank() / 8) + r / 8) * kLeaf + place % kLeaf;
    return sketches_[group / 16].bytes + group % 16 * 4 + r % 4;
  }
  uint8_t Nibble(size_t place, size_t r) { return *SketchByte(place, r) >> (r % 8 / 4 * 4) & 15; }
  void SetNibble(size_t place, size_t r, uint8_t nibble) {
    const size_t shift = r % 8 / 4 * 4;
    uint8_t* byte = SketchByte(place, r);
    *byte = static_cast<uint8_t>((*byte & ~(15 << shift)) | nibble << shift);
  }
  void Build();
  void Clear();
  void AddKey();
  size_t NewLeaf();
  void Split(size_t leaf);
  float DistanceOf(const float* key, const float* coordinates) const;
  void KeepFar(size_t number, float distance);
  void SetFar(size_t number, bool far);
  void Put(size_t leaf, Member member, const uint8_t* nibbles, uint8_t doubled);
  void Remove(size_t number);
  void Describe(size_t leaf);
  size_t Nearest(const float* coordinates) const;
  float Coordinate(uint8_t nibble, uint8_t doubled, size_t r) const {
    return sketch_->units()[r] * static_cast<float>((nibble - kNibbleZero) * (1 << doubled));
  }
  void Decode(const uint8_t* nibbles, uint8_t doubled, float* coordinates) const;
  bool EncodeQueries(size_t count, const float* queries, Scratch& s) const;
  void RankRows(const float* query, size_t first, size_t last, const SketchPlaces& list, float unit, size_t take,
                Scratch& s) const;
  size_t Part(double of, size_t least) const {  // of the leaves
    return std::min(leaves(), std::max(static_cast<size_t>(std::ceil(of * static_cast<double>(leaves()))), least));
  }
  void ChooseLeaves(size_t queries, Scratch& s) const;
  void AddLeaves(std::span<const int32_t> reached, Scratch& s, std::vector<uint32_t>& more) const;

  HierarchicalOptions options_;
  std::shared_ptr<const KeySketch> sketch_;  // null: too few keys. Shared by clones.
  size_t built_for_ = 0;                     // keys when the sketch was made
  bool clustered_ = false;                   // whether leaves hold similar keys; else all of them are scanned
  // Keys have numbers since the beginning, which erasing at the front does not
  // change.
  size_t erased_ = 0;  // number of the first key
  size_t begin_ = 0;   // of the first that places_ and key_rows_ have
  std::vector<uint32_t> places_;
  std::vector<std::byte> key_rows_;  // the keys themselves, [key][dim]: a panel's column lies in as
                                     // many cache lines
  float far_ = 0;                    // distance from which on a key is far
  std::vector<FarKey> far_keys_;     // a heap, the nearest first
  // Of each leaf.
  std::vector<uint8_t> filled_;
  std::vector<CacheLine> sketches_;         // [leaf][rank / 8][kLeaf][4]
  std::vector<Member> members_;             // [leaf][kLeaf]
  std::vector<uint8_t> doubled_;            // units of the sketch, [leaf][kLeaf]
  std::vector<float> sums_, squares_;       // of the coordinates, [leaf][rank]
  std::vector<LandmarkPanels> statistics_;  // means with -|mean|^2 / 2 behind them, and variances
};

size_t HierarchicalIndex::ExtraBytes() const {
  size_t bytes = places_.capacity() * 4 + key_rows_.capacity() + filled_.capacity() + doubled_.capacity() +
                 sketches_.capacity() * 64 + members_.capacity() * sizeof(Member) +
                 (sums_.capacity() + squares_.capacity()) * 4 + far_keys_.capacity() * sizeof(FarKey);
  for (const LandmarkPanels& panels : statistics_) bytes += panels.bytes();
  return bytes;
}

void HierarchicalIndex::ReadKey(size_t index, float* key) const {
  if (!sketch_) return LandmarkIndex::ReadKey(index, key);
  ReadLandmarkRow({key_rows_.data(), keys_.dim(), keys_.half()}, erased_ - begin_ + index, key);
}

void HierarchicalIndex::Clear() {
  sketch_ = nullptr;
  built_for_ = 0;
  far_keys_.clear();
  places_.clear();
  key_rows_.clear();
  filled_.clear();
  sketches_.clear();
  members_.clear();
  doubled_.clear();
  sums_.clear();
  squares_.clear();
  statistics_.clear();
}

void HierarchicalIndex::Added() {
  if (keys_.size() < kFirst) return;
  const bool grown = keys_.size() >= 2 * built_for_ && built_for_ < kSettled;
  // Erasing leaves holes.
  const bool thin = leaves() > 2 * kFewLeaves && leaves() * kLeaf > 4 * keys_.size();
  if (!sketch_ || grown || thin) {
    Build();
  } else {
    AddKey();
  }
}

void HierarchicalIndex::Build() {
  Clear();
  const size_t size = keys_.size();
  sketch_ = std::make_shared<const KeySketch>(keys_, options_.left_out);
  built_for_ = size;
  begin_ = erased_;
  statistics_.emplace_back(rank() + 1, false);
  statistics_.emplace_back(rank(), false);
  std::vector<float> key(keys_.dim());
  clustered_ = size >= options_.clustered_from;
  std::vector<float> coordinates(clustered_ ? size * rank() : rank());
  std::vector<uint8_t> nibbles(size * rank()), doubled(size);
  key_rows_.resize(size * keys_.row_bytes());
  std::vector<float> distances(size);
  double sum = 0;
  places_.resize(size);
  for (size_t b = 0; b < size; ++b) {
    keys_.Read(b, key.data());
    float* at = &coordinates[clustered_ ? b * rank() : 0];
    sketch_->Project(key.data(), at);
    distances[b] = DistanceOf(key.data(), at);
    sum += distances[b];
    doubled[b] = sketch_->Encode(at, &nibbles[b * rank()]);
    keys_.ReadRow(b, &key_rows_[b * keys_.row_bytes()]);
    if (clustered_) Decode(&nibbles[b * rank()], doubled[b], at);
  }
  std::vector<uint32_t> order(size);
  std::iota(order.begin(), order.end(), 0u);
  // Leaves that are all scanned hold keys from anywhere in the text, so that a part of them speaks for all.
  Random random(size);
  for (size_t i = size; !clustered_ && i > 1; --i) std::swap(order[i - 1], order[random.Below(i)]);
  std::vector<std::span<uint32_t>> open = {order};
  while (!open.empty()) {
    const std::span<uint32_t> part = open.back();
    open.pop_back();
    if (part.size() > (clustered_ ? kBuiltLeaf : kLeaf)) {
      const size_t half = clustered_ ? Halve(coordinates, rank(), part) : std::min(kLeaf, part.size() - 1);
      open.push_back(part.subspan(half));
      open.push_back(part.first(half));
      continue;
    }
    const size_t leaf = NewLeaf();
    for (const uint32_t b : part) {
      Put(leaf, {static_cast<uint32_t>(erased_ + b), 0}, &nibbles[b * rank()], doubled[b]);
    }
    Describe(leaf);
  }
  far_ = kFarTimes * static_cast<float>(sum / static_cast<double>(size));
  for (size_t b = 0; b < size; ++b) KeepFar(erased_ + b, distances[b]);
}

// What the sketch leaves out of a key, squared: its directions are orthogonal.
float HierarchicalIndex::DistanceOf(const float* key, const float* coordinates) const {
  const float distance =
      sketch_->SquaredDeviation(key) - std::inner_product(coordinates, coordinates + rank(), coordinates, 0.0f);
  return std::isfinite(distance) ? std::max(distance, 0.0f) : 0.0f;
}

void HierarchicalIndex::SetFar(size_t number, bool far) { members_[places_[number - begin_]].far = far ? 1 : 0; }

// The key is in its leaf.
void HierarchicalIndex::KeepFar(size_t number, float distance) {
  if (!(distance > far_)) return;
  if (far_keys_.size() >= std::max(kFewFar, keys_.size() / kFarPart)) {
    if (distance <= far_keys_.front().distance) return;
    std::pop_heap(far_keys_.begin(), far_keys_.end(), std::greater<>());
    SetFar(far_keys_.back().number, false);
    far_keys_.pop_back();
  }
  far_keys_.push_back({distance, static_cast<uint32_t>(number)});
  std::push_heap(far_keys_.begin(), far_keys_.end(), std::greater<>());
  SetFar(number, true);
}

void HierarchicalIndex::AddKey() {
  std::vector<float> key(keys_.dim()), coordinates(rank());
  std::vector<uint8_t> nibbles(rank());
  keys_.Read(keys_.size() - 1, key.data());
  sketch_->Project(key.data(), coordinates.data());
  const float distance = DistanceOf(key.data(), coordinates.data());
  const uint8_t doubled = sketch_->Encode(coordinates.data(), nibbles.data());
  Decode(nibbles.data(), doubled, coordinates.data());
  key_rows_.resize(key_rows_.size() + keys_.row_bytes());
  keys_.ReadRow(keys_.size() - 1, key_rows_.data() + key_rows_.size() - keys_.row_bytes());
  places_.push_back(0);
  size_t leaf = clustered_ ? Nearest(coordinates.data()) : leaves() - 1;
  if (filled_[leaf] == kLeaf && !clustered_) {
    leaf = NewLeaf();
  } else if (filled_[leaf] == kLeaf) {
    Split(leaf);
    leaf = Nearest(coordinates.data());
  }
  Put(leaf, {static_cast<uint32_t>(end() - 1), 0}, nibbles.data(), doubled);
  Describe(leaf);
  KeepFar(end() - 1, distance);
}

size_t HierarchicalIndex::NewLeaf() {
  for (size_t leaf = 0; clustered_ && leaf < leaves(); ++leaf) {
    if (filled_[leaf] == 0) return leaf;
  }
  filled_.push_back(0);
  sketches_.resize(sketches_.size() + rank() / 8 * kLeaf * 4 / sizeof(CacheLine));
  members_.resize(members_.size() + kLeaf);
  doubled_.resize(doubled_.size() + kLeaf);
  if (!clustered_) return leaves() - 1;
  sums_.resize(sums_.size() + rank());
  squares_.resize(squares_.size() + rank());
  const std::vector<float> nothing(rank() + 1, 0.0f);
  for (LandmarkPanels& panels : statistics_) panels.Append(nothing.data());
  return leaves() - 1;
}

void HierarchicalIndex::Split(size_t leaf) {
  std::vector<uint8_t> nibbles(kLeaf * rank());
  std::vector<float> coordinates(kLeaf * rank());
  for (size_t i = 0; i < kLeaf; ++i) {
    for (size_t r = 0; r < rank(); ++r) nibbles[i * rank() + r] = Nibble(leaf * kLeaf + i, r);
    Decode(&nibbles[i * rank()], doubled_[leaf * kLeaf + i], &coordinates[i * rank()]);
  }
  const std::vector<uint8_t> doubled(doubled_.begin() + static_cast<ptrdiff_t>(leaf * kLeaf),
                                     doubled_.begin() + static_cast<ptrdiff_t>((leaf + 1) * kLeaf));
  std::vector<uint32_t> order(kLeaf);
  std::iota(order.begin(), order.end(), 0u);
  const size_t half = Halve(coordinates, rank(), order);
  const std::vector<Member> members(members_.begin() + static_cast<ptrdiff_t>(leaf * kLeaf),
                                    members_.begin() + static_cast<ptrdiff_t>((leaf + 1) * kLeaf));
  const size_t other = NewLeaf();
  filled_[leaf] = 0;
  std::fill_n(&sums_[leaf * rank()], rank(), 0.0f);
  std::fill_n(&squares_[leaf * rank()], rank(), 0.0f);
  for (size_t i = 0; i < kLeaf; ++i) {
    Put(i < half ? leaf : other, members[order[i]], &nibbles[order[i] * rank()], doubled[order[i]]);
  }
  Describe(leaf);
  Describe(other);
}

void HierarchicalIndex::Decode(const uint8_t* nibbles, uint8_t doubled, float* coordinates) const {
  for (size_t r = 0; r < rank(); ++r) coordinates[r] = Coordinate(nibbles[r], doubled, r);
}

void HierarchicalIndex::Put(size_t leaf, Member member, const uint8_t* nibbles, uint8_t doubled) {
  const size_t place = leaf * kLeaf + filled_[leaf]++;
  doubled_[place] = doubled;
  for (size_t r = 0; r < rank(); ++r) {
    SetNibble(place, r, nibbles[r]);
    if (!clustered_) continue;
    const float x = Coordinate(nibbles[r], doubled, r);
    sums_[leaf * rank() + r] += x;
    squares_[leaf * rank() + r] += x * x;
  }
  members_[place] = member;
  places_[member.number - static_cast<uint32_t>(begin_)] = static_cast<uint32_t>(place);
}

void HierarchicalIndex::Remove(size_t number) {
  const size_t place = places_[number - begin_];
  const size_t leaf = place / kLeaf;
  if (members_[place].far != 0) {
    std::erase_if(far_keys_, [&](const FarKey& key) { return key.number == number; });
    std::make_heap(far_keys_.begin(), far_keys_.end(), std::greater<>());
  }
  const size_t last = leaf * kLeaf + --filled_[leaf];
  for (size_t r = 0; r < rank(); ++r) {
    const float x = Coordinate(Nibble(place, r), doubled_[place], r);
    SetNibble(place, r, Nibble(last, r));
    if (!clustered_) continue;
    sums_[leaf * rank() + r] -= x;
    squares_[leaf * rank() + r] -= x * x;
    if (filled_[leaf] == 0) sums_[leaf * rank() + r] = squares_[leaf * rank() + r] = 0;
  }
  members_[place] = members_[last];
  doubled_[place] = doubled_[last];
  places_[members_[place].number - static_cast<uint32_t>(begin_)] = static_cast<uint32_t>(place);
  Describe(leaf);
}

// Mean and variances of a leaf from its sums. One without keys is near to
// nothing.
void HierarchicalIndex::Describe(size_t leaf) {
  if (!clustered_) return;
  std::vector<float> mean(rank() + 1, 0.0f), variance(rank(), 0.0f);
  float squared = 0;
  const float part = 1.0f / static_cast<float>(std::max<uint8_t>(filled_[leaf], 1));
  for (size_t r = 0; r < rank(); ++r) {
    mean[r] = sums_[leaf * rank() + r] * part;
    variance[r] = std::max(0.0f, squares_[leaf * rank() + r] * part - mean[r] * mean[r]);
    squared += mean[r] * mean[r];
  }
  mean[rank()] = filled_[leaf] == 0 ? -1e30f : -0.5f * squared;
  statistics_[0].Set(leaf, mean.data());
  statistics_[1].Set(leaf, variance.data());
}

size_t HierarchicalIndex::Nearest(const float* coordinates) const {
  std::vector<float>& point = Scratch::Get().scaled;
  std::vector<float>& scores = Scratch::Get().promise;
  point.assign(coordinates, coordinates + rank());
  point.push_back(1.0f);
  scores.resize(leaves());
  ScoreLandmarks(statistics_[0], 0, leaves(), 1, point.data(), leaves(), scores.data());
  return static_cast<size_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
}

void HierarchicalIndex::Truncated() {
  if (!sketch_) return;
  if (keys_.size() < kFirst / 2) {
    Clear();
    return;
  }
  for (size_t number = begin_ + places_.size(); number > end();) Remove(--number);
  places_.resize(end() - begin_);
  key_rows_.resize(places_.size() * keys_.row_bytes());
}

void HierarchicalIndex::ErasedFront(size_t count, size_t) {
  erased_ += count;
  if (!sketch_) return;
  if (keys_.size() < kFirst / 2) {
    Clear();
    return;
  }
  for (size_t number = erased_ - count; number < erased_; ++number) Remove(number);
  const size_t gone = erased_ - begin_;
  if (gone < places_.size() / 2) return;
  places_.erase(places_.begin(), places_.begin() + static_cast<ptrdiff_t>(gone));
  key_rows_.erase(key_rows_.begin(), key_rows_.begin() + static_cast<ptrdiff_t>(gone * keys_.row_bytes()));
  begin_ = erased_;
}

// False where a query has no bytes to search with.
bool HierarchicalIndex::EncodeQueries(size_t count, const float* queries, Scratch& s) const {
  sketch_->ProjectQueries(count, queries, s.coordinates);
  s.quads.resize(count * rank());
  s.queries.resize(count);
  for (size_t q = 0; q < count; ++q) {
    const float* coordinates = &s.coordinates[q * rank()];
    s.scaled.resize(rank());
    for (size_t r = 0; r < rank(); ++r) s.scaled[r] = coordinates[r] * sketch_->units()[r];
    if (!EncodeSketchQuery(s.scaled, rank(), kNibbleZero, &s.quads[q * rank()], s.queries[q])) return false;
  }
  return true;
}

// The most promising leaves of each of a few queries together, ascending.
void HierarchicalIndex::ChooseLeaves(size_t queries, Scratch& s) const {
  const size_t count = leaves();
  s.promise.resize(queries * count);
  s.spread.resize(queries * count);
  s.scaled.assign(queries * (rank() + 1), 0.0f);
  s.squared.resize(queries * rank());
  for (size_t q = 0; q < queries; ++q) {
    for (size_t r = 0; r < rank(); ++r) {
      const float x = s.coordinates[q * rank() + r];
      s.scaled[q * (rank() + 1) + r] = x;
      s.squared[q * rank() + r] = x * x;
    }
  }
  ScoreLandmarks(statistics_[0], 0, count, queries, s.scaled.data(), count, s.promise.data());
  ScoreLandmarks(statistics_[1], 0, count, queries, s.squared.data(), count, s.spread.data());
  s.chosen.assign(count, 0);
  for (size_t q = 0; q < queries; ++q) {
    const std::span<const float> mean(&s.promise[q * count], count), variance(&s.spread[q * count], count);
    MarkPromising({mean, variance, kDeviations}, Part(options_.visited_first, options_.visited_min / 2),
                  s.chosen.data());
  }
  s.panels.clear();
  for (size_t leaf = 0; leaf < count; ++leaf) {
    if (s.chosen[leaf] != 0) s.panels.push_back(static_cast<uint32_t>(leaf));
  }
}

// Those that may hold a key better than what was reached in the first ones.
void HierarchicalIndex::AddLeaves(std::span<const int32_t> reached, Scratch& s, std::vector<uint32_t>& more) const {
  const size_t count = leaves();
  s.visited = s.chosen;
  for (size_t q = 0; q < reached.size(); ++q) {
    const std::span<const float> mean(&s.promise[q * count], count), variance(&s.spread[q * count], count);
    const float least = static_cast<float>(reached[q]) * s.queries[q].unit;
    MarkReaching({mean, variance, options_.reach}, least, Part(options_.visited, options_.visited_min),
                 s.chosen.data());
  }
  for (size_t leaf = 0; leaf < count; ++leaf) {
    if (s.chosen[leaf] > s.visited[leaf]) more.push_back(static_cast<uint32_t>(leaf));
  }
}

// Leaves in s.ranked the best rows of blocks [first, last) in a query's short list, `take` of them, with their scores,
// negative. Those that cannot be among them are not looked at. `unit`: of the sketches' sums.
void HierarchicalIndex::RankRows(const float* query, size_t first, size_t last, const SketchPlaces& list, float unit,
                                 size_t take, Scratch& s) const {
  const auto& [places, sketched] = list;
  const LandmarkRows rows{key_rows_.data(), keys_.dim(), keys_.half()};
  float mean_score;  // sketches are of what keys have beyond the mean
  DotRows({1, keys_.dim(), keys_.dim()}, query, sketch_->mean().data(), &mean_score);
  const auto units = [&](uint32_t place) { return static_cast<float>(1u << doubled_[place]); };
  s.ranked.clear();
  float error_sum = 0, error_squares = 0, weight = 0;
  const auto rank = [&](bool measures) {
    s.which.clear();
    s.at.clear();
    for (size_t i = 0; i < s.turn.size(); ++i) {
      // They lie anywhere, and what the loop does with one hides little of the wait for the next.
      if (i + kMembersAhead < s.turn.size()) hwy::Prefetch(&members_[places[s.turn[i + kMembersAhead]]]);
      const Member member = members_[places[s.turn[i]]];
      if (member.far != 0) continue;  // they are looked at anyway
      const size_t b = member.number - static_cast<uint32_t>(erased_);
      if (b < first || b >= last) continue;
      s.which.push_back(member.number - static_cast<uint32_t>(begin_));
      s.at.push_back(s.turn[i]);
    }
    s.scores.resize(s.which.size());
    ScoreRows(rows, s.which, query, s.scores.data());
    for (size_t i = 0; i < s.which.size(); ++i) {
      const float score = s.scores[i] - mean_score;
      KeepRanked(take, {-score, s.which[i]}, s.ranked);
      if (!measures) continue;
      // In units of the sketch, which are larger for keys that are far from the mean.
      const float error = (score - static_cast<float>(sketched[s.at[i]]) * unit) / units(places[s.at[i]]);
      error_sum += error;
      error_squares += error * error;
      weight += 1;
    }
  };
  s.turn.clear();
  if (places.size() <= 2 * kRankedFirst) {
    s.turn.resize(places.size());
    std::iota(s.turn.begin(), s.turn.end(), 0u);
    rank(false);
    return;
  }
  s.order.assign(sketched.begin(), sketched.end());
  const auto last_first = s.order.begin() + kRankedFirst - 1;
  std::nth_element(s.order.begin(), last_first, s.order.end(), std::greater<>());
  const int32_t least = *last_first;
  // Without branches, which would be guessed wrong as often as not.
  const auto choose = [&](const auto& chosen) {
    s.turn.resize(places.size());
    size_t count = 0;
    for (uint32_t i = 0; i < places.size(); ++i) {
      s.turn[count] = i;
      count += chosen(i) ? 1 : 0;
    }
    s.turn.resize(count);
  };
  choose([&](uint32_t i) { return sketched[i] >= least; });
  rank(true);
  if (s.ranked.size() < take) {
    choose([&](uint32_t i) { return sketched[i] < least; });
  } else {
    const float mean = error_sum / weight;
    const float wrong =
        std::max(mean, 0.0f) + kErrors * std::sqrt(std::max(0.0f, error_squares / weight - mean * mean));
    std::array<float, KeySketch::kMostDoubled + 1> needed;  // by how often a key's units are doubled
    for (size_t d = 0; d < needed.size(); ++d) {
      needed[d] = (-s.ranked.back().first - wrong * static_cast<float>(1u << d)) / unit;
    }
    choose([&](uint32_t i) {
      return (sketched[i] < least) & (static_cast<float>(sketched[i]) >= needed[doubled_[places[i]]]);
    });
  }
  rank(false);
}

void HierarchicalIndex::Search(size_t first, size_t last, size_t count, const float* queries, BestBlocks* best) const {
  if (first >= last || count == 0) return;
  Scratch& s = Scratch::Get();
  const size_t k = best[0].k();
  // A part of the memory is scanned: its keys may be in leaves that do not
  // promise much. So are the very few among which many are wanted.
  const size_t wanted = std::max(options_.shortlist, keys_.size() / options_.shortlist_part);
  const bool part = 2 * (last - first) < keys_.size();
  if (!sketch_ || part || k > kMostWanted || !EncodeQueries(count, queries, s)) {
    SearchLandmarks(keys_, first, last, count, queries, best);
    return;
  }
  if (s.lists.size() < count) s.lists.resize(count);
  const SketchPanels sketches{sketches_[0].bytes, rank() / 8, filled_.data(), doubled_.data()};
  const size_t limit = 8 * wanted;
  SketchScan scan{s.panels, wanted, limit, k, nullptr};
  if (!clustered_ || count >= kManyQueries || leaves() <= std::max(kFewLeaves, options_.visited_min)) {
    s.panels.resize(leaves());
    std::iota(s.panels.begin(), s.panels.end(), 0u);
  } else {
    ChooseLeaves(count, s);
    scan.refine = [&](std::span<const int32_t> reached, std::vector<uint32_t>& more) { AddLeaves(reached, s, more); };
  }
  scan.panels = s.panels;
  ScanSketches(sketches, scan, count, s.queries.data(), s.lists.data());
  // Rows are rounded by what the many are like: far keys are compared as they are.
  s.far.clear();
  for (const FarKey& key : far_keys_) {
    const size_t b = key.number - erased_;
    if (b >= first && b < last) s.far.push_back(static_cast<int32_t>(b));
  }
  for (size_t q = 0; q < count; ++q) {
    RankRows(queries + q * keys_.dim(), first, last, s.lists[q], s.queries[q].unit, k + kSpare, s);
    if (s.ranked.size() + s.far.size() < k) {
      SearchLandmarks(keys_, first, last, 1, queries + q * keys_.dim(), best + q);
      continue;
    }
    s.found = s.far;
    for (const auto& [score, row] : s.ranked) {
      s.found.push_back(static_cast<int32_t>(row + static_cast<uint32_t>(begin_ - erased_)));
    }
    std::sort(s.found.begin(), s.found.end());
    const LandmarkRows rows{key_rows_.data(), keys_.dim(), keys_.half()};
    OfferRows(rows, erased_ - begin_, s.found, queries + q * keys_.dim(), count == 1, best[q]);
  }
}

}  // namespace

std::unique_ptr<LandmarkIndex> MakeHierarchicalIndex(LandmarkPanels keys, const HierarchicalOptions& options) {
  return std::make_unique<HierarchicalIndex>(std::move(keys), options);
}

}  // namespace cairn
