#include "eval/prompt_reader.h"

#include <unistd.h>

#include <atomic>

#include "base/error.h"
#include "infer/ingest.h"

namespace cairn {

namespace {

namespace fs = std::filesystem;

// Blocks of one commit.
constexpr size_t kCommitBlocks = 64;

fs::path NewFile(const fs::path& directory) {
  static std::atomic<size_t> number = 0;
  return directory / fmt::format("cairn-eval-{}-{}.cairn", getpid(), number++);
}

}  // namespace

PromptReader::PromptReader(std::shared_ptr<const InferenceModel> model, const SessionOptions& settings,
                           std::optional<PromptMemory> memory)
    : model_(std::move(model)), memory_(std::move(memory)), session_(model_, settings) {
  if (!memory_) return;
  const SessionOptions& options = session_.options();
  if (options.attention != AttentionKind::kLandmark || options.memory_blocks > 0) {
    Fail("--memory-dir needs landmark attention and a memory without a limit of blocks");
  }
  if (options.chunk_length % options.block_length != 0) {
    Fail("--memory-dir: a chunk of {} tokens is not a whole number of blocks of {}; choose another --chunk",
         options.chunk_length, options.block_length);
  }
  path_ = NewFile(memory_->directory);
  OpenFile();
}

PromptReader::PromptReader(std::shared_ptr<const InferenceModel> model, Session session)
    : model_(std::move(model)), session_(std::move(session)) {}

PromptReader::~PromptReader() {
  if (writer_ == nullptr) return;
  writer_.reset();
  std::error_code ignored;
  fs::remove(path_, ignored);
}

void PromptReader::OpenFile() {
  const ModelConfig& config = model_->config();
  const SessionOptions& options = session_.options();
  MemoryIdentity identity;
  identity.fingerprint = identity.model = "evaluation";
  identity.layers = config.num_hidden_layers;
  identity.kv_heads = config.num_key_value_heads;
  identity.block = {config.head_dim, options.block_length, true, options.block_format};
  writer_ = std::make_unique<MemoryWriter>(path_, identity);
  AttachWithin(session_, std::make_shared<const MemoryFile>(path_), memory_->ram);
}

void PromptReader::Append(std::span<const int32_t> tokens, bool last) {
  last ? session_.Append(tokens) : session_.Read(tokens);
  if (writer_ != nullptr && session_.unsaved_blocks() >= kCommitBlocks) Save();
}

void PromptReader::Save() {
  if (session_.unsaved_blocks() == 0) return;
  session_.SaveBlocks(*writer_, std::vector<BlockSpan>(session_.unsaved_blocks()), {{"prompt", 0, 0, false, false}});
}

PromptReader PromptReader::Fork() {
  if (writer_ == nullptr) return PromptReader(model_, session_.Fork());
  CAIRN_CHECK(session_.tokens().size() % session_.block_length() == 0);
  Save();
  PromptReader copy(model_, Session(model_, session_.options()));
  copy.memory_ = memory_;
  copy.path_ = NewFile(memory_->directory);
  std::error_code error;
  fs::copy_file(path_, copy.path_, error);
  if (error) {
    fs::remove(copy.path_, error);
    Fail("--memory-dir '{}': there is no room for another copy of the blocks", memory_->directory.string());
  }
  copy.OpenFile();
  copy.blocks_read_before_ = blocks_read();
  copy.layer_rows_before_ = layer_rows();
  return copy;
}

}  // namespace cairn
