#include "infer/generate.h"

#include <algorithm>
#include <chrono>

#include "infer/text_stream.h"

namespace cairn {

std::string_view NameOf(EndReason reason) {
  constexpr std::string_view kNames[] = {"length", "end", "stop", "interrupted"};
  return kNames[static_cast<size_t>(reason)];
}

Generation Generate(Session& session, const Tokenizer& tokenizer, const GenerationOptions& options,
                    const std::function<bool(const GeneratedToken&)>& each) {
  const auto begin = std::chrono::steady_clock::now();
  Sampler sampler(options.sampling);
  TextStream stream(tokenizer, options.stops, options.continues_text);
  Generation result;
  const std::vector<Session::LayerReads> none;
  while (result.tokens.size() < options.max_tokens) {
    // What was read for the row that chooses the next token.
    const std::vector<Session::LayerReads> reads = session.LastReads();
    const int32_t id = sampler.Next(session.Logits(), session.tokens());
    if (std::find(options.end_tokens.begin(), options.end_tokens.end(), id) != options.end_tokens.end()) {
      result.end = EndReason::kEndToken;
      break;
    }
    result.tokens.push_back(id);
    const std::string piece = static_cast<size_t>(id) < tokenizer.vocab_size() ? stream.Push(id) : "";
    result.text += piece;
    const bool go_on = !each || each({id, piece, reads});
    session.Append({&id, 1});
    if (stream.stopped()) {
      result.end = EndReason::kStopString;
      break;
    }
    if (!go_on) {
      result.end = EndReason::kInterrupted;
      break;
    }
  }
  const std::string rest = stream.Finish();
  result.text += rest;
  if (!rest.empty() && each) each({-1, rest, none});
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

std::vector<int32_t> EndTokens(const ModelConfig& config, const Tokenizer& tokenizer) {
  std::vector<int32_t> tokens;
  for (const int64_t id : config.eos_token_ids) tokens.push_back(static_cast<int32_t>(id));
  if (tokenizer.eos()) tokens.push_back(*tokenizer.eos());
  if (tokenizer.bos()) tokens.push_back(*tokenizer.bos());
  return tokens;
}

bool BeginsWithBos(const ModelSource& model, const Tokenizer& tokenizer) {
  if (!tokenizer.bos()) return false;
  if (const auto& vocabulary = model.vocabulary(); vocabulary && vocabulary->add_bos) return *vocabulary->add_bos;
  return tokenizer.kind() != VocabularyKind::kByteLevelBpe || model.config().bos_token_id == *tokenizer.bos();
}

std::vector<int32_t> EncodePrompt(const ModelSource& model, const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids;
  if (BeginsWithBos(model, tokenizer)) ids.push_back(*tokenizer.bos());
  const std::vector<int32_t> rest = tokenizer.Encode(text);
  ids.insert(ids.end(), rest.begin(), rest.end());
  return ids;
}

}  // namespace cairn
