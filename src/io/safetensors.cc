#include "io/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "base/checked.h"
#include "base/error.h"
#include "tensor/convert.h"

namespace cairn {

namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxHeader = 100'000'000;  // the format's own limit
constexpr size_t kMaxRank = 16;

DType ParseDType(const std::string& text, const std::string& file, const std::string& tensor) {
  constexpr DType kAll[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kI64,
                            DType::kI32, DType::kI16, DType::kI8,  DType::kU8,   DType::kBool};
  for (const DType dtype : kAll) {
    if (NameOf(dtype) == text) return dtype;
  }
  Fail("'{}': tensor '{}' has the element type '{}', which Cairn does not read", file, tensor, text);
}

// Parses the header with a depth limit (a hostile header could otherwise exhaust the stack) and refuses names that
// stand twice.
Json ParseHeader(std::string_view text, const std::string& file) {
  constexpr int kMaxDepth = 8;
  std::set<std::string> names;
  std::string repeated;
  bool too_deep = false;
  Json header;
  try {
    header = Json::parse(text, [&](int depth, Json::parse_event_t event, Json& value) {
      too_deep |= depth > kMaxDepth;
      if (too_deep) throw Error("");
      if (event == Json::parse_event_t::key && depth == 1 && !names.insert(value.get<std::string>()).second) {
        repeated = value.get<std::string>();
      }
      return true;
    });
  } catch (const Json::exception&) {
    Fail("'{}': the safetensors header is not valid JSON; the file is damaged or of another kind", file);
  } catch (const Error&) {
    Fail("'{}': the safetensors header is nested too deeply; the file is damaged or of another kind", file);
  }
  if (!repeated.empty()) Fail("'{}': tensor '{}' stands twice in the header", file, repeated);
  if (!header.is_object()) Fail("'{}': the safetensors header is not a JSON object", file);
  return header;
}

uint64_t ParseSize(const Json& value, const std::string& file, const std::string& tensor) {
  if (!value.is_number_unsigned())
    Fail("'{}': tensor '{}' has a size or offset that is no non-negative integer", file, tensor);
  return value.get<uint64_t>();
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(std::in_place, path), name_(file_->name()), bytes_(file_->bytes()) {
  Parse();
}

SafetensorsFile::SafetensorsFile(std::span<const std::byte> bytes, std::string name)
    : name_(std::move(name)), bytes_(bytes) {
  Parse();
}

void SafetensorsFile::Parse() {
  static_assert(std::endian::native == std::endian::little);
  const auto bytes = bytes_;
  if (bytes.size() < 8) Fail("'{}' has {} bytes, too few for a safetensors file", name(), bytes.size());
  uint64_t header_size;
  std::memcpy(&header_size, bytes.data(), 8);
  if (header_size > kMaxHeader || header_size > bytes.size() - 8) {
    Fail("'{}': the safetensors header claims {} bytes, but the file has {}; it is truncated or of another kind",
         name(), header_size, bytes.size());
  }
  const Json header = ParseHeader({reinterpret_cast<const char*>(bytes.data()) + 8, header_size}, name());
  const auto data = bytes.subspan(8 + header_size);

  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const auto& [key, value] : header.items()) {
    if (key == "__metadata__") {
      if (!value.is_object()) Fail("'{}': __metadata__ is not a JSON object", name());
      for (const auto& [meta_key, meta_value] : value.items()) {
        if (!meta_value.is_string()) Fail("'{}': metadata '{}' is not a string", name(), meta_key);
        metadata_[meta_key] = meta_value.get<std::string>();
      }
      continue;
    }
    if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") || !value.contains("data_offsets") ||
        !value["dtype"].is_string() || !value["shape"].is_array() || !value["data_offsets"].is_array() ||
        value["data_offsets"].size() != 2) {
      Fail("'{}': tensor '{}' lacks a valid dtype, shape or data_offsets", name(), key);
    }
    TensorEntry entry;
    entry.dtype = ParseDType(value["dtype"].get<std::string>(), name(), key);
    if (value["shape"].size() > kMaxRank) {
      Fail("'{}': tensor '{}' has {} dimensions, more than the {} that Cairn reads", name(), key, value["shape"].size(),
           kMaxRank);
    }
    for (const Json& size : value["shape"]) entry.shape.push_back(ParseSize(size, name(), key));
    const uint64_t begin = ParseSize(value["data_offsets"][0], name(), key);
    const uint64_t end = ParseSize(value["data_offsets"][1], name(), key);
    const auto count = CheckedProduct(entry.shape);
    const auto size = count ? CheckedMul(*count, SizeOf(entry.dtype)) : std::nullopt;
    if (!size) Fail("'{}': tensor '{}' of shape {} is impossibly large", name(), key, ToString(entry.shape));
    if (begin > end || end > data.size()) {
      Fail("'{}': tensor '{}' lies at bytes {} to {} of {}; the file is truncated or damaged", name(), key, begin, end,
           data.size());
    }
    if (end - begin != *size) {
      Fail("'{}': tensor '{}' of shape {} and type {} needs {} bytes but has {}", name(), key, ToString(entry.shape),
           NameOf(entry.dtype), *size, end - begin);
    }
    entry.count = *count;
    entry.bytes = data.subspan(begin, end - begin);
    if (begin != end) ranges.emplace_back(begin, end);
    tensors_.emplace(key, std::move(entry));
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].first < ranges[i - 1].second) Fail("'{}': two tensors overlap in the file; it is damaged", name());
  }
}

