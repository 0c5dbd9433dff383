// The GGUF container (versions 2 and 3): metadata values and named tensors. The reader distrusts the file: every count,
// length, type, offset and alignment is checked before it is used.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/stored_tensor.h"

namespace cairn {

// Numbers as in the file.
enum class GgufType : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };

// A value that was checked to lie inside the file. Points into the file's bytes.
struct GgufValue {
  GgufType type;
  GgufType element;                    // of an array, otherwise the same as `type`
  uint64_t count;                      // elements of an array, otherwise 1
  std::span<const std::byte> encoded;  // the whole value, without its type
  std::span<const std::byte> payload;  // the elements: `encoded` without an array's element type and count
};

bool LooksLikeGguf(std::span<const std::byte> bytes);

// Immutable. Does not own the bytes, which must outlive it.
class GgufFile {
 public:
  GgufFile(std::span<const std::byte> bytes, std::string name);

  const std::string& name() const { return name_; }
  uint32_t version() const { return version_; }
  const std::map<std::string, GgufValue>& metadata() const { return metadata_; }
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }  // GGUF names, outermost size first

  // Nothing when the key is absent; Error when the value has another type.
  std::optional<int64_t> Integer(const std::string& key) const;  // any integer type
  std::optional<double> Number(const std::string& key) const;    // any number; f32 as the shortest decimal that it is
  std::optional<bool> Bool(const std::string& key) const;
  std::optional<std::string> Text(const std::string& key) const;
  std::optional<std::vector<std::string>> Texts(const std::string& key) const;
  std::optional<std::vector<double>> Numbers(const std::string& key) const;  // array of any number type

  // Error when the key is absent.
  int64_t RequiredInteger(const std::string& key) const;

 private:
  const GgufValue* Find(const std::string& key) const;

  std::string name_;
  uint32_t version_ = 0;
  std::map<std::string, GgufValue> metadata_;
  std::map<std::string, StoredTensor> tensors_;
};

// GGUF's number of an element type, and back; nothing for types that Cairn does not read.
uint32_t GgmlTypeOf(StoredType type);
std::optional<StoredType> StoredTypeOfGgml(uint32_t type);

}  // namespace cairn
