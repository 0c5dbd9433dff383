#include "infer/session.h"

#include <algorithm>
#include <limits>

#include "base/checked.h"
#include "base/error.h"
#include "kernels/elementwise.h"
#include "memory/memory_writer.h"

namespace cairn {

namespace {

// Tokens of a page of the KV cache with full attention.
constexpr size_t kPageTokens = 64;
// Rows of logits at a time.
constexpr size_t kHeadRows = 64;
// Rows that go through the weights together, where chunks are smaller.
constexpr size_t kRowsTogether = 512;

SessionOptions Resolve(const ModelConfig& config, SessionOptions options) {
  const LandmarkConfig& trained = config.landmark;
  if (options.attention == AttentionKind::kXl) {
    Fail("sessions have full or landmark attention; Transformer-XL models run with full attention");
  }
  if (options.attention == AttentionKind::kFull) {
    options.block_length = 0;
    if (options.chunk_length == 0) options.chunk_length = 512;
  } else {
    if (!config.has_landmark()) {
      Fail("the model has no landmark token; use full attention, or give it landmarks with cairn tune");
    }
    if (options.block_length == 0) options.block_length = trained.block_length;
    if (options.block_length == 0) Fail("the model does not say its block length; set one");
    if (options.block_length > (size_t{1} << 20)) Fail("a block of {} tokens is too long", options.block_length);
    const size_t stride = options.block_length + 1;
    if (options.chunk_length == 0 && trained.memory_training.enabled &&
        trained.memory_training.chunk_length % options.block_length == 0) {
      options.chunk_length = trained.memory_training.chunk_length;
    }
    if (options.chunk_length == 0) {
      // Chunk and slots together fill the trained context, in whole blocks.
      const size_t slots = (std::min(options.top_k, config.max_position_embeddings) + 1) * stride;
      const size_t room = config.max_position_embeddings > slots ? config.max_position_embeddings - slots : 0;
      const size_t most = std::max<size_t>(1, 1024 / stride);
      options.chunk_length = std::clamp<size_t>(room / stride, 1, most) * options.block_length;
    }
  }
  if (options.chunk_length > (size_t{1} << 20)) Fail("a chunk of {} tokens is too long", options.chunk_length);
  if (!(options.miss_cutoff >= 0 && options.miss_cutoff <= 1)) Fail("the cutoff must be between 0 and 1");
  if (options.miss_cutoff > 0 && !trained.context_miss.enabled) {
    Fail("the model has no context-miss token, so there is nothing to cut off");
  }
  return options;
}

MemoryAttentionOptions AttentionOptions(const ModelConfig& config, const SessionOptions& options) {
  MemoryAttentionOptions attention;
  attention.query_heads = config.num_attention_heads;
  attention.kv_heads = config.num_key_value_heads;
  attention.dim = config.head_dim;
  const bool landmarks = options.attention == AttentionKind::kLandmark;
  attention.block = {config.head_dim, landmarks ? options.block_length : kPageTokens, landmarks, options.block_format};
  attention.rotary = config.rotary_layout;
  attention.frequencies = RotaryFrequencies(config);
  attention.top_k = options.top_k;
  attention.memory_blocks = landmarks ? options.memory_blocks : DivideUp(options.memory_blocks, kPageTokens);
  attention.granularity = options.granularity;
  attention.exact_positions = options.exact_positions;
  attention.group_chooses_together = options.group_chooses_together;
  attention.miss_cutoff = options.miss_cutoff;
  attention.index = options.index;
  attention.audit = options.audit;
  return attention;
}

void Grow(AlignedBuffer<float>& buffer, size_t size) {
  if (buffer.size() < size) buffer = AlignedBuffer<float>(size);
}

}  // namespace

SessionOptions DefaultSessionOptions(const ModelConfig& config) {
  SessionOptions options;
  options.attention = config.landmark.attention == AttentionKind::kLandmark && config.has_landmark()
                          ? AttentionKind::kLandmark
                          : AttentionKind::kFull;
  if (config.landmark.memory_training.enabled) options.top_k = config.landmark.memory_training.k;
  if (config.landmark.context_miss.enabled) options.miss_cutoff = config.landmark.context_miss.cutoff;
  return options;
}

Session::Session(std::shared_ptr<const InferenceModel> model, const SessionOptions& options)
    : model_(std::move(model)),
      options_(Resolve(model_->config(), options)),
      attention_(AttentionOptions(model_->config(), options_)) {
  Reset();
}

Session::Session(const Session& other)
    : model_(other.model_),
      options_(other.options_),
      attention_(AttentionOptions(model_->config(), options_)),
      layers_(other.layers_),
      cache_(other.cache_),
      file_blocks_(other.file_blocks_),
      tokens_(other.tokens_),
      logits_(other.logits_),
      reads_(other.reads_),
      last_reads_(other.last_reads_),
      blocks_read_(other.blocks_read_),
      blocks_chosen_(other.blocks_chosen_),
      chunks_(other.chunks_),
      layer_rows_(other.layer_rows_),
      audit_(other.audit_),
      queries_(other.queries_) {}

Session Session::Fork() const { return Session(*this); }

void Session::Reset() {
  const ModelConfig& config = model_->config();
  const MemoryAttentionOptions attention = AttentionOptions(config, options_);
  layers_.clear();
  for (size_t l = 0; l < config.num_hidden_layers; ++l) {
    const bool local = l < config.landmark.local_layers;
    layers_.emplace_back(attention.block, attention.kv_heads, local ? std::nullopt : std::optional(attention.index));
  }
  cache_ = nullptr;
  file_blocks_.clear();
  tokens_.clear();
  logits_.clear();
  reads_.assign(options_.record_reads ? config.num_hidden_layers : 0, {});
  last_reads_.clear();
  blocks_read_ = 0;
  blocks_chosen_ = 0;
  chunks_ = 0;
  layer_rows_ = 0;
  audit_ = {};
  queries_.assign(options_.record_queries ? config.num_hidden_layers : 0, {});
}

void Session::SetTopK(size_t k) {
  options_.top_k = k;
  attention_.set_top_k(k);
}

void Session::Truncate(size_t tokens) {
  if (tokens > tokens_.size()) Fail("cannot truncate to {} tokens: only {} were read", tokens, tokens_.size());
  if (tokens == tokens_.size()) return;
  const size_t length = landmarks() ? options_.block_length : kPageTokens;
  if (tokens / length < layers_[0].forgotten()) {
    Fail("cannot truncate to {} tokens: their block was evicted from the memory", tokens);
  }
  CheckLocalBlocks(tokens / length, tokens % length);
  for (LayerMemory& layer : layers_) layer.Truncate(tokens / length, tokens % length);
  if (file_blocks_.size() > tokens / length) file_blocks_.resize(tokens / length);
  tokens_.resize(tokens);
  ForgetLogits();
}

// A memory file keeps of local layers what follows the end of its texts, not what stands inside them.
void Session::CheckLocalBlocks(size_t blocks, size_t unfinished) const {
  const LandmarkConfig& landmark = model_->config().landmark;
  if (!landmarks() || landmark.local_layers == 0) return;
  const LayerMemory& layer = layers_[0];
  const size_t kept = blocks - layer.forgotten();
  if (kept >= layer.stored()) return;
  for (size_t b = kept - std::min(kept, landmark.local_blocks); b < kept + (unfinished > 0 ? 1 : 0); ++b) {
    if (layer.Has(b)) continue;
    Fail(
        "cannot truncate to {} tokens: they end inside a text of '{}', which keeps of the local layers only the ends; "
        "open it anew and keep {} tokens or more",
        blocks * options_.block_length + unfinished, cache_->file()->name(), layer.stored() * options_.block_length);
  }
}

// And what was read for them.
void Session::ForgetLogits() {
  logits_.clear();
  for (ChunkReads& reads : reads_) reads = {};
  last_reads_.clear();
}

std::span<const float> Session::Logits() const {
  if (logits_.empty()) Fail("there is nothing to continue: append at least one token first");
  return logits_;
}

void Session::CheckTokens(std::span<const int32_t> tokens) const {
  const ModelConfig& config = model_->config();
  for (const int32_t id : tokens) {
    if (id < 0 || static_cast<size_t>(id) >= config.vocab_size) {
      Fail("token {} is not in the model's vocabulary of {}", id, config.vocab_size);
    }
    if (id == config.landmark.landmark_id) Fail("token {} is the landmark, which is inserted by rule", id);
  }
}

void Session::Append(std::span<const int32_t> tokens, const LogitsSink& sink) { Take(tokens, sink, false); }

void Session::Read(std::span<const int32_t> tokens) { Take(tokens, nullptr, true); }

size_t Session::piece_tokens() const {
  return std::max<size_t>(1, kRowsTogether / options_.chunk_length) * options_.chunk_length;
}

// Chunk by chunk; those that nothing is asked of go together. `silent`: that is all of them, else all but the last.
void Session::Take(std::span<const int32_t> tokens, const LogitsSink& sink, bool silent) {
  CheckTokens(tokens);
  const auto landmark = static_cast<int32_t>(model_->config().landmark.landmark_id);
  // Someone may ask every row of every layer.
  const bool asked = sink || options_.audit || options_.record_queries || ranking_ != nullptr;
  Rows rows;
  for (size_t done = 0; done < tokens.size();) {
    rows.ids.clear();
    rows.chunks.clear();
    const size_t first = tokens_.size(), begin = done;
    size_t place = layers_[0].unfinished();
    const auto end_block = [&] {
      if (!landmarks() || place < options_.block_length) return;
      rows.ids.push_back(landmark);
      place = 0;
    };
    do {
      // The first chunk ends where it would have without the unfinished block, so that later ones begin on blocks.
      const size_t whole = options_.chunk_length;
      const size_t count = std::min(tokens.size() - done, whole > place ? whole - place : whole);
      const bool together = !asked && (silent || done + count < tokens.size());
      if (!together && !rows.chunks.empty()) break;
      rows.silent = together;
      const size_t before = rows.ids.size();
      end_block();  // FeedPositions may have stopped before the landmark
      for (size_t i = 0; i < count; ++i) {
        rows.ids.push_back(tokens[done + i]);
        ++place;
        end_block();
      }
      if (!landmarks()) place %= kPageTokens;
      rows.chunks.push_back(rows.ids.size() - before);
      done += count;
    } while (rows.silent && done < tokens.size() && rows.ids.size() < kRowsTogether);
    tokens_.insert(tokens_.end(), tokens.begin() + static_cast<ptrdiff_t>(begin),
                   tokens.begin() + static_cast<ptrdiff_t>(done));
    Run(rows, first, sink);
  }
  if (silent && !tokens.empty()) ForgetLogits();
}

void Session::FeedPositions(std::span<const int32_t> ids, const LogitsSink& sink) {
  std::vector<int32_t> ordinary;
  size_t place = layers_[0].unfinished();
  for (size_t i = 0; i < ids.size(); ++i) {
    const int32_t id = ids[i];
    const bool is_landmark = landmarks() && id == model_->config().landmark.landmark_id;
    if (landmarks() && is_landmark != (place == options_.block_length)) {
      Fail("position {} of the chunk {} a landmark, which blocks of {} tokens do not allow", i,
           is_landmark ? "is" : "is not", options_.block_length);
    }
    place = is_landmark ? 0 : place + 1;
    if (!is_landmark) ordinary.push_back(id);
  }
  CheckTokens(ordinary);
  if (ids.empty()) return;
  const size_t first = tokens_.size();
  tokens_.insert(tokens_.end(), ordinary.begin(), ordinary.end());
  Run({{ids.begin(), ids.end()}, {ids.size()}}, first, sink);
}

void Session::Run(const Rows& all, size_t first_token, const LogitsSink& sink) {
  const ModelConfig& config = model_->config();
  const size_t rows = all.ids.size();
  const size_t hidden = config.hidden_size;
  const size_t inner = config.intermediate_size;
  const size_t width = config.query_size() + 2 * config.key_size();
  const float eps = static_cast<float>(config.rms_norm_eps);
  Grow(x_, rows * hidden);
  Grow(normed_, rows * hidden);
  Grow(qkv_, rows * width);
  Grow(attended_, rows * config.query_size());
  Grow(gate_up_, rows * 2 * inner);
  Grow(act_, rows * inner);
  Grow(rstd_, rows);
  for (size_t r = 0; r < rows; ++r) model_->Embed(all.ids[r], x_.data() + r * hidden);

  const auto normalise = [&](const std::vector<float>& weight) {
    RunRmsNorm({rows, hidden}, {x_.data(), nullptr, weight.data(), eps, nullptr, normed_.data(), rstd_.data()});
  };
  for (size_t l = 0; l < layers_.size(); ++l) {
    const InferenceModel::Layer& layer = model_->layers()[l];
    // Later tokens need its keys and values alone.
    const bool only_joins = all.silent && l + 1 == layers_.size();
    normalise(layer.input_norm);
    layer.qkv.Multiply(rows, normed_.data(), qkv_.data());
    MemoryAttention::Chunk chunk;
    chunk.reads = options_.record_reads && !all.silent ? &reads_[l] : nullptr;
    chunk.ranking = ranking_;
    chunk.searched = options_.record_queries ? &queries_[l] : nullptr;
    const bool local = landmarks() && l < config.landmark.local_layers;
    // Local layers read no memory that the context-miss token could keep from them.
    chunk.miss_key = landmarks() && !local && !layer.miss_key.empty() ? layer.miss_key.data() : nullptr;
    // What is ranked for does not go on after the text before it.
    chunk.local_blocks = !local ? std::nullopt : std::optional(ranking_ ? size_t{0} : config.landmark.local_blocks);
    // A chunk sees those before it through the memory of its layer.
    size_t first = 0;
    for (const size_t count : all.chunks) {
      chunk.time = count;
      chunk.qkv = qkv_.data() + first * width;
      chunk.out = only_joins ? nullptr : attended_.data() + first * config.query_size();
      attention_.Run(layers_[l], chunk);
      blocks_read_ += attention_.blocks_read();
      blocks_chosen_ += attention_.blocks_chosen();
      audit_.Add(attention_.audit());
      first += count;
    }
    if (only_joins) break;
    layer_rows_ += rows;
    layer.o.Multiply(rows, attended_.data(), x_.data(), true);
    normalise(layer.post_norm);
    layer.gate_up.Multiply(rows, normed_.data(), gate_up_.data());
    RunSwiGlu({rows, inner}, gate_up_.data(), act_.data());
    layer.down.Multiply(rows, act_.data(), x_.data(), true);
  }
  chunks_ += all.chunks.size();
  if (!all.silent) HeadRows(all.ids, first_token, sink);
}

// Logits after the ordinary tokens of a chunk: of all of them for a sink, else of the last.
void Session::HeadRows(std::span<const int32_t> ids, size_t first_token, const LogitsSink& sink) {
  const ModelConfig& config = model_->config();
  const size_t hidden = config.hidden_size;
  const size_t vocab = config.vocab_size;
  std::vector<size_t> ordinary;
  for (size_t r = 0; r < ids.size(); ++r) {
    if (!landmarks() || ids[r] != config.landmark.landmark_id) ordinary.push_back(r);
  }
  if (ordinary.empty()) return;  // a landmark alone: what comes next does not change
  NoteReads(ordinary.back());
  const size_t skipped = sink ? 0 : ordinary.size() - 1;
  logits_.resize(vocab);
  Grow(head_, (sink ? std::min(kHeadRows, ordinary.size()) : 1) * vocab);
  for (size_t begin = skipped; begin < ordinary.size(); begin += kHeadRows) {
    const size_t count = std::min(kHeadRows, ordinary.size() - begin);
    for (size_t i = 0; i < count; ++i) {
      RunRmsNorm({1, hidden},
                 {x_.data() + ordinary[begin + i] * hidden, nullptr, model_->final_norm().data(),
                  static_cast<float>(config.rms_norm_eps), nullptr, normed_.data() + i * hidden, rstd_.data()});
    }
    model_->head().Multiply(count, normed_.data(), head_.data());
    for (size_t i = 0; i < count; ++i) {
      float* row = head_.data() + i * vocab;
      for (const int64_t id : {config.landmark.landmark_id, config.landmark.context_miss.token_id}) {
        if (id >= 0) row[id] = -std::numeric_limits<float>::infinity();
      }
      if (sink) sink(first_token + begin + i, {row, vocab});
      if (begin + i + 1 == ordinary.size()) std::copy_n(row, vocab, logits_.begin());
    }
  }
}

// Sums up what one row of the last chunk read.
void Session::NoteReads(size_t row) {
  last_reads_.clear();
  const size_t heads = model_->config().num_attention_heads;
  for (size_t l = 0; l < reads_.size(); ++l) {
    const ChunkReads& reads = reads_[l];
    if (reads.chosen == 0) continue;
    LayerReads layer{l, {}};
    const size_t begin = row * heads * reads.chosen;
    std::vector<std::pair<int32_t, float>> all;
    for (size_t i = begin; i < begin + heads * reads.chosen; ++i) {
      if (reads.blocks[i] != kNoBlockChosen) all.emplace_back(reads.blocks[i], reads.gates[i]);
    }
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [block, gate] : all) {
      if (layer.blocks.empty() || layer.blocks.back().block != static_cast<size_t>(block)) {
        layer.blocks.push_back({static_cast<size_t>(block), 0});
      }
      layer.blocks.back().gate += static_cast<double>(gate) / static_cast<double>(heads);
    }
    last_reads_.push_back(std::move(layer));
  }
}

