#include "formats/gguf_file.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <limits>

#include "base/checked.h"
#include "base/error.h"

namespace cairn {

namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint64_t kMaxKey = 65535;       // the format's own limit
constexpr uint64_t kMaxTensorName = 255;  // the format asks for 64
constexpr uint64_t kMaxAlignment = uint64_t{1} << 20;
constexpr int kMaxArrayDepth = 4;

constexpr std::pair<uint32_t, StoredType> kGgmlTypes[] = {
    {0, StoredType::kF32},   {1, StoredType::kF16},   {2, StoredType::kQ4_0}, {8, StoredType::kQ8_0},
    {12, StoredType::kQ4_K}, {14, StoredType::kQ6_K}, {30, StoredType::kBF16}};

size_t ScalarBytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool:
      return 1;
    case GgufType::kU16:
    case GgufType::kI16:
      return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32:
      return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      return 0;
  }
  CAIRN_CHECK(false, "unknown GGUF type");
}

// Walks through the file; complains with the byte position.
class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  size_t position() const { return position_; }
  uint64_t remaining() const { return bytes_.size() - position_; }

  std::span<const std::byte> Take(uint64_t size, const char* what) {
    if (size > remaining()) {
      Fail("'{}': {} at byte {} needs {} bytes, but {} are left; the file is truncated or damaged", name_, what,
           position_, size, remaining());
    }
    position_ += size;
    return bytes_.subspan(position_ - size, size);
  }

  template <typename T>
  T Read(const char* what) {
    T value;
    std::memcpy(&value, Take(sizeof(T), what).data(), sizeof(T));
    return value;
  }

  std::string Text(uint64_t limit, const char* what) {
    const uint64_t size = Read<uint64_t>(what);
    if (size > limit) Fail("'{}': {} claims {} bytes, more than {}; the file is damaged", name_, what, size, limit);
    const auto bytes = Take(size, what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  // A count of things of at least `least` bytes each.
  uint64_t Count(uint64_t least, const char* what) {
    const uint64_t count = Read<uint64_t>(what);
    if (count > remaining() / least) {
      Fail("'{}': the {} is {}, impossible in a file of {} bytes; it is damaged", name_, what, count, bytes_.size());
    }
    return count;
  }

  GgufType Type(const std::string& key) {
    const uint32_t type = Read<uint32_t>("a value's type");
    if (type > static_cast<uint32_t>(GgufType::kF64))
      Fail("'{}': '{}' has the unknown value type {}", name_, key, type);
    return static_cast<GgufType>(type);
  }

  GgufValue Value(GgufType type, const std::string& key, int depth = 0) {
    GgufValue value{type, type, 1, {}, {}};
    const size_t start = position_;
    size_t payload = start;
    if (type == GgufType::kArray) {
      if (depth >= kMaxArrayDepth) Fail("'{}': the arrays of '{}' are nested too deeply", name_, key);
      value.element = Type(key);
      const size_t scalar = ScalarBytes(value.element);
      // A string has at least a length, an array a type and a count.
      value.count = Count(scalar != 0 ? scalar : value.element == GgufType::kString ? 8 : 12, "length of an array");
      payload = position_;
      if (scalar != 0) {
        CheckBools(value.element, Take(value.count * scalar, "an array"), key);
      } else {
        for (uint64_t i = 0; i < value.count; ++i) Value(value.element, key, depth + 1);
      }
    } else if (type == GgufType::kString) {
      Take(Read<uint64_t>("a string's length"), "a string");
    } else {
      CheckBools(type, Take(ScalarBytes(type), "a value"), key);
    }
    value.encoded = bytes_.subspan(start, position_ - start);
    value.payload = bytes_.subspan(payload, position_ - payload);
    return value;
  }

 private:
  void CheckBools(GgufType type, std::span<const std::byte> bytes, const std::string& key) const {
    if (type != GgufType::kBool) return;
    for (const std::byte b : bytes) {
      if (b > std::byte{1}) Fail("'{}': '{}' has a truth value that is neither 0 nor 1", name_, key);
    }
  }

  std::span<const std::byte> bytes_;
  const std::string& name_;
  size_t position_ = 0;
};

// Element `index` of the payload as a number; nothing for strings and arrays.
std::optional<double> LoadNumber(GgufType type, const std::byte* at) {
  const auto load = [&]<typename T>(T value) {
    std::memcpy(&value, at, sizeof(T));
    return value;
  };
  switch (type) {
    case GgufType::kF32: {
      // 1e-5f is meant as 1e-5, not as 0.00000999999974.
      char buffer[64];
      const auto written = std::to_chars(buffer, buffer + sizeof(buffer), load(float{}));
      double value = 0;
      std::from_chars(buffer, written.ptr, value);
      return value;
    }
    case GgufType::kF64:
      return load(double{});
    case GgufType::kU8:
      return load(uint8_t{});
    case GgufType::kI8:
      return load(int8_t{});
    case GgufType::kU16:
      return load(uint16_t{});
    case GgufType::kI16:
      return load(int16_t{});
    case GgufType::kU32:
      return load(uint32_t{});
    case GgufType::kI32:
      return load(int32_t{});
    case GgufType::kU64:
      return static_cast<double>(load(uint64_t{}));
    case GgufType::kI64:
      return static_cast<double>(load(int64_t{}));
    default:
      return std::nullopt;
  }
}

StoredTensor ReadTensorInfo(Cursor& cursor, const std::string& tensor, const std::string& name) {
  StoredTensor result;
  const uint32_t dimensions = cursor.Read<uint32_t>("a tensor's number of sizes");
  if (dimensions < 1 || dimensions > 4) Fail("'{}': tensor '{}' has {} sizes, not 1 to 4", name, tensor, dimensions);
  for (uint32_t i = 0; i < dimensions; ++i) result.shape.push_back(cursor.Read<uint64_t>("a tensor's size"));
  std::reverse(result.shape.begin(), result.shape.end());  // GGUF has the innermost first
  const uint32_t type = cursor.Read<uint32_t>("a tensor's type");
  const auto stored = StoredTypeOfGgml(type);
  if (!stored) {
    Fail("'{}': tensor '{}' has the GGUF element type {}; Cairn reads f32, f16, bf16, q8_0, q4_0, q4_K and q6_K", name,
         tensor, type);
  }
  result.type = *stored;
  return result;
}

}  // namespace

