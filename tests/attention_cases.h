// Random inputs for attention tests, and comparison of results.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "base/random.h"

namespace cairn {

// Dense inputs of one attention call, see ReferenceInput.
template <typename T>
struct AttentionCase {
  AttentionShape shape;
  bool with_miss = false;
  std::vector<T> q, k, v, dout, miss_key;
  std::vector<uint8_t> controlled;

  AttentionCase(const AttentionShape& s, bool miss, uint64_t seed, double magnitude = 1.0) : shape(s), with_miss(miss) {
    Random random(seed);
    const auto fill = [&](std::vector<T>& to, size_t size, double factor) {
      to.resize(size);
      for (T& x : to) x = static_cast<T>(random.Normal() * factor);
    };
    const size_t queries = s.batch * s.query_heads * s.time * s.dim;
    const size_t keys = s.batch * s.kv_heads * s.keys() * s.dim;
    fill(q, queries, magnitude);
    fill(k, keys, 1.0);
    fill(v, keys, 1.0);
    fill(dout, queries, 1.0);
    if (!miss) return;
    fill(miss_key, s.batch * s.kv_heads * s.dim, 1.0);
    controlled.resize(s.batch * s.blocks());
    for (uint8_t& c : controlled) c = random.Below(2) == 1;
  }

  ContextMiss<T> miss() const {
    if (!with_miss) return {};
    return {miss_key.data(), controlled.data()};
  }
  std::vector<double> AsDouble(const std::vector<T>& from) const { return {from.begin(), from.end()}; }
};

inline std::string Describe(const AttentionShape& s) {
  return "batch " + std::to_string(s.batch) + " heads " + std::to_string(s.query_heads) + "/" +
         std::to_string(s.kv_heads) + " time " + std::to_string(s.time) + " prefix " + std::to_string(s.prefix) +
         " dim " + std::to_string(s.dim) + " L " + std::to_string(s.block_length);
}

// Largest difference, relative to the largest magnitude of `expected`. Infinite when anything is not finite.
template <typename A, typename B>
double RelativeError(const A& actual, const B& expected) {
  double largest = 0;
  double difference = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double a = static_cast<double>(actual[i]);
    const double e = static_cast<double>(expected[i]);
    if (!std::isfinite(a) || !std::isfinite(e)) return INFINITY;
    largest = std::max(largest, std::abs(e));
    difference = std::max(difference, std::abs(a - e));
  }
  return difference / std::max(largest, 1e-30);
}

}  // namespace cairn