const TensorEntry& SafetensorsFile::Get(const std::string& tensor) const {
  const auto found = tensors_.find(tensor);
  if (found == tensors_.end()) Fail("'{}' has no tensor '{}'", name(), tensor);
  return found->second;
}

Tensor SafetensorsFile::ReadFloats(const std::string& tensor) const {
  const TensorEntry& entry = Get(tensor);
  if (!IsFloat(entry.dtype))
    Fail("'{}': tensor '{}' has type {}, not a float type", name(), tensor, NameOf(entry.dtype));
  Tensor result(entry.shape);
  ConvertToFloat(entry.dtype, entry.bytes, result.span());
  return result;
}

std::vector<int64_t> SafetensorsFile::ReadIntegers(const std::string& tensor) const {
  const TensorEntry& entry = Get(tensor);
  if (IsFloat(entry.dtype))
    Fail("'{}': tensor '{}' has type {}, not an integer type", name(), tensor, NameOf(entry.dtype));
  std::vector<int64_t> result(entry.count);
  ConvertToInteger(entry.dtype, entry.bytes, result);
  return result;
}

const std::string& SafetensorsFile::MetadataText(const std::string& key) const {
  const auto found = metadata_.find(key);
  if (found == metadata_.end()) Fail("'{}' has no metadata '{}'", name(), key);
  return found->second;
}

int64_t SafetensorsFile::MetadataInteger(const std::string& key, int64_t low, int64_t high) const {
  const std::string& text = MetadataText(key);
  char* end = nullptr;
  errno = 0;
  const long long value = std::strtoll(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || errno != 0 || value < low || value > high) {
    Fail("'{}': metadata '{}' is '{}', not an integer from {} to {}", name(), key, text, low, high);
  }
  return value;
}

void WriteSafetensors(const std::filesystem::path& path, std::span<const TensorToWrite> tensors,
                      const std::map<std::string, std::string>& metadata) {
  std::vector<TensorStream> streams;
  for (const TensorToWrite& tensor : tensors) {
    streams.push_back(
        {tensor.name, tensor.dtype, tensor.shape, [&tensor](const ByteSink& sink) { sink(tensor.bytes); }});
  }
  WriteSafetensors(path, streams, metadata);
}

void WriteSafetensors(const std::filesystem::path& path, std::span<const TensorStream> tensors,
                      const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::vector<uint64_t> ends;
  uint64_t offset = 0;
  std::set<std::string> names;
  for (const TensorStream& tensor : tensors) {
    const auto count = CheckedProduct(tensor.shape);
    const auto size = count ? CheckedMul(*count, SizeOf(tensor.dtype)) : std::nullopt;
    CAIRN_CHECK(size, "tensor {}", tensor.name);
    CAIRN_CHECK(names.insert(tensor.name).second, "tensor {} twice", tensor.name);
    header[tensor.name] = {{"dtype", std::string(NameOf(tensor.dtype))},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + *size}}};
    offset += *size;
    ends.push_back(offset);
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const Json::exception&) {
    Fail("cannot write '{}': a tensor name or the metadata is not valid UTF-8", path.string());
  }
  text.resize(RoundUp(text.size() + 8, 64) - 8, ' ');
  const uint64_t header_size = text.size();
  WriteFileAtomically(path, [&](const ByteSink& sink) {
    sink(std::as_bytes(std::span(&header_size, 1)));
    sink(std::as_bytes(std::span(text)));
    uint64_t written = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      tensors[i].write([&](std::span<const std::byte> bytes) {
        written += bytes.size();
        sink(bytes);
      });
      CAIRN_CHECK(written == ends[i], "tensor {}", tensors[i].name);
    }
  });
}

}  // namespace cairn
