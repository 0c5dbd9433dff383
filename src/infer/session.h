// A session: one text being read and written by a model, with its memory. All mutable state of inference is here.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "attention/granularity.h"
#include "infer/inference_model.h"
#include "infer/memory_attention.h"

namespace cairn {

class MemoryWriter;

struct SessionOptions {
  AttentionKind attention = AttentionKind::kLandmark;  // kLandmark or kFull
  size_t block_length = 0;                             // L; 0: the model's
  size_t top_k = 4;                                    // blocks retrieved
  size_t chunk_length = 0;   // ordinary tokens fed at once; 0: what the trained context allows
  size_t memory_blocks = 0;  // blocks kept, the latest ones (full attention: tokens, in pages of 64); 0: all
  Granularity granularity = Granularity::kHeadAndToken;
  bool exact_positions = false;                  // true distances instead of slots
  bool group_chooses_together = false;           // query heads that share a KV head choose the same blocks
  double miss_cutoff = 0;                        // see MemoryAttentionOptions
  BlockFormat block_format = BlockFormat::kF16;  // how finished blocks are kept
  IndexKind index = IndexKind::kAuto;            // how landmarks are found
  bool audit = false;                            // also score all landmarks, and count what the index missed
  bool record_reads = false;                     // keep what the last chunk read
  bool record_queries = false;  // keep the queries of the last chunk that old landmarks were scored with
};

// Attention as the model was trained, k too where it was trained with a memory; everything else by default.
SessionOptions DefaultSessionOptions(const ModelConfig& config);

// Not thread-safe; uses all threads inside. Sessions on one model may run on different threads.
class Session {
 public:
  // Throws Error when the options do not fit the model.
  Session(std::shared_ptr<const InferenceModel> model, const SessionOptions& options);

  Session(Session&&) noexcept = default;
  Session& operator=(Session&&) noexcept = default;

  const InferenceModel& model() const { return *model_; }
  const SessionOptions& options() const { return options_; }  // every default resolved

  // Called with the number of a token in the text and the logits after it, [vocab_size].
  using LogitsSink = std::function<void(size_t token, std::span<const float> logits)>;

  // Reads ordinary tokens; landmarks are inserted by rule. `sink`, when given, gets the logits after every token.
  void Append(std::span<const int32_t> tokens, const LogitsSink& sink = nullptr);
  // The same for tokens after which others come: there are no logits and no reads until Append. Faster, because keys
  // and values are all that others need of the last layer, and because chunks go through the weights together.
  void Read(std::span<const int32_t> tokens);
  // Tokens that are best read at a time where progress is to be seen: whole chunks.
  size_t piece_tokens() const;
  // One chunk of positions, landmarks included: they must stand where the block length says. For comparisons with other
  // implementations.
  void FeedPositions(std::span<const int32_t> ids, const LogitsSink& sink = nullptr);

  // After the last token, [vocab_size]; landmark and context-miss token have -infinity. Throws Error when nothing was
  // appended since the start, Truncate or Read.
  std::span<const float> Logits() const;

  const std::vector<int32_t>& tokens() const { return tokens_; }  // ordinary ones, all of them
  size_t block_length() const { return options_.block_length; }

  // A copy that goes its own way; finished blocks are shared.
  Session Fork() const;
  // Forgets everything after the first `tokens` tokens. Throws Error when they stand in blocks that were evicted.
  void Truncate(size_t tokens);
  void Reset();
  void SetTopK(size_t k);

  // Blocks whose tokens are [block * L, (block + 1) * L), and how much of the attention went to them: the mean over the
  // heads of each layer.
  struct LayerReads {
    size_t layer;
    std::vector<BlockRead> blocks;  // in text order
  };
  // Of the last token that was read; empty without record_reads.
  const std::vector<LayerReads>& LastReads() const { return last_reads_; }
  // What every row of the last chunk read, landmarks included, one a layer; empty without record_reads.
  const std::vector<ChunkReads>& LastChunkReads() const { return reads_; }

