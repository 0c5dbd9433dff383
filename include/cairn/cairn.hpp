// Cairn's C++ interface: load a model, open sessions on it, read texts of any length and write on. Needs C++20 and
// nothing but the standard library.
//
// Errors: everything that a user can mend throws cairn::Error with one line that says what was wrong, where, and what
// to do. Any other exception is a bug in Cairn (cairn::BugError) or a lack of memory (std::bad_alloc). A call that
// throws Error has changed nothing, but for the tokens that a generation had written before.
//
// Threads: a Model is immutable and may be used by any number of threads at once. A Session belongs to one thread at a
// time, but for const functions, Fork among them: several threads may call those while none changes the session.
// Several sessions, also of one model, may run on several threads at once. Inside, every call uses all threads that
// SetThreads allows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/error.hpp>

namespace cairn::api {

using cairn::BugError;
using cairn::Error;

std::string_view Version();  // "0.1.0"

// Threads that each call uses; 0 returns to the default: CAIRN_THREADS, else every core of the process. Not
// thread-safe: call it while no session works. Programs that run several sessions at once do well to share the cores
// out.
void SetThreads(int count);
int Threads();

// How the weights are held in memory. kAsStored loses nothing and wastes nothing.
enum class Weights { kAsStored, kF32, kF16, kInt8, kInt4 };

struct LoadOptions {
  Weights weights = Weights::kAsStored;
  std::filesystem::path tokenizer = {};  // empty: the model's own
};

struct ModelInfo {
  std::string format;  // "hf", "gguf" or "llama2c"
  std::string path;
  std::string weights;  // of the first matrix: "f32", "f16", "int8" or "int4"
  uint64_t parameters = 0;
  size_t weight_bytes = 0;  // that one generated token reads
  size_t vocab_size = 0;    // length of the logits
  size_t layers = 0;
  size_t hidden_size = 0;
  size_t trained_context = 0;  // positions
  size_t block_length = 0;     // ordinary tokens of a block; 0: none
  int32_t landmark = -1;       // ids of tokens; -1: none. The landmark is inserted by rule and never part of a text.
  int32_t bos = -1;
  int32_t eos = -1;
};

// A loaded model with its tokenizer. Sessions keep what they need of it, so it may be destroyed before them. A
// moved-from Model may only be assigned to or destroyed.
class Model {
 public:
  // `path` is a Hugging Face directory, a GGUF file or a llama2.c file.
  static Model Load(const std::filesystem::path& path, const LoadOptions& options = {});

  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  const ModelInfo& info() const;

  // Tokens of a text that begins here, with the bos token where the model wants one.
  std::vector<int32_t> Tokenize(std::string_view text) const;
  // Tokens of a text that continues another.
  std::vector<int32_t> TokenizeMiddle(std::string_view text) const;

  // The text of tokens that begin a text; control tokens give nothing. A text may end inside a UTF-8 character.
  std::string Detokenize(std::span<const int32_t> tokens) const;
  // The text of tokens that continue a text: the bytes of each.
  std::string DetokenizeMiddle(std::span<const int32_t> tokens) const;