Session::Counters Session::counters() const {
  Counters counters;
  counters.blocks = landmarks() ? layers_[0].total() : 0;
  counters.blocks_kept = landmarks() ? layers_[0].size() : 0;
  for (const LayerMemory& layer : layers_) counters.memory_bytes += layer.bytes();
  for (const auto* buffer : {&x_, &normed_, &qkv_, &attended_, &gate_up_, &act_, &rstd_, &head_}) {
    counters.workspace_bytes += buffer->size() * sizeof(float);
  }
  counters.workspace_bytes +=
      attention_.workspace_bytes() + logits_.capacity() * sizeof(float) + tokens_.capacity() * sizeof(int32_t);
  counters.blocks_read = blocks_read_;
  counters.blocks_chosen = blocks_chosen_;
  counters.chunks = chunks_;
  counters.layer_rows = layer_rows_;
  counters.audit = audit_;
  return counters;
}

size_t Session::fixed_bytes() const {
  size_t bytes = tokens_.capacity() * sizeof(int32_t) + file_blocks_.capacity() * sizeof(uint32_t);
  for (const LayerMemory& layer : layers_) bytes += layer.fixed_bytes();
  return bytes;
}

void Session::AttachMemory(std::shared_ptr<BlockCache> cache) {
  const std::shared_ptr<const MemoryFile> file = cache->file();
  const MemoryIdentity& identity = file->identity();
  const ModelConfig& config = model_->config();
  if (!tokens_.empty()) Fail("a memory can only be opened by a session that has read nothing yet");
  if (!landmarks()) Fail("'{}' can only be read with landmark attention", file->name());
  if (options_.exact_positions) Fail("memory files hold blocks for slots; exact positions are not possible with them");
  if (identity.layers != layers_.size() || identity.kv_heads != config.num_key_value_heads ||
      identity.block != layers_[0].shape() || identity.local_layers != config.landmark.local_layers) {
    Fail("'{}' holds {} blocks of {} tokens for a model of {} layers; the session has other settings", file->name(),
         NameOf(identity.block.format), identity.block.tokens, identity.layers);
  }
  std::vector<uint32_t> kept;
  for (size_t b = 0; b < file->blocks(); ++b) {
    if (!file->forgotten(b)) kept.push_back(static_cast<uint32_t>(b));
  }
  // Landmarks a few blocks at a time, so that they never stand in RAM twice.
  const size_t per_layer = identity.kv_heads * identity.block.dim;
  std::vector<float> keys, of_layer;
  constexpr size_t kPiece = 64;
  size_t next = 0;
  for (size_t first = 0; first < file->blocks(); first += kPiece) {
    const size_t count = std::min(kPiece, file->blocks() - first);
    keys.clear();
    file->ReadLandmarks(first, count, keys);
    const size_t begin = next;
    while (next < kept.size() && kept[next] < first + count) ++next;
    const size_t local = identity.local_layers;
    for (size_t l = 0; l < layers_.size(); ++l) {
      of_layer.clear();
      for (size_t b = begin; b < next && l >= local; ++b) {
        const float* from = &keys[((kept[b] - first) * (layers_.size() - local) + l - local) * per_layer];
        of_layer.insert(of_layer.end(), from, from + per_layer);
      }
      layers_[l].Attach(cache, l, std::span(kept).subspan(begin, next - begin), of_layer);
    }
  }
  if (file->blocks() == 0) {
    for (size_t l = 0; l < layers_.size(); ++l) layers_[l].Attach(cache, l, {}, {});
  }
  tokens_.reserve(kept.size() * identity.block.tokens);
  file->ReadAllTokens(kept, tokens_);
  file_blocks_ = std::move(kept);
  cache_ = std::move(cache);
}

