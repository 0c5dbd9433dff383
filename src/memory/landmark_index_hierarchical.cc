// The hierarchical index: landmarks of landmarks. Similar keys of a stretch of the text stand together in leaves; a
// leaf, and 64 leaves together, are stood for by the mean of their keys and by how far the keys spread around it. A
// search goes from the top to the leaves that promise the best scores.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "memory/landmark_index.h"

namespace cairn {

namespace {

constexpr size_t kLeaf = LandmarkPanels::kPanelColumns;  // keys of a leaf
constexpr size_t kStretch = 1024;                        // neighbours in the text that are sorted into leaves at once
constexpr size_t kStretchLeaves = kStretch / kLeaf;
constexpr size_t kNodeLeaves = 64;  // leaves of a node of the level above
constexpr size_t kNodeStretches = kNodeLeaves / kStretchLeaves;
constexpr size_t kNode = kNodeLeaves * kLeaf;  // keys
// The best of a leaf is expected so many deviations above the mean.
constexpr float kLeafDeviations = 2.0f;
constexpr float kNodeDeviations = 3.0f;

// Means and variances of groups of keys, one group a column: both are searched like keys.
struct Level {
  LandmarkPanels means, variances;

  explicit Level(size_t dim) : means(dim, false), variances(dim, false) {}

  void Add(const std::vector<double>& sum, const std::vector<double>& squares, double count) {
    std::vector<float> mean(sum.size()), variance(sum.size());
    for (size_t i = 0; i < sum.size(); ++i) {
      const double m = sum[i] / count;
      mean[i] = static_cast<float>(m);
      variance[i] = static_cast<float>(std::max(0.0, squares[i] / count - m * m));
    }
    means.Append(mean.data());
    variances.Append(variance.data());
  }
  void Truncate(size_t size) {
    means.Truncate(size);
    variances.Truncate(size);
  }
  void EraseFront(size_t count) {
    means.EraseFront(count);
    variances.EraseFront(count);
  }
  size_t bytes() const { return means.bytes() + variances.bytes(); }

  // What the best key of each group [first, last) is expected to score: promise [count][last - first].
  void Estimate(size_t first, size_t last, size_t count, const float* queries, const float* squared, float deviations,
                std::vector<float>& spread, float* promise) const {
    const size_t groups = last - first;
    spread.resize(count * groups);
    ScoreLandmarks(means, first, last, count, queries, groups, promise);
    ScoreLandmarks(variances, first, last, count, squared, groups, spread.data());
    for (size_t i = 0; i < count * groups; ++i) {
      promise[i] += deviations * std::sqrt(std::max(0.0f, spread[i]));
      if (!(promise[i] < 3e38f)) promise[i] = 3e38f;  // also what is no number
    }
  }
};

// Sorts `order`, rows of keys [][dim], so that every leaf holds similar ones: halves along the direction in which
// they differ most, and the halves again.
void SortIntoLeaves(const float* keys, size_t dim, std::span<uint16_t> order) {
  if (order.size() <= kLeaf) return;
  std::vector<float> mean(dim, 0.0f), direction(dim), next(dim);
  for (const uint16_t k : order) {
    for (size_t i = 0; i < dim; ++i) mean[i] += keys[k * dim + i];
  }
  for (float& x : mean) x /= static_cast<float>(order.size());
  const auto project = [&](uint16_t k) {
    float sum = 0;
    for (size_t i = 0; i < dim; ++i) sum += (keys[k * dim + i] - mean[i]) * direction[i];
    return sum;
  };
  for (size_t i = 0; i < dim; ++i) direction[i] = keys[order[0] * dim + i] - mean[i];
  for (int round = 0; round < 4; ++round) {
    std::fill(next.begin(), next.end(), 0.0f);
    for (const uint16_t k : order) {
      const float weight = project(k);
      for (size_t i = 0; i < dim; ++i) next[i] += weight * (keys[k * dim + i] - mean[i]);
    }
    const float length = std::sqrt(std::inner_product(next.begin(), next.end(), next.begin(), 0.0f));
    if (!(length > 0) || !std::isfinite(length)) break;  // all the same, or no numbers: any order will do
    for (size_t i = 0; i < dim; ++i) direction[i] = next[i] / length;
  }
  std::vector<std::pair<float, uint16_t>> places;
  for (const uint16_t k : order) {
    const float place = project(k);
    places.emplace_back(std::isfinite(place) ? place : 0.0f, k);
  }
  const size_t half = order.size() / 2;
  std::nth_element(places.begin(), places.begin() + static_cast<ptrdiff_t>(half), places.end());
  for (size_t i = 0; i < order.size(); ++i) order[i] = places[i].second;
  SortIntoLeaves(keys, dim, order.first(half));
  SortIntoLeaves(keys, dim, order.subspan(half));
}

// What a search works in; kept for the next of the thread.
struct Scratch {
  std::vector<float> squared, promise, spread, node_promise, gathered, scores;
  std::vector<std::pair<float, uint32_t>> leaves;                // of one query
  std::vector<std::pair<uint32_t, uint32_t>> pairs, node_pairs;  // group and query
  std::vector<std::vector<std::pair<float, uint32_t>>> promised;
  std::vector<BestBlocks> lists, some;
  std::vector<int32_t> blocks, found;

