// Texts into a memory file, block by block, in bounded RAM; and the session that answers out of one.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "infer/session.h"
#include "io/long_text.h"
#include "memory/memory_file.h"
#include "memory/memory_writer.h"
#include "tokenizer/tokenizer.h"

namespace cairn {

// 16 hexadecimal digits. Equal for models with the same configuration and weights.
std::string FingerprintOf(const ModelSource& model);

// Throws Error unless the memory was made with this model.
void CheckSameModel(const MemoryFile& file, const ModelSource& model);

// Options that fit a memory: its block length and format.
SessionOptions OptionsFor(const MemoryFile& file, SessionOptions options);

// Lets a session that has read nothing begin with a memory, in `ram` bytes: what must always be there (landmarks,
// tokens, where blocks stand) and the blocks that were read last. Warns when the first alone needs more. `reserved`:
// bytes of `ram` that something else needs.
void AttachWithin(Session& session, std::shared_ptr<const MemoryFile> file, size_t ram, size_t reserved = 0);

struct IngestProgress {
  uint64_t done = 0, total = 0;  // bytes of the text
};

struct IngestResult {
  enum class State { kAdded, kResumed, kAlreadyThere } state = State::kAdded;
  size_t tokens = 0;  // read now
  size_t blocks = 0;  // written now
};

// Appends to one memory. Texts are read piece by piece and need no RAM by their length. A text that was added in part
// (a killed process) is continued where it stopped, with the same result as without the break.
class Ingest {
 public:
  // `options`: as for a session. `ram`: bytes for blocks and landmarks.
  Ingest(const std::filesystem::path& path, std::shared_ptr<const InferenceModel> model,
         std::shared_ptr<const Tokenizer> tokenizer, const SessionOptions& options, size_t ram);

  // `progress` may return false to stop at the next commit; then the text stays incomplete.
  IngestResult Add(const std::string& name, const LongText& text,
                   const std::function<bool(const IngestProgress&)>& progress = nullptr);

  const Session& session() const { return session_; }
  size_t blocks() const { return writer_.blocks(); }

 private:
  size_t FindSource(const std::string& name, const LongText& text, std::vector<MemorySource>& sources) const;

  std::shared_ptr<const InferenceModel> model_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  SessionOptions options_;
  MemoryWriter writer_;
  Session session_;
  size_t ram_;
  size_t commit_blocks_ = 0;  // after which a commit is made
  size_t piece_blocks_ = 0;   // that are read at a time, whole chunks
  size_t unsaved_bytes_ = 0;  // of blocks that are in RAM because they are in no file yet, at most
};

// A source is marked forgotten: its blocks are not read any more. Returns how many blocks that is. Throws Error when no
// source has this name.
size_t ForgetSource(const std::filesystem::path& path, const std::string& name);

}  // namespace cairn