void Session::SaveBlocks(MemoryWriter& writer, std::vector<BlockSpan> spans, const std::vector<MemorySource>& sources) {
  const size_t first = layers_[0].stored();
  const size_t count = spans.size();
  CAIRN_CHECK(cache_ != nullptr && count <= unsaved_blocks());
  const size_t length = options_.block_length;
  const size_t heads = model_->config().num_key_value_heads;
  MemorySegment segment;
  segment.spans = std::move(spans);
  segment.sources = sources;
  segment.tokens.assign(tokens_.begin() + static_cast<ptrdiff_t>(first * length),
                        tokens_.begin() + static_cast<ptrdiff_t>((first + count) * length));
  // Of local layers only those are wanted again that something may follow: the last blocks, and the last ones of each
  // source, because the sources after it may be forgotten.
  const LandmarkConfig& landmark = model_->config().landmark;
  size_t behind = 0;  // blocks of the same source
  for (size_t b = count; b-- > 0;) {
    behind = b + 1 < count && segment.spans[b + 1].source == segment.spans[b].source ? behind + 1 : 0;
    segment.spans[b].keeps_local = landmark.local_layers > 0 && behind < landmark.local_blocks ? 1 : 0;
  }
  std::vector<BlockPin> pins;
  std::vector<float> key(model_->config().head_dim);
  for (size_t b = 0; b < count; ++b) {
    for (size_t l = segment.spans[b].keeps_local != 0 ? 0 : landmark.local_layers; l < layers_.size(); ++l) {
      for (size_t h = 0; h < heads; ++h) {
        pins.push_back(layers_[l].Pin(first + b, h));
        segment.records.push_back(pins.back().data());
        if (!layers_[l].indexed()) continue;
        layers_[l].landmarks(h).Read(first + b, key.data());
        segment.landmarks.insert(segment.landmarks.end(), key.begin(), key.end());
      }
    }
  }
  const size_t number = writer.blocks();
  writer.Commit(segment);
  cache_->Update(cache_->file()->Reopened());
  for (size_t i = 0; i < count; ++i) file_blocks_.push_back(static_cast<uint32_t>(number + i));
  for (LayerMemory& layer : layers_) layer.MoveToFile(count, number);
}

std::vector<double> Session::RankBlocks(std::span<const int32_t> tokens) {
  CheckTokens(tokens);
  if (!landmarks()) Fail("ranking needs landmark attention");
  std::vector<double> ranking(layers_[0].size());
  const size_t blocks = ranking.size();
  Session copy = Fork();
  copy.ranking_ = &ranking;
  copy.Append(tokens);
  ranking.resize(blocks);  // without blocks of the text itself
  return ranking;
}

void Session::FillMemory(size_t blocks) {
  const size_t length = landmarks() ? options_.block_length : kPageTokens;
  const size_t before = layers_[0].size();
  if (before == 0) Fail("there is no finished block to copy");
  for (size_t l = 0; l < layers_.size(); ++l) layers_[l].FillWithCopies(blocks, l);
  const size_t added = (std::max(blocks, before) - before) * length;
  std::vector<int32_t> copies;
  for (size_t i = 0; i < added; ++i) copies.push_back(tokens_[i % (before * length)]);
  tokens_.insert(tokens_.begin() + static_cast<ptrdiff_t>(before * length), copies.begin(), copies.end());
}

}  // namespace cairn
