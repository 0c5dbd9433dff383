// Attention of a chunk at inference (method, sections 3 and 4): to the chunk itself, to the unfinished block before it,
// and to the blocks of the memory that its queries choose by their landmarks; or, without landmarks, to everything.
// One object serves all layers of a session, one after the other.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "attention/granularity.h"
#include "attention/retrieval.h"
#include "attention/rotary.h"
#include "memory/layer_memory.h"

namespace cairn {

struct MemoryAttentionOptions {
  size_t query_heads = 1;
  size_t kv_heads = 1;
  size_t dim = 2;
  BlockShape block;  // without a landmark: ordinary full attention, the block is a page of the KV cache
  RotaryLayout rotary = RotaryLayout::kHalf;
  std::vector<double> frequencies;  // angle per position of each rotary pair, [dim / 2]
  size_t top_k = 4;
  size_t memory_blocks = 0;  // blocks kept, the latest ones; 0: all
  Granularity granularity = Granularity::kHeadAndToken;
  // True positions instead of slots, for models trained with positional jumps. Always so without landmarks.
  bool exact_positions = false;
  bool group_chooses_together = false;  // query heads that share a KV head choose the same blocks
  double miss_cutoff = 0;               // the context-miss token's share under which the memory is not read
  // How landmarks are found where every query chooses for itself. Queries that choose together need all scores.
  IndexKind index = IndexKind::kAuto;
  bool audit = false;  // also score all landmarks, and count what the index missed
};

// What an index found, against all landmarks: sums over `queries`, each of a row and head of a layer.
struct RetrievalAudit {
  size_t queries = 0;
  double recall = 0;  // part of the chosen blocks that are among the best
  double mass = 0;    // part of the softmax over all landmarks that the chosen ones hold

  void Add(const RetrievalAudit& other) {
    queries += other.queries;
    recall += other.recall;
    mass += other.mass;
  }
  double MeanRecall() const { return queries == 0 ? 1 : recall / static_cast<double>(queries); }
  double MeanMass() const { return queries == 0 ? 1 : mass / static_cast<double>(queries); }
};

// Throws Error when the index, named `index`, found a smaller part of the best blocks than `least`.
void CheckRecall(const RetrievalAudit& audit, double least, std::string_view index);

// Stands where a query chose nothing, because the context-miss token's share was under the cutoff.
constexpr int32_t kNoBlockChosen = -1;

// What a chunk read: [time][query_head][chosen] in text order, blocks numbered from the start of the text.
struct ChunkReads {
  size_t chosen = 0;  // blocks a row and head, at most top_k
  std::vector<int32_t> blocks;
  std::vector<float> gates;  // final weight of each; 0 where the context-miss token kept the row from reading
};

class MemoryAttention {
 public:
  explicit MemoryAttention(const MemoryAttentionOptions& options);

  struct Chunk {
    size_t time = 0;
    float* qkv = nullptr;  // [time][query heads, key heads, value heads], before rotation; queries are overwritten
    float* out = nullptr;  // [time][query_head][dim]; null: the chunk only joins the memory
    const float* miss_key = nullptr;        // [kv_head][dim] before rotation, or null
    std::optional<size_t> prefix_blocks{};  // slots set aside before the chunk; default k' + 1
    ChunkReads* reads = nullptr;            // or null
    // Or null: gets for each block of the memory the sum over heads of the largest share of a row that its landmark has
    // among all landmarks.
    std::vector<double>* ranking = nullptr;
    std::vector<float>* searched = nullptr;  // or null: gets the queries that old landmarks were searched with
    // A layer that chooses nothing but reads the latest so many blocks.
    std::optional<size_t> local_blocks{};
  };

  // One layer: attention, then the chunk's finished blocks become part of the memory.
  void Run(LayerMemory& memory, const Chunk& chunk);

