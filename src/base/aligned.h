// Owning buffer of plain values, aligned for SIMD, on huge pages where the system grants them.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

namespace cairn {

namespace internal {
// Zeroed memory for `count` elements of `size` bytes, aligned to 64 bytes (2 MiB for large requests). Throws Error when
// there is none, also when the product is no size at all.
void* AllocateAligned(size_t count, size_t size);
void FreeAligned(void* data);
}  // namespace internal

// Move-only, zero-initialised, fixed size. Not thread-safe by itself.
template <typename T>
class AlignedBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t size)
      : data_(size == 0 ? nullptr : static_cast<T*>(internal::AllocateAligned(size, sizeof(T)))), size_(size) {}
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~AlignedBuffer() { internal::FreeAligned(data_); }

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  std::span<T> span() { return {data_, size_}; }
  std::span<const T> span() const { return {data_, size_}; }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace cairn