  static Scratch& Get() {
    thread_local Scratch scratch;
    return scratch;
  }
};

class HierarchicalIndex : public LandmarkIndex {
 public:
  HierarchicalIndex(LandmarkPanels keys, const HierarchicalOptions& options)
      : LandmarkIndex(std::move(keys)),
        options_(options),
        sorted_(keys_.dim(), keys_.half()),
        leaves_(keys_.dim()),
        nodes_(keys_.dim()) {
    Added();
  }

  IndexKind kind() const override { return IndexKind::kHierarchical; }
  std::unique_ptr<LandmarkIndex> Clone() const override { return std::make_unique<HierarchicalIndex>(*this); }
  void Search(size_t first, size_t last, size_t count, const float* queries, BestBlocks* best) const override;

 private:
  size_t ExtraBytes() const override {
    return sorted_.bytes() + leaves_.bytes() + nodes_.bytes() + order_.capacity() * sizeof(uint16_t);
  }
  size_t stretches() const { return order_.size() / kStretch; }
  void Added() override;
  void Truncated() override;
  void ErasedFront(size_t count, size_t panels) override;
  void AddStretch();
  void SearchLeaves(size_t first, size_t last, size_t count, const float* queries, BestBlocks* best) const;

  HierarchicalOptions options_;
  size_t erased_ = 0;            // keys gone from the first stretch, or stretches, that are still here
  std::vector<uint16_t> order_;  // of each place in `sorted_` the key's number in its stretch
  LandmarkPanels sorted_;        // keys in the order of the leaves
  Level leaves_, nodes_;
};

void HierarchicalIndex::Added() {
  while (keys_.size() + erased_ >= (stretches() + 1) * kStretch) AddStretch();
}

void HierarchicalIndex::AddStretch() {
  const size_t dim = keys_.dim();
  const size_t begin = stretches() * kStretch - erased_;
  std::vector<float> keys(kStretch * dim);
  for (size_t i = 0; i < kStretch; ++i) keys_.Read(begin + i, &keys[i * dim]);
  std::vector<uint16_t> order(kStretch);
  std::iota(order.begin(), order.end(), uint16_t{0});
  SortIntoLeaves(keys.data(), dim, order);
  std::vector<double> sum(dim), squares(dim);
  for (size_t i = 0; i < kStretch; ++i) {
    if (i % kLeaf == 0) {
      std::fill(sum.begin(), sum.end(), 0.0);
      std::fill(squares.begin(), squares.end(), 0.0);
    }
    const float* key = &keys[order[i] * dim];
    sorted_.Append(key);
    for (size_t d = 0; d < dim; ++d) {
      sum[d] += key[d];
      squares[d] += static_cast<double>(key[d]) * key[d];
    }
    if ((i + 1) % kLeaf == 0) leaves_.Add(sum, squares, kLeaf);
  }
  order_.insert(order_.end(), order.begin(), order.end());
  if (stretches() % kNodeStretches != 0) return;
  // A node: the mean of the means, and the variances inside and between its leaves.
  std::fill(sum.begin(), sum.end(), 0.0);
  std::fill(squares.begin(), squares.end(), 0.0);
  std::vector<float> mean(dim), variance(dim);
  for (size_t leaf = leaves_.means.size() - kNodeLeaves; leaf < leaves_.means.size(); ++leaf) {
    leaves_.means.Read(leaf, mean.data());
    leaves_.variances.Read(leaf, variance.data());
    for (size_t d = 0; d < dim; ++d) {
      sum[d] += mean[d];
      squares[d] += static_cast<double>(mean[d]) * mean[d] + variance[d];
    }
  }
  nodes_.Add(sum, squares, kNodeLeaves);
}

void HierarchicalIndex::Truncated() {
  size_t stay = std::min(stretches(), (keys_.size() + erased_) / kStretch);
  if (erased_ >= stay * kStretch) stay = erased_ = 0;  // nothing is left in them
  order_.resize(stay * kStretch);
  sorted_.Truncate(stay * kStretch);
  leaves_.Truncate(stay * kStretchLeaves);
  nodes_.Truncate(stay / kNodeStretches);
}

void HierarchicalIndex::ErasedFront(size_t count, size_t) {
  erased_ += count;
  Truncated();
  // Whole nodes, so that nodes stay panels of leaves.
  const size_t gone = erased_ / kNode;
  if (gone == 0) return;
  order_.erase(order_.begin(), order_.begin() + static_cast<ptrdiff_t>(gone * kNode));
  sorted_.EraseFront(gone * kNode);
  leaves_.EraseFront(gone * kNodeLeaves);
  nodes_.EraseFront(gone);
  erased_ -= gone * kNode;
}

void HierarchicalIndex::Search(size_t first, size_t last, size_t count, const float* queries, BestBlocks* best) const {
  if (first >= last || count == 0) return;
  // Stretches that are wholly asked for.
  const size_t from = DivideUp(first + erased_, kStretch);
  const size_t to = std::min(stretches(), (last + erased_) / kStretch);
  const size_t leaves = to > from ? (to - from) * kStretchLeaves : 0;
  const auto visited = static_cast<size_t>(std::ceil(options_.visited * static_cast<double>(leaves)));
  if (leaves <= std::max(visited, options_.visited_min)) {
    SearchLandmarks(keys_, first, last, count, queries, best);
    return;
  }
  SearchLandmarks(keys_, first, from * kStretch - erased_, count, queries, best);
  SearchLeaves(from, to, count, queries, best);
  SearchLandmarks(keys_, to * kStretch - erased_, last, count, queries, best);
}

// Stretches [first, last).
void HierarchicalIndex::SearchLeaves(size_t first, size_t last, size_t count, const float* queries,
                                     BestBlocks* best) const {
  const size_t dim = keys_.dim();
  Scratch& s = Scratch::Get();
  s.squared.resize(count * dim);
  for (size_t i = 0; i < count * dim; ++i) s.squared[i] = queries[i] * queries[i];
  const size_t first_leaf = first * kStretchLeaves;
  const size_t last_leaf = last * kStretchLeaves;
  const size_t leaves = last_leaf - first_leaf;
  const size_t visited =
      std::max(options_.visited_min, static_cast<size_t>(std::ceil(options_.visited * static_cast<double>(leaves))));
  if (s.promised.size() < count) s.promised.resize(count);

  // Nodes that each query goes into: twice as many leaves as it will visit. Nodes at the edges always.
  const size_t first_node = DivideUp(first, kNodeStretches);
  const size_t last_node = std::max(first_node, last / kNodeStretches);
  const size_t nodes = last_node - first_node;
  const size_t entered = std::min(nodes, DivideUp(visited * options_.entered, kNodeLeaves));
  s.node_pairs.clear();
  if (nodes > 0) {
    s.node_promise.resize(count * nodes);
    nodes_.Estimate(first_node, last_node, count, queries, s.squared.data(), kNodeDeviations, s.spread,
                    s.node_promise.data());
    for (size_t q = 0; q < count; ++q) {
      s.leaves.clear();
      for (size_t n = 0; n < nodes; ++n) {
        s.leaves.emplace_back(-s.node_promise[q * nodes + n], static_cast<uint32_t>(first_node + n));
      }
      std::nth_element(s.leaves.begin(), s.leaves.begin() + static_cast<ptrdiff_t>(entered) - 1, s.leaves.end());
      for (size_t n = 0; n < entered; ++n) s.node_pairs.emplace_back(s.leaves[n].second, static_cast<uint32_t>(q));
    }
  }
  // Groups of leaves with the queries that look at them: whole nodes, and what is not in one.
  const auto look = [&](size_t begin, size_t end, std::span<const std::pair<uint32_t, uint32_t>> who) {
    if (begin >= end || who.empty()) return;
    s.gathered.resize(2 * who.size() * dim);
    for (size_t i = 0; i < who.size(); ++i) {
      std::copy_n(queries + who[i].second * dim, dim, &s.gathered[i * dim]);
      std::copy_n(&s.squared[who[i].second * dim], dim, &s.gathered[(who.size() + i) * dim]);
    }
    s.promise.resize(who.size() * (end - begin));
    leaves_.Estimate(begin, end, who.size(), s.gathered.data(), &s.gathered[who.size() * dim], kLeafDeviations,
                     s.spread, s.promise.data());
    for (size_t i = 0; i < who.size(); ++i) {
      for (size_t l = begin; l < end; ++l) {
        s.promised[who[i].second].emplace_back(-s.promise[i * (end - begin) + l - begin], static_cast<uint32_t>(l));
      }
    }
  };
  for (size_t q = 0; q < count; ++q) s.promised[q].clear();
  s.pairs.clear();
  for (size_t q = 0; q < count; ++q) s.pairs.emplace_back(0, static_cast<uint32_t>(q));
  if (nodes == 0) {
    look(first_leaf, last_leaf, s.pairs);
  } else {
    look(first_leaf, first_node * kNodeLeaves, s.pairs);
    look(last_node * kNodeLeaves, last_leaf, s.pairs);
  }
  const auto each_group = [](std::vector<std::pair<uint32_t, uint32_t>>& pairs, const auto& visit) {
    std::sort(pairs.begin(), pairs.end());
    for (size_t i = 0; i < pairs.size();) {
      size_t end = i;
      while (end < pairs.size() && pairs[end].first == pairs[i].first) ++end;
      visit(pairs[i].first, std::span(pairs).subspan(i, end - i));
      i = end;
    }
  };
  each_group(s.node_pairs, [&](size_t node, std::span<const std::pair<uint32_t, uint32_t>> who) {
    look(node * kNodeLeaves, (node + 1) * kNodeLeaves, who);
  });

  // The most promising leaves of each query; each leaf is read once for all queries that visit it.
  s.pairs.clear();
  size_t most = 0;
  for (size_t q = 0; q < count; ++q) {
    auto& promised = s.promised[q];
    const size_t take = std::min(visited, promised.size());
    if (take < promised.size()) {
      std::nth_element(promised.begin(), promised.begin() + static_cast<ptrdiff_t>(take), promised.end());
    }
    for (size_t i = 0; i < take; ++i) s.pairs.emplace_back(promised[i].second, static_cast<uint32_t>(q));
    most = std::max(most, best[q].k());
  }
  s.lists.resize(count);
  s.scores.resize(count * most);
  s.blocks.resize(count * most);
  for (size_t q = 0; q < count; ++q) s.lists[q].Reset(best[q].k(), &s.scores[q * most], &s.blocks[q * most]);
  each_group(s.pairs, [&](size_t leaf, std::span<const std::pair<uint32_t, uint32_t>> who) {
    s.gathered.resize(who.size() * dim);
    s.some.resize(who.size());
    for (size_t i = 0; i < who.size(); ++i) {
      std::copy_n(queries + who[i].second * dim, dim, &s.gathered[i * dim]);
      s.some[i] = s.lists[who[i].second];
    }
    SearchLandmarks(sorted_, leaf * kLeaf, (leaf + 1) * kLeaf, who.size(), s.gathered.data(), s.some.data());
    for (size_t i = 0; i < who.size(); ++i) s.lists[who[i].second] = s.some[i];
  });
  // Places in the leaves to numbers of landmarks.
  for (size_t q = 0; q < count; ++q) {
    s.found.clear();
    for (size_t i = 0; i < s.lists[q].count(); ++i) {
      const auto place = static_cast<size_t>(s.lists[q].block(i));
      s.found.push_back(static_cast<int32_t>(place / kStretch * kStretch + order_[place] - erased_));
    }
    std::sort(s.found.begin(), s.found.end());
    OfferLandmarks(keys_, s.found, queries + q * dim, count == 1, best[q]);
  }
}

}  // namespace

std::unique_ptr<LandmarkIndex> MakeHierarchicalIndex(LandmarkPanels keys, const HierarchicalOptions& options) {
  return std::make_unique<HierarchicalIndex>(std::move(keys), options);
}

}  // namespace cairn
