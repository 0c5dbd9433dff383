// Reading and writing safetensors files. The reader distrusts the file: header length, offsets and products of
// sizes are checked before anything is used, and messages name the tensor.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"
#include "tensor/tensor.h"

namespace cairn {

// One tensor inside a mapped file. The bytes are little-endian, dense, row-major, and need not be aligned.
struct TensorEntry {
  DType dtype;
  Shape shape;
  uint64_t count;  // elements
  std::span<const std::byte> bytes;
};

// Immutable once opened; thread-safe.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  // The same over bytes in memory, which must outlive the object; `name` stands in messages.
  SafetensorsFile(std::span<const std::byte> bytes, std::string name);

  const std::string& name() const { return name_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::map<std::string, TensorEntry>& tensors() const { return tensors_; }

  bool Has(const std::string& name) const { return tensors_.count(name) != 0; }
  const TensorEntry& Get(const std::string& name) const;  // throws Error when it is missing

  // F32, F16, BF16 and F64 are converted to f32; other types are an Error.
  Tensor ReadFloats(const std::string& name) const;
  // I64, I32, I16, I8, U8 and BOOL.
  std::vector<int64_t> ReadIntegers(const std::string& name) const;

  // Metadata values, checked. Throw Error when missing or malformed.
  const std::string& MetadataText(const std::string& key) const;
  int64_t MetadataInteger(const std::string& key, int64_t low, int64_t high) const;

 private:
  void Parse();

  std::optional<MappedFile> file_;
  std::string name_;
  std::span<const std::byte> bytes_;
  std::map<std::string, std::string> metadata_;
  std::map<std::string, TensorEntry> tensors_;
};

// What WriteSafetensors writes for one tensor.
struct TensorToWrite {
  std::string name;
  DType dtype;
  Shape shape;
  std::span<const std::byte> bytes;
};

// The same for a tensor whose bytes are made while the file is written; `write` sends exactly its size to the sink.
struct TensorStream {
  std::string name;
  DType dtype;
  Shape shape;
  std::function<void(const ByteSink&)> write;
};

// Atomic (see WriteFileAtomically). Data starts at a multiple of 64 bytes, tensors stand in the given order.
void WriteSafetensors(const std::filesystem::path& path, std::span<const TensorToWrite> tensors,
                      const std::map<std::string, std::string>& metadata);
void WriteSafetensors(const std::filesystem::path& path, std::span<const TensorStream> tensors,
                      const std::map<std::string, std::string>& metadata);

}  // namespace cairn
