#include "bench/index_bench.h"

#include <algorithm>

#include "base/error.h"
#include "base/threads.h"
#include "bench/timing.h"
#include "data/text_files.h"
#include "infer/ingest.h"
#include "io/file.h"
#include "io/long_text.h"

namespace cairn {

namespace {

// Chunks whose queries are taken, from places all over the text that was not read.
constexpr size_t kChunks = 4;

struct Lists {
  std::vector<float> scores;
  std::vector<int32_t> blocks;
  std::vector<BestBlocks> best;

  // The latest k landmarks stand in slots of their own in a session and are not searched; here all are.
  void Search(const LandmarkIndex& index, size_t k, size_t count, const float* queries) {
    scores.resize(count * k);
    blocks.resize(count * k);
    best.resize(count);
    for (size_t q = 0; q < count; ++q) best[q].Reset(k, &scores[q * k], &blocks[q * k]);
    index.Search(0, index.size(), count, queries, best.data());
  }
};

// The best of all keys: [query][k].
struct Truth {
  std::vector<int32_t> blocks;

  // Of the list of query `q`, those that are among its best.
  size_t Hits(size_t q, size_t k, const BestBlocks& list) const {
    size_t hits = 0;
    for (size_t i = 0; i < list.count(); ++i) {
      const auto first = blocks.begin() + static_cast<ptrdiff_t>(q * k);
      hits += std::find(first, first + static_cast<ptrdiff_t>(k), list.block(i)) != first + static_cast<ptrdiff_t>(k);
    }
    return hits;
  }
};

size_t ChunkQueries(const LandmarkSample& sample) { return std::max<size_t>(1, sample.query_count() / kChunks); }

// One kind at one size.
class Measurement {
 public:
  Measurement(const std::vector<LandmarkSample>& samples, const std::vector<Truth>& truth, size_t k, double seconds)
      : samples_(samples), truth_(truth), k_(k), seconds_(seconds) {}

  IndexBenchRow Run(IndexKind kind, size_t size) {
    row_ = {};
    row_.kind = kind;
    row_.size = size;
    Build();
    Recall();
    Times();
    return row_;
  }

 private:
  void Build() {
    const auto heads = static_cast<double>(samples_.size());
    const auto size = static_cast<double>(row_.size);
    std::vector<float> keys;
    for (const LandmarkSample& sample : samples_) {
      const size_t dim = sample.keys.dim();
      keys.resize(row_.size * dim);
      for (size_t b = 0; b < row_.size; ++b) sample.keys.Read(b, &keys[b * dim]);
      auto index = LandmarkIndex::Make(row_.kind, dim, sample.keys.half());
      const double begin = SecondsNow();
      for (size_t b = 0; b < row_.size; ++b) index->Add(&keys[b * dim]);
      row_.append_us += 1e6 * (SecondsNow() - begin) / heads / size;
      row_.bytes += static_cast<double>(index->bytes()) / heads / size;
      indexes_.push_back(std::move(index));
    }
  }

  void Recall() {
    std::vector<size_t> heads_of_layer;
    for (size_t s = 0; s < samples_.size(); ++s) {
      const LandmarkSample& sample = samples_[s];
      const size_t count = sample.query_count(), dim = sample.keys.dim();
      size_t alone = 0, together = 0;
      for (size_t q = 0; q < count; ++q) {
        lists_.Search(*indexes_[s], k_, 1, &sample.queries[q * dim]);
        alone += truth_[s].Hits(q, k_, lists_.best[0]);
      }
      for (size_t first = 0; first < count; first += ChunkQueries(sample)) {
        const size_t some = std::min(ChunkQueries(sample), count - first);
        lists_.Search(*indexes_[s], k_, some, &sample.queries[first * dim]);
        for (size_t q = 0; q < some; ++q) together += truth_[s].Hits(first + q, k_, lists_.best[q]);
      }
      const double asked = static_cast<double>(count * k_), heads = static_cast<double>(samples_.size());
      const double recall = static_cast<double>(alone) / asked, chunk = static_cast<double>(together) / asked;
      row_.recall += recall / heads;
      row_.chunk_recall += chunk / heads;
      row_.worst_recall = std::min({row_.worst_recall, recall, chunk});
      if (s == 0 || sample.layer != samples_[s - 1].layer) {
        row_.layer_recall.push_back(0);
        heads_of_layer.push_back(0);
      }
      row_.layer_recall.back() += recall;
      ++heads_of_layer.back();
    }
    for (size_t l = 0; l < heads_of_layer.size(); ++l) row_.layer_recall[l] /= static_cast<double>(heads_of_layer[l]);
  }

  void Times() {
    const auto heads = static_cast<double>(samples_.size());
    size_t turn = 0;
    const double one = BestTime(seconds_, [&] {
      for (size_t s = 0; s < samples_.size(); ++s) {
        const size_t q = turn % samples_[s].query_count();
        lists_.Search(*indexes_[s], k_, 1, &samples_[s].queries[q * samples_[s].keys.dim()]);
      }
      turn += 37;
    });
    row_.one_us = 1e6 * one / heads;
    const double chunk = BestTime(seconds_, [&] {
      for (size_t s = 0; s < samples_.size(); ++s) {
        lists_.Search(*indexes_[s], k_, ChunkQueries(samples_[s]), samples_[s].queries.data());
      }
    });
    row_.chunk_us = 1e6 * chunk / heads / static_cast<double>(ChunkQueries(samples_[0]));
  }