uint32_t GgmlTypeOf(StoredType type) {
  for (const auto& [number, stored] : kGgmlTypes) {
    if (stored == type) return number;
  }
  CAIRN_CHECK(false, "no GGUF type");
}

std::optional<StoredType> StoredTypeOfGgml(uint32_t type) {
  for (const auto& [number, stored] : kGgmlTypes) {
    if (number == type) return stored;
  }
  return std::nullopt;
}

bool LooksLikeGguf(std::span<const std::byte> bytes) {
  return bytes.size() >= 4 && std::memcmp(bytes.data(), "GGUF", 4) == 0;
}

GgufFile::GgufFile(std::span<const std::byte> bytes, std::string file_name) : name_(std::move(file_name)) {
  if (!LooksLikeGguf(bytes)) Fail("'{}' is not a GGUF file", name_);
  Cursor cursor(bytes, name_);
  cursor.Take(4, "the magic");
  version_ = cursor.Read<uint32_t>("the version");
  if (version_ != 2 && version_ != 3) {
    Fail("'{}' is a GGUF file of version {}; Cairn reads versions 2 and 3, little-endian", name_, version_);
  }
  const uint64_t tensor_count = cursor.Count(8 + 4 + 8 + 4 + 8, "number of tensors");
  const uint64_t value_count = cursor.Count(8 + 4 + 1, "number of metadata values");
  for (uint64_t i = 0; i < value_count; ++i) {
    std::string key = cursor.Text(kMaxKey, "a metadata key");
    const GgufType type = cursor.Type(key);
    const GgufValue value = cursor.Value(type, key);
    if (!metadata_.emplace(key, value).second) Fail("'{}': the metadata key '{}' stands twice", name_, key);
  }
  const int64_t alignment = Integer("general.alignment").value_or(32);
  if (alignment < 1 || alignment > static_cast<int64_t>(kMaxAlignment) ||
      !std::has_single_bit(static_cast<uint64_t>(alignment))) {
    Fail("'{}': general.alignment is {}, not a power of two up to {}", name_, alignment, kMaxAlignment);
  }

  std::map<std::string, uint64_t> offsets;
  for (uint64_t i = 0; i < tensor_count; ++i) {
    std::string tensor = cursor.Text(kMaxTensorName, "a tensor's name");
    StoredTensor info = ReadTensorInfo(cursor, tensor, name_);
    const uint64_t offset = cursor.Read<uint64_t>("a tensor's offset");
    if (offset % static_cast<uint64_t>(alignment) != 0) {
      Fail("'{}': tensor '{}' lies at offset {}, which is not a multiple of the alignment {}", name_, tensor, offset,
           alignment);
    }
    if (!tensors_.emplace(tensor, std::move(info)).second) Fail("'{}': tensor '{}' stands twice", name_, tensor);
    offsets[tensor] = offset;
  }
  const uint64_t data_start = RoundUp(cursor.position(), static_cast<size_t>(alignment));
  const auto data = data_start <= bytes.size() ? bytes.subspan(data_start) : std::span<const std::byte>();
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (auto& [tensor, info] : tensors_) {
    const uint64_t offset = offsets[tensor];
    const auto size = StoredBytes(info.type, info.shape);
    if (!size) {
      Fail("'{}': tensor '{}' of type {} cannot have the shape {}: too large, or a row is no whole number of blocks",
           name_, tensor, NameOf(info.type), ToString(info.shape));
    }
    if (offset > data.size() || *size > data.size() - offset) {
      Fail("'{}': tensor '{}' needs {} bytes at offset {}, but the data has {}; the file is truncated or damaged",
           name_, tensor, *size, offset, data.size());
    }
    info.bytes = data.subspan(offset, *size);
    if (*size > 0) ranges.emplace_back(offset, offset + *size);
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].first < ranges[i - 1].second) Fail("'{}': two tensors overlap in the file; it is damaged", name_);
  }
}

