// `cairn bench index`: how fast the indexes of landmarks are and how much they find, with the keys and the queries of a
// model that has read a text.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "infer/session.h"
#include "memory/landmark_index.h"
#include "tokenizer/tokenizer.h"

namespace cairn {

// Keys and queries of one layer and KV head.
struct LandmarkSample {
  size_t layer = 0;
  LandmarkPanels keys;
  std::vector<float> queries;  // [][dim], as old landmarks are searched with, those of a chunk one after the other

  size_t query_count() const { return queries.size() / keys.dim(); }
};

struct LandmarkSource {
  std::vector<std::string> texts;
  std::filesystem::path memory;  // a memory that exists is searched as it is; else the texts are read into it first
  size_t tokens = 1000000;       // of the texts to read
  size_t ram = size_t{512} << 20;
  SessionOptions session;
};

// The landmarks of every layer and KV head of a memory, and the queries of chunks of text that it has not read. Layers
// whose landmarks are all alike (the first) are left out.
std::vector<LandmarkSample> SampleLandmarks(const std::shared_ptr<const InferenceModel>& model,
                                            const std::shared_ptr<const Tokenizer>& tokenizer,
                                            const LandmarkSource& source);

struct IndexBenchOptions {
  std::vector<size_t> sizes = {1000, 2000, 5000, 10000,
                               20000};  // landmarks; what is beyond those there are is left out
  std::vector<IndexKind> kinds;         // empty: all
  size_t top_k = 4;
  double seconds = 0.3;  // of each measurement
};

struct IndexBenchRow {
  size_t size = 0;
  IndexKind kind{};
  double recall = 0;                 // of the k best, a query alone
  double chunk_recall = 0;           // the same for the queries of a chunk together
  double worst_recall = 1;           // of a single layer and KV head, of both
  std::vector<double> layer_recall;  // of each layer that was sampled, alone
  double one_us = 0;                 // a query alone
  double chunk_us = 0;               // a query among those of a chunk
  double append_us = 0;              // a key, from the first to the last
  double bytes = 0;                  // a key, itself included
};

// One thread. Queries go to one head after the other, so that their keys compete for the caches as they do in a
// session. Times are of the mean query and key.
void BenchIndexes(const std::vector<LandmarkSample>& samples, const IndexBenchOptions& options,
                  const std::function<void(const IndexBenchRow&)>& each);

}  // namespace cairn
