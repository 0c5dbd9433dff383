// Arithmetic on sizes that come from outside: overflow is reported, never wrapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>

namespace cairn {

inline std::optional<uint64_t> CheckedMul(uint64_t a, uint64_t b) {
  uint64_t result;
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

inline std::optional<uint64_t> CheckedAdd(uint64_t a, uint64_t b) {
  uint64_t result;
  if (__builtin_add_overflow(a, b, &result)) return std::nullopt;
  return result;
}

// Product of all sizes; an empty list gives 1.
inline std::optional<uint64_t> CheckedProduct(std::span<const uint64_t> sizes) {
  uint64_t result = 1;
  for (const uint64_t size : sizes) {
    const auto next = CheckedMul(result, size);
    if (!next) return std::nullopt;
    result = *next;
  }
  return result;
}

constexpr size_t DivideUp(size_t a, size_t b) { return (a + b - 1) / b; }
constexpr size_t RoundUp(size_t a, size_t multiple) { return DivideUp(a, multiple) * multiple; }

}  // namespace cairn
