// Turns text files into a directory of token shards.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace cairn {

struct PrepareOptions {
  std::vector<std::filesystem::path> inputs;            // text files or directories
  std::vector<std::filesystem::path> validation_files;  // the same, for the validation split
  double validation_fraction = 0;  // of every document of `inputs` its last part, cut at a line end, is validation
  std::shared_ptr<const Tokenizer> tokenizer;
  std::filesystem::path output;
  bool add_bos = true;    // before every document, when the vocabulary has one
  std::string separator;  // text between two documents of a file; empty: a file is a document
  uint64_t shard_tokens = uint64_t{1} << 25;
  bool force = false;  // replace an earlier preparation
};

struct PrepareSummary {
  struct Split {
    uint64_t files = 0, documents = 0, tokens = 0, bytes = 0;
    size_t shards = 0;
  };
  Split train, validation;
  size_t skipped_files = 0;
};

// Uses all threads; the result does not depend on their number. The manifest is written last, so a preparation that was
// broken off leaves a directory that does not open.
PrepareSummary PrepareData(const PrepareOptions& options);

}  // namespace cairn
