// A session that reads a long prompt and can be forked, with its finished blocks in RAM or in a file.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "infer/session.h"
#include "memory/memory_file.h"

namespace cairn {

// Where blocks are kept that do not fit into RAM. The folder must exist; files in it are removed again.
struct PromptMemory {
  std::filesystem::path directory;
  size_t ram = 0;  // bytes of blocks and landmarks
};

// Not thread-safe. A fork gives what reading the whole text in one session would give, where it is made at the end of a
// chunk.
class PromptReader {
 public:
  // Throws Error when the settings do not allow a file.
  PromptReader(std::shared_ptr<const InferenceModel> model, const SessionOptions& settings,
               std::optional<PromptMemory> memory);
  PromptReader(PromptReader&&) noexcept = default;
  PromptReader& operator=(PromptReader&&) = delete;
  ~PromptReader();

  // Whole chunks, or the last part of the prompt; `last`: something is asked after it.
  void Append(std::span<const int32_t> tokens, bool last);
  // With a file: of all blocks so far, which must be finished; the file is copied.
  PromptReader Fork();

  Session& session() { return session_; }
  const Session& session() const { return session_; }
  size_t blocks_read() const { return blocks_read_before_ + session_.counters().blocks_read; }
  size_t layer_rows() const { return layer_rows_before_ + session_.counters().layer_rows; }

 private:
  PromptReader(std::shared_ptr<const InferenceModel> model, Session session);
  void OpenFile();
  void Save();

  std::shared_ptr<const InferenceModel> model_;
  std::optional<PromptMemory> memory_;
  Session session_;
  std::filesystem::path path_;  // of the file
  std::unique_ptr<MemoryWriter> writer_;
  size_t blocks_read_before_ = 0;  // by the session that this one was forked from
  size_t layer_rows_before_ = 0;
};

}  // namespace cairn
