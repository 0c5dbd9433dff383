#include "eval/retrieval_run.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "base/error.h"
#include "infer/generate.h"

namespace cairn {

namespace {

// Pages of full attention, as sessions have them; chunks end on them.
constexpr size_t kPageTokens = 64;

double Seconds(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

SessionOptions Resolved(const std::shared_ptr<const InferenceModel>& model, SessionOptions settings) {
  settings = Session(model, settings).options();
  settings.record_reads = settings.attention == AttentionKind::kLandmark;
  return settings;
}

}  // namespace

size_t NextChunkEnd(const SessionOptions& options, size_t begin) {
  const size_t length = options.attention == AttentionKind::kLandmark ? options.block_length : kPageTokens;
  const size_t unfinished = begin % length;
  const size_t whole = options.chunk_length;
  return begin + (whole > unfinished ? whole - unfinished : whole);
}

double AttendedPositions(const ModelConfig& config, const SessionOptions& options, size_t tokens, size_t blocks_read,
                         size_t layer_rows) {
  if (tokens == 0) return 0;
  if (options.attention != AttentionKind::kLandmark) return (static_cast<double>(tokens) + 1) / 2;
  const size_t length = options.block_length;
  double local = 0;
  size_t rows = 0;
  for (size_t begin = 0; begin < tokens;) {
    const size_t end = std::min(tokens, NextChunkEnd(options, begin));
    const auto unfinished = static_cast<double>(begin % length);
    const size_t count = end - begin + end / length - begin / length;  // landmarks included
    const auto n = static_cast<double>(count);
    local += n * unfinished + n * (n + 1) / 2;
    rows += count;
    begin = end;
  }
  const auto queries = static_cast<double>(layer_rows) * static_cast<double>(config.num_attention_heads);
  return local / static_cast<double>(rows) +
         static_cast<double>(blocks_read) * static_cast<double>(length + 1) / queries;
}

RetrievalRunner::RetrievalRunner(std::shared_ptr<const InferenceModel> model,
                                 std::shared_ptr<const Tokenizer> tokenizer, SessionOptions settings,
                                 const RetrievalOptions& options)
    : model_(std::move(model)),
      tokenizer_(std::move(tokenizer)),
      settings_(Resolved(model_, settings)),
      options_(options) {}

// Up to token `last` of the prompt, chunk by chunk as one Append would.
void RetrievalRunner::Read(PromptReader& reader, std::span<const int32_t> ids, size_t last, TrialResult& result,
                           const std::function<void(size_t tokens)>& progress) const {
  const auto begin = std::chrono::steady_clock::now();
  const size_t most = reader.session().piece_tokens();
  for (size_t at = reader.session().tokens().size(); at < last;) {
    size_t end = std::min(last, NextChunkEnd(settings_, at));
    while (end < last && end - at < most) end = std::min(last, NextChunkEnd(settings_, end));
    reader.Append(ids.subspan(at, end - at), end == ids.size());
    result.tokens_read += end - at;
    if (progress) progress(end - at);
    at = end;
  }
  result.read_seconds += Seconds(begin);
}

void RetrievalRunner::NoteChoice(const Session& session, const Prompt& prompt, TrialResult& result) const {
  result.landmarks = true;
  const size_t length = settings_.block_length;
  size_t last_chunk = 0;  // its first token, with the unfinished block before it
  for (size_t end = 0; end < prompt.ids.size(); end = NextChunkEnd(settings_, end)) last_chunk = end / length * length;
  std::set<size_t> blocks;
  for (const size_t token : prompt.value_tokens) {
    if (token >= last_chunk) result.local = true;
    blocks.insert(token / length);
  }
  // Places of the value are runs of tokens; the first one that is whole can be read at once.
  result.cut = true;
  for (size_t i = 0, first = 0; i < prompt.value_tokens.size(); ++i) {
    if (i + 1 < prompt.value_tokens.size() && prompt.value_tokens[i + 1] == prompt.value_tokens[i] + 1) continue;
    if (prompt.value_tokens[first] / length == prompt.value_tokens[i] / length) result.cut = false;
    first = i + 1;
  }
  const size_t heads = model_->config().num_attention_heads;
  const std::vector<ChunkReads>& layers = session.LastChunkReads();
  // Local layers choose nothing.
  const size_t first_layer = std::max<size_t>(layers.size() > 1 ? 1 : 0, model_->config().landmark.local_layers);
  double sum = 0;
  // The last row of the chunk is the last token's, or the landmark's after it.
  const size_t back = prompt.ids.size() % length == 0 ? 2 : 1;
  for (size_t l = first_layer; l < layers.size(); ++l) {
    const ChunkReads& reads = layers[l];
    result.heads += heads;
    if (reads.chosen == 0) continue;
    const size_t rows = reads.blocks.size() / (heads * reads.chosen);
    CAIRN_CHECK(rows >= back);
    for (size_t h = 0; h < heads; ++h) {
      const size_t at = ((rows - back) * heads + h) * reads.chosen;
      double share = 0;
      for (size_t i = at; i < at + reads.chosen; ++i) {
        if (blocks.contains(static_cast<size_t>(reads.blocks[i]))) share += static_cast<double>(reads.gates[i]);
      }
      if (share > 0) ++result.heads_found;
      sum += share;
      result.share_max = std::max(result.share_max, share);
    }
  }
  result.share_mean = result.heads == 0 ? 0 : sum / static_cast<double>(result.heads);
  result.found = result.local || result.heads_found > 0;
}

TrialResult RetrievalRunner::Run(const TrialKey& key, const Prompt& prompt,
                                 const std::function<void(size_t tokens)>& progress) {
  TrialResult result;
  result.key = key;
  result.depth = prompt.depth;
  result.tokens = prompt.ids.size();
  result.question = prompt.question;
  result.expected = prompt.answer;

  // What may be shared ends with the last chunk before the fact.
  size_t common = 0;
  while (NextChunkEnd(settings_, common) <= prompt.fact_first) common = NextChunkEnd(settings_, common);
  if (!options_.share) common = 0;
  if (shared_) {
    const std::vector<int32_t>& read = shared_->session().tokens();
    if (read.size() > common || !std::equal(read.begin(), read.end(), prompt.ids.begin())) shared_.reset();
  }
  if (!shared_) shared_.emplace(model_, settings_, options_.memory);
  Read(*shared_, prompt.ids, common, result, progress);
  PromptReader reader = shared_->Fork();
  Read(reader, prompt.ids, prompt.ids.size(), result, progress);
  Session& session = reader.session();
  result.attended =
      AttendedPositions(model_->config(), settings_, prompt.ids.size(), reader.blocks_read(), reader.layer_rows());
  if (settings_.attention == AttentionKind::kLandmark) NoteChoice(session, prompt, result);

  GenerationOptions generation;
  generation.max_tokens = tokenizer_->EncodeMiddle(" " + prompt.answer).size() + options_.extra_tokens;
  generation.end_tokens = EndTokens(model_->config(), *tokenizer_);
  const Generation answer = Generate(session, *tokenizer_, generation);
  result.given = answer.text;
  result.answer_seconds = answer.seconds;
  result.right = IsRight(prompt.judge, answer.text, prompt.answer);
  return result;
}

}  // namespace cairn