const GgufValue* GgufFile::Find(const std::string& key) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? nullptr : &found->second;
}

std::optional<int64_t> GgufFile::Integer(const std::string& key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->type == GgufType::kU64 || value->type == GgufType::kI64) {
    int64_t result;
    std::memcpy(&result, value->payload.data(), 8);
    if (value->type == GgufType::kU64 && result < 0) Fail("'{}': '{}' is absurdly large", name_, key);
    return result;
  }
  const auto number = value->type == GgufType::kF32 || value->type == GgufType::kF64
                          ? std::nullopt
                          : LoadNumber(value->type, value->payload.data());
  if (!number) Fail("'{}': '{}' is not an integer", name_, key);
  return static_cast<int64_t>(*number);
}

int64_t GgufFile::RequiredInteger(const std::string& key) const {
  const auto value = Integer(key);
  if (!value) Fail("'{}': the metadata value '{}' is missing", name_, key);
  return *value;
}

std::optional<double> GgufFile::Number(const std::string& key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::nullopt;
  const auto number = LoadNumber(value->type, value->payload.data());
  if (!number) Fail("'{}': '{}' is not a number", name_, key);
  return number;
}

std::optional<bool> GgufFile::Bool(const std::string& key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != GgufType::kBool) Fail("'{}': '{}' is not a truth value", name_, key);
  return value->payload[0] != std::byte{0};
}

std::optional<std::string> GgufFile::Text(const std::string& key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != GgufType::kString) Fail("'{}': '{}' is not a string", name_, key);
  return std::string(reinterpret_cast<const char*>(value->payload.data()) + 8, value->payload.size() - 8);
}

std::optional<std::vector<std::string>> GgufFile::Texts(const std::string& key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != GgufType::kArray || value->element != GgufType::kString) {
    Fail("'{}': '{}' is not an array of strings", name_, key);
  }
  Cursor cursor(value->payload, name_);
  std::vector<std::string> result(value->count);
  for (std::string& text : result) text = cursor.Text(std::numeric_limits<uint64_t>::max(), "a string");
  return result;
}

std::optional<std::vector<double>> GgufFile::Numbers(const std::string& key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::nullopt;
  const size_t size = value->type == GgufType::kArray ? ScalarBytes(value->element) : 0;
  if (size == 0 || value->element == GgufType::kBool) Fail("'{}': '{}' is not an array of numbers", name_, key);
  std::vector<double> result(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    const std::byte* at = value->payload.data() + i * size;
    if (value->element == GgufType::kF32) {  // many of them (scores): exact, without the detour over decimals
      float number;
      std::memcpy(&number, at, sizeof(number));
      result[i] = number;
    } else {
      result[i] = *LoadNumber(value->element, at);
    }
  }
  return result;
}

}  // namespace cairn