  struct Counters {
    size_t blocks = 0;           // finished so far, evicted ones included
    size_t blocks_kept = 0;      // of them in memory
    size_t memory_bytes = 0;     // blocks and landmarks
    size_t workspace_bytes = 0;  // everything else of the session
    size_t blocks_read = 0;      // reads of a block by a query since the start
    size_t blocks_chosen = 0;    // the same with those that the context-miss token prevented
    size_t chunks = 0;
    size_t layer_rows = 0;  // rows that attended, landmarks included, summed over the layers
    RetrievalAudit audit;   // since the start; without `audit`, or where queries choose together, of no query
  };
  Counters counters() const;
  // RAM that the memory needs whatever is cached: landmarks and how they are found, tokens, numbers of blocks.
  size_t fixed_bytes() const;

  // The session, empty so far, begins with the blocks of a memory file that are not forgotten. Its options must be
  // those of the file (block length and format).
  void AttachMemory(std::shared_ptr<BlockCache> cache);
  // Finished blocks that are in no file yet, and their way into it: they are committed with where they came from (one
  // span a block, all sources) and leave RAM.
  size_t unsaved_blocks() const { return layers_[0].size() - layers_[0].stored(); }
  void SaveBlocks(MemoryWriter& writer, std::vector<BlockSpan> spans, const std::vector<MemorySource>& sources);
  // Number in the file of a block of this session; none for blocks that are only here.
  std::optional<size_t> FileBlock(size_t block) const {
    return block < file_blocks_.size() ? std::optional<size_t>(file_blocks_[block]) : std::nullopt;
  }
  const std::shared_ptr<BlockCache>& cache() const { return cache_; }

  // How much the landmarks of the memory answer to a text: for each block the largest share that any of its tokens
  // gives to the landmark, summed over heads and layers. Leaves the session as it was.
  std::vector<double> RankBlocks(std::span<const int32_t> tokens);

  // How layer `layer`, not a local one, finds the landmarks of KV head `kv_head`, with their keys.
  const LandmarkIndex& Landmarks(size_t layer, size_t kv_head) const { return layers_[layer].index(kv_head); }
  // The queries that the old landmarks of each layer were searched with in the last chunk, turned to slot 0:
  // [rows][query_head][dim]; empty without record_queries.
  const std::vector<std::vector<float>>& LastQueries() const { return queries_; }

  // For benchmarks: copies of the finished blocks, their landmarks disturbed, until there are `blocks` of them. What is
  // generated afterwards has no meaning.
  void FillMemory(size_t blocks);

 private:
  Session(const Session& other);
  bool landmarks() const { return options_.attention == AttentionKind::kLandmark; }
  void CheckTokens(std::span<const int32_t> tokens) const;
  // Chunks that go through the layers together.
  struct Rows {
    std::vector<int32_t> ids;    // landmarks included
    std::vector<size_t> chunks;  // rows of each
    bool silent = false;         // nothing is asked of them: no logits
  };
  void Take(std::span<const int32_t> tokens, const LogitsSink& sink, bool silent);
  void Run(const Rows& rows, size_t first_token, const LogitsSink& sink);
  void HeadRows(std::span<const int32_t> ids, size_t first_token, const LogitsSink& sink);
  void NoteReads(size_t row);
  void CheckLocalBlocks(size_t blocks, size_t unfinished) const;
  void ForgetLogits();

  std::shared_ptr<const InferenceModel> model_;
  SessionOptions options_;
  MemoryAttention attention_;
  std::vector<LayerMemory> layers_;
  std::shared_ptr<BlockCache> cache_;  // of the memory file, or null
  std::vector<uint32_t> file_blocks_;  // numbers in it of the first blocks
  std::vector<double>* ranking_ = nullptr;
  std::vector<int32_t> tokens_;
  std::vector<float> logits_;  // empty: none
  std::vector<ChunkReads> reads_;
  std::vector<LayerReads> last_reads_;
  size_t blocks_read_ = 0;
  size_t blocks_chosen_ = 0;
  size_t chunks_ = 0;
  size_t layer_rows_ = 0;
  RetrievalAudit audit_;
  std::vector<std::vector<float>> queries_;
  // [rows][...], grown to the largest chunk.
  AlignedBuffer<float> x_, normed_, qkv_, attended_, gate_up_, act_, rstd_, head_;
};

}  // namespace cairn