  size_t top_k() const { return options_.top_k; }
  void set_top_k(size_t k) { options_.top_k = k; }
  size_t blocks_read() const { return blocks_read_; }      // of the last Run: reads of a block by a row and head
  size_t blocks_chosen() const { return blocks_chosen_; }  // the same with those that the context-miss token prevented
  const RetrievalAudit& audit() const { return audit_; }   // of the last Run
  size_t workspace_bytes() const;

 private:
  struct Scratch;
  struct Unit;  // rows and a KV head that one thread works on

  size_t group() const { return options_.query_heads / options_.kv_heads; }
  size_t width() const { return (options_.query_heads + 2 * options_.kv_heads) * options_.dim; }
  size_t Index(size_t row, size_t head) const { return row * options_.query_heads + head; }
  const float* Query(const Chunk& chunk, size_t row, size_t head) const {
    return chunk.qkv + row * width() + head * options_.dim;
  }
  bool exact() const { return options_.exact_positions || !options_.block.landmark; }
  void Turn(ptrdiff_t blocks, const float* query, float* to) const;

  void Begin(const LayerMemory& memory, const Chunk& chunk);
  void ReserveChoice(size_t rows);
  void TakeLatest(const LayerMemory& memory, const Chunk& chunk);
  void AppendLocal(LayerMemory& memory, const Chunk& chunk);
  void LocalTile(LayerMemory& memory, const Chunk& chunk);
  void LocalRows(LayerMemory& memory, const Chunk& chunk, size_t kv_head);
  void Gate(const Chunk& chunk, const Unit& unit);
  // By what Gate found; always open without a context-miss token.
  bool Closed(const Chunk& chunk, size_t cell) const {
    return chunk.miss_key != nullptr && static_cast<double>(miss_share_[cell]) < options_.miss_cutoff;
  }
  void Choose(const LayerMemory& memory, const Chunk& chunk, const Unit& unit);
  RetrievalAudit Audit(const LayerMemory& memory, const Chunk& chunk, const Unit& unit);
  void ChooseTogether(const LayerMemory& memory, const Chunk& chunk);
  void RowScores(const LayerMemory& memory, const Chunk& chunk, size_t row, size_t head, float* scores);
  void Read(const LayerMemory& memory, const Chunk& chunk, const Unit& unit);
  void ReadAll(const LayerMemory& memory, const Chunk& chunk, const Unit& unit);
  void Combine(const Chunk& chunk, const Unit& unit);
  void StoreLocal(LayerMemory& memory, const Chunk& chunk);
  void Rank(const LayerMemory& memory, const Chunk& chunk);
  std::vector<Unit> Units(const Chunk& chunk) const;

  MemoryAttentionOptions options_;
  float scale_;  // of the scores, to units of log 2
  std::optional<BlockTurns> turns_;
  size_t turns_limit_ = 0;

  // Of the chunk.
  size_t prefix_ = 0;        // blocks from the start of slot 0 to the chunk's own first block
  size_t chosen_count_ = 0;  // k'
  size_t unfinished_ = 0;
  std::vector<float> cosine_, sine_;                // of the chunk's rows, [time][dim / 2]
  double angles_from_ = -1;                         // the position that they begin at
  std::vector<float> offset_cosine_, offset_sine_;  // of the places in a block, [columns][dim / 2]
  std::vector<float> miss_key_;                     // rotated, [kv_head][dim]
  std::vector<float> miss_cosine_, miss_sine_;      // of its position, [dim / 2]

  // Of the layer, [time][query_head].
  std::vector<float> max_, sum_;                             // home group
  std::vector<float> memory_max_, memory_sum_, memory_out_;  // group of the memory's landmarks under the miss token
  std::vector<float> miss_share_;
  std::vector<int32_t> chosen_;  // [time][query_head][k']
  std::vector<float> gates_;     // the same: landmark scores, then final weights
  std::vector<float> saved_;     // of the tiled local attention
  size_t blocks_read_ = 0;
  size_t blocks_chosen_ = 0;
  RetrievalAudit audit_;
};

}  // namespace cairn