 private:
  friend class Session;
  struct Impl;
  explicit Model(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

enum class Attention { kAsTrained, kLandmark, kFull };
enum class Granularity { kHeadAndToken, kHead, kToken };  // who chooses blocks together
enum class BlockFormat { kF32, kF16, kInt8 };             // how finished blocks are kept
// How landmarks are found. kExact and kInt8 find the best, kHierarchical and kIvf (FAISS) nearly all of them, faster
// where there are many; kAuto takes one by their number.
enum class Index { kAuto, kExact, kInt8, kHierarchical, kIvf };
enum class Positions { kSlots, kExact };  // kExact: for models trained with positional jumps

struct SessionOptions {
  Attention attention = Attention::kAsTrained;
  size_t k = 4;              // blocks that each query retrieves from the memory
  size_t chunk = 0;          // tokens read at once; 0: what the trained context allows
  size_t block = 0;          // tokens of a block; 0: the model's
  size_t memory_blocks = 0;  // blocks kept, the latest ones; 0: all
  Granularity granularity = Granularity::kHeadAndToken;
  Positions positions = Positions::kSlots;
  double cutoff = 0;   // in [0, 1]: the memory is not read where the context-miss token's share is below
  bool reads = false;  // record which blocks are read
  BlockFormat block_format = BlockFormat::kF16;
  Index index = Index::kAuto;  // Session throws Error for kIvf where Cairn was built without FAISS
};

// A block that a token read: tokens [block * length, (block + 1) * length) of the text.
struct Read {
  size_t layer;
  size_t block;
  double weight;  // its part of the attention, mean over the layer's heads
};

// The same for all layers together.
struct BlockRead {
  size_t block;
  double weight;  // mean over the layers that read
  std::string text;
};

enum class EndReason {
  kLength,       // max_tokens are there
  kEndToken,     // the model ended the text
  kStop,         // a stop text came
  kInterrupted,  // the callback said so
};

struct GenerateOptions {
  size_t max_tokens = 128;
  float temperature = 0;         // 0: always the most probable token
  size_t top_k = 0;              // draw from the k most probable tokens; 0: all
  float top_p = 1;               // draw from the fewest tokens with this share
  float min_p = 0;               // leave out tokens less probable than this part of the best
  float repetition_penalty = 1;  // above 1: repeat less
  size_t repetition_window = 64;
  uint64_t seed = 0;                     // the same seed draws the same text
  std::vector<std::string> stops = {};   // texts that end the generation; not part of it
  std::vector<int32_t> end_tokens = {};  // tokens that end it, besides the model's own
  bool ignore_end = false;               // the model's own do not
};

// What the callback of a generation gets. Everything is valid during the call only.
struct Token {
  int32_t id;                   // -1: text that was held back, at the very end
  std::string_view text;        // UTF-8 that may be printed now; often empty, or of several tokens
  std::span<const Read> reads;  // that led to the token; empty unless the session records them
};

struct Generation {
  std::string text;
  std::vector<int32_t> tokens;  // without the one that ended it
  EndReason end = EndReason::kLength;
  double seconds = 0;
};

struct SessionStats {
  size_t tokens = 0;           // read or written so far
  size_t blocks = 0;           // finished so far
  size_t blocks_kept = 0;      // of them in the memory
  size_t memory_bytes = 0;     // of the memory
  size_t workspace_bytes = 0;  // of everything else
  size_t blocks_read = 0;      // by all queries together
  size_t chunks = 0;
};

// One text that is read and written, with its memory. A moved-from Session may only be assigned to or destroyed.
class Session {
 public:
  explicit Session(const Model& model, const SessionOptions& options = {});
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  ~Session();

  const SessionOptions& options() const;  // every default resolved

  // Reads a text: the beginning of one when the session has no tokens, else more of it.
  void Append(std::string_view text);
  // Reads ordinary tokens; landmarks are inserted by rule.
  void Append(std::span<const int32_t> tokens);

  // After the last token, [vocab_size]; -infinity for the landmark and the context-miss token. Valid until the session
  // changes. Throws Error when nothing was read since the start, Truncate or Reset.
  std::span<const float> Logits() const;
  // All ordinary tokens so far. Valid until the session changes.
  std::span<const int32_t> Tokens() const;

  // Writes on, and appends what it writes. `each`, when given, is called for every token and may return false to end.
  // It may look at the session but not change it (Error). When it throws, the generation ends with that exception, and
  // the session has the tokens before.
  Generation Generate(const GenerateOptions& options = {}, const std::function<bool(const Token&)>& each = nullptr);

  // A copy that goes its own way, on another thread if you like; finished blocks are shared.
  Session Fork() const;
  // Forgets everything after the first `tokens` tokens. Throws Error when there are not so many, or when their block
  // was evicted from the memory.
  void Truncate(size_t tokens);
  // Forgets everything.
  void Reset();
  void SetK(size_t k);

  // What the last token read, by layer and block; empty without SessionOptions::reads.
  std::vector<Read> Reads() const;
  // The same by block, the one that weighs most first, with its text.
  std::vector<BlockRead> BlocksRead() const;
  // Throws Error when the block is not finished, or there are no blocks (full attention).
  std::string BlockText(size_t block) const;

  SessionStats stats() const;

 private:
  struct Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::api