  const std::vector<LandmarkSample>& samples_;
  const std::vector<Truth>& truth_;
  size_t k_;
  double seconds_;
  IndexBenchRow row_;
  std::vector<std::unique_ptr<LandmarkIndex>> indexes_;
  Lists lists_;
};

}  // namespace

std::vector<LandmarkSample> SampleLandmarks(const std::shared_ptr<const InferenceModel>& model,
                                            const std::shared_ptr<const Tokenizer>& tokenizer,
                                            const LandmarkSource& source) {
  const ModelConfig& config = model->config();
  std::vector<int32_t> ids;
  std::string text;
  std::error_code ignored;
  const bool exists = std::filesystem::exists(source.memory, ignored);
  for (const auto& file : FindTextFiles({source.texts.begin(), source.texts.end()}).files) {
    text += ReadTextFile(file);
    if (text.size() > 6 * source.tokens) break;  // more than enough for any tokenizer of words
  }
  ids = tokenizer->Encode(text);
  SessionOptions settings = source.session;
  settings.index = IndexKind::kExact;
  settings.record_queries = true;
  const size_t chunk = Session(model, settings).options().chunk_length;
  if (ids.size() < (exists ? 1 : 2) * kChunks * chunk) {
    Fail("the text has {} tokens; at least {} are needed", ids.size(), (exists ? 1 : 2) * kChunks * chunk);
  }
  const size_t rest = kChunks * chunk;  // at the end, for the queries
  if (!exists) {
    const size_t read = std::min(source.tokens, ids.size() - rest);
    const std::string memory_text = tokenizer->Decode(std::span(ids).first(read));
    Ingest(source.memory, model, tokenizer, source.session, source.ram).Add("text", LongText::OfBytes(memory_text));
  }
  const auto file = std::make_shared<const MemoryFile>(source.memory);
  Session session(model, OptionsFor(*file, settings));
  AttachWithin(session, file, source.ram);
  const size_t blocks = session.counters().blocks_kept;
  const size_t group = config.num_attention_heads / config.num_key_value_heads;
  if (blocks <= source.session.top_k) Fail("the memory has {} blocks, too few to search", blocks);
  std::vector<LandmarkSample> samples;
  for (size_t layer = config.landmark.local_layers; layer < config.num_hidden_layers; ++layer) {
    for (size_t h = 0; h < config.num_key_value_heads; ++h) {
      const LandmarkPanels& keys = session.Landmarks(layer, h).keys();
      if (!keys.uniform()) samples.push_back({layer, keys, {}});
    }
  }
  if (samples.empty()) Fail("all landmarks of the memory are alike; the model needs two layers or more");
  for (size_t c = 0; c < kChunks; ++c) {
    const size_t first = exists ? c * ((ids.size() - chunk) / kChunks) : ids.size() - rest + c * chunk;
    session.Append(std::span(ids).subspan(first, chunk));
    size_t next = 0;
    for (size_t layer = 0; layer < config.num_hidden_layers; ++layer) {
      const std::vector<float>& all = session.LastQueries()[layer];
      const size_t rows = all.size() / (config.num_attention_heads * config.head_dim);
      for (size_t h = 0; h < config.num_key_value_heads; ++h) {
        if (next == samples.size() || samples[next].layer != layer) continue;
        std::vector<float>& queries = samples[next++].queries;
        for (size_t row = 0; row < rows; ++row) {
          const float* q = &all[(row * config.num_attention_heads + h * group) * config.head_dim];
          queries.insert(queries.end(), q, q + group * config.head_dim);
        }
      }
    }
  }
  return samples;
}

void BenchIndexes(const std::vector<LandmarkSample>& samples, const IndexBenchOptions& options,
                  const std::function<void(const IndexBenchRow&)>& each) {
  CAIRN_CHECK(!samples.empty());
  std::vector<IndexKind> kinds = options.kinds;
  if (kinds.empty()) {
    kinds = {IndexKind::kExact, IndexKind::kInt8, IndexKind::kHierarchical};
    if (HasIvf()) kinds.push_back(IndexKind::kIvf);
  }
  const size_t available = samples[0].keys.size();
  std::vector<size_t> sizes;
  for (const size_t size : options.sizes) {
    if (size > options.top_k && size <= available) sizes.push_back(size);
  }
  if (sizes.empty()) Fail("there are {} landmarks; ask for sizes between {} and that", available, options.top_k + 1);
  const int threads = ThreadCount();
  SetThreadCount(1);
  for (const size_t size : sizes) {
    std::vector<Truth> truth;
    Lists lists;
    for (const LandmarkSample& sample : samples) {
      LandmarkPanels keys = sample.keys;
      keys.Truncate(size);
      lists.Search(*MakeExactIndex(std::move(keys)), options.top_k, sample.query_count(), sample.queries.data());
      truth.push_back({lists.blocks});
    }
    for (const IndexKind kind : kinds) {
      each(Measurement(samples, truth, options.top_k, options.seconds).Run(kind, size));
    }
  }
  SetThreadCount(threads);
}

}  // namespace cairn
