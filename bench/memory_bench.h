// `cairn bench memory`: a memory on disk as it grows: speed of ingestion and of writing, latency, what is read from
// disk, RAM.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "infer/session.h"
#include "tokenizer/tokenizer.h"

namespace cairn {

struct MemoryBenchOptions {
  std::vector<std::string> texts;
  std::filesystem::path memory;  // made anew
  std::vector<size_t> sizes = {8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576};
  size_t ram = size_t{512} << 20;
  size_t tokens = 2048;  // written at each size, the first ones after opening
  SessionOptions session;
};

struct MemoryBenchRow {
  size_t tokens;  // in the memory
  size_t blocks;
  double ingest_tokens_per_second;  // of the last stretch
  double open_seconds;              // until the question can be read
  double first_token_seconds;       // from opening to the first token of an answer to twenty tokens
  double decode_tokens_per_second;
  double slower_than_first;     // time of a written token, as a multiple of that at the first size, measured in turn
  double median_slower;         // the same of the medians: without the tokens that waited for the disk
  double p50_ms, p99_ms;        // of a written token
  double disk_bytes_per_token;  // read while writing
  double hit_percent;           // of the blocks wanted, those that were in RAM
  size_t resident_bytes;        // of the process, now
  size_t file_bytes;
};

std::vector<MemoryBenchRow> BenchMemory(const std::shared_ptr<const InferenceModel>& model,
                                        const std::shared_ptr<const Tokenizer>& tokenizer,
                                        const MemoryBenchOptions& options,
                                        const std::function<void(const MemoryBenchRow&)>& each = nullptr);

// The rows as a picture: speeds, latency and RAM over the tokens in the memory.
std::string DrawMemoryBench(const std::string& title, const std::vector<MemoryBenchRow>& rows);

}  // namespace cairn
