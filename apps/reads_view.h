// What a model read while it wrote: which blocks, in which layers, how much, and the text they hold.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "infer/generate.h"

namespace cairn {

class ReadsView {
 public:
  // Both must outlive this.
  ReadsView(const Tokenizer& tokenizer, const Session& session) : tokenizer_(tokenizer), session_(session) {}

  void Add(const GeneratedToken& token);

  // On standard output, coloured when that is a terminal: a line a token, then the text of the blocks read most.
  void Print() const;
  // On standard output: where in the memory the blocks stand that were read.
  void PrintMap() const;
  nlohmann::ordered_json ToJson() const;

  std::string BlockText(size_t block) const;
  std::string BlockLine(size_t block, size_t characters) const;  // the same on one line

 private:
  struct Token {
    int32_t id;
    std::vector<Session::LayerReads> layers;
  };

  std::string TokenLine(int32_t id, size_t characters) const;  // quoted, on one line
  // Where the block's text came from, for blocks of a memory file; else null.
  const BlockSpan* SpanOf(size_t block) const;
  static std::map<size_t, double> Sum(const Token& token);  // weight of each block, mean over the layers that read

  const Tokenizer& tokenizer_;
  const Session& session_;
  std::vector<Token> tokens_;
};

}  // namespace cairn
