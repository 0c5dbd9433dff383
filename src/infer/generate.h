// Writing on: tokens drawn from a session one after the other and handed out as text.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "infer/sampler.h"
#include "infer/session.h"
#include "tokenizer/tokenizer.h"

namespace cairn {

struct GenerationOptions {
  size_t max_tokens = 128;
  SamplingOptions sampling;
  std::vector<std::string> stops;   // texts that end the generation; not part of it
  std::vector<int32_t> end_tokens;  // tokens that end it; see EndTokens
  bool continues_text = true;       // false: the text begins here, and its first space is taken off
};

enum class EndReason { kLength, kEndToken, kStopString, kInterrupted };
std::string_view NameOf(EndReason reason);  // "length", "end", "stop", "interrupted"

struct Generation {
  std::string text;
  std::vector<int32_t> tokens;  // without the one that ended it
  EndReason end = EndReason::kLength;
  double seconds = 0;
};

// What a generation reports while it runs.
struct GeneratedToken {
  int32_t id;
  std::string_view text;                          // what may be printed now; often empty, or of several tokens
  const std::vector<Session::LayerReads>& reads;  // that led to it; empty unless the session records them
};

// Appends every generated token to the session, the last one included. `each`, when given, is called for every token
// and may return false to end; it is called once more with id -1 when held-back text is left at the end.
Generation Generate(Session& session, const Tokenizer& tokenizer, const GenerationOptions& options,
                    const std::function<bool(const GeneratedToken&)>& each = nullptr);

// The tokens after which a text of this model is over: the end token, and the one that begins texts.
std::vector<int32_t> EndTokens(const ModelConfig& config, const Tokenizer& tokenizer);

// Whether texts begin with the bos token, as the model's files say.
bool BeginsWithBos(const ModelSource& model, const Tokenizer& tokenizer);

// The ids of a text that begins: bos where the model wants it, then the text.
std::vector<int32_t> EncodePrompt(const ModelSource& model, const Tokenizer& tokenizer, std::string_view text);

}  // namespace cairn
