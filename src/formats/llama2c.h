// llama2.c model files: version 0 (seven integers and f32 weights) both ways, version 1 for reading. What the header
// has no place for, a landmark section above all, stands in a config.json beside the file: FILE.bin and FILE.bin.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/model_source.h"
#include "formats/tensor_export.h"

namespace cairn {

// Whether the first bytes can be a llama2.c header; version 0 has no magic.
bool LooksLikeLlama2c(std::span<const std::byte> bytes);

// Text of the config beside `path`, where there is one.
std::optional<std::string> ReadLlama2cSidecar(const std::filesystem::path& path);

// `owner` keeps the bytes alive; it may be null when the caller does. `sidecar` is the text of FILE.bin.json.
std::shared_ptr<const ModelSource> ModelFromLlama2c(std::span<const std::byte> bytes, const std::string& name,
                                                    std::shared_ptr<const void> owner,
                                                    const std::optional<std::string>& sidecar);

// Atomic; version 0, f32, with the tables of rotary angles that old readers expect. Writes the file beside it only
// where the header cannot hold the settings, and removes a stale one.
std::vector<WrittenFile> WriteLlama2c(const ModelSource& source, const std::filesystem::path& path,
                                      const WriteProgress& progress = {});

}  // namespace cairn
