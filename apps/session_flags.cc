#include "apps/session_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/log.h"
#include "formats/model_tokenizer.h"

namespace cairn {

namespace {

// The library takes -1 for the largest number there is, and cuts what is larger still.
std::string WholeNumber(const std::string& text) {
  uint64_t value;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool good = error == std::errc() && end == text.data() + text.size();
  return good ? "" : fmt::format("'{}' is not a whole number from 0 to {}", text, UINT64_MAX);
}

}  // namespace

void SessionFlags::AddModel(CLI::App& verb) {
  verb.add_option("-m,--model", model, "Hugging Face directory, GGUF file or llama2.c file")->required();
  verb.add_option("-t,--tokenizer", tokenizer, "Tokenizer, where the model has none beside it");
  verb.add_option("--weights", weights, "How the weights are held: f32, f16, int8 or int4; default: as stored")
      ->check(CLI::IsMember({"f32", "f16", "int8", "int4"}));
}

void SessionFlags::AddAttention(CLI::App& verb) {
  verb.add_option("--attention", attention, "landmark or full; default: as the model was trained")
      ->check(CLI::IsMember({"landmark", "full"}));
  k = verb.add_option("-k", options.top_k,
                      "Blocks that each query retrieves from the memory; default: as the model was trained with a "
                      "memory, else 4")
          ->check(WholeNumber);
  verb.add_option("--chunk", options.chunk_length, "Tokens read at once; default: what the trained context allows")
      ->check(WholeNumber);
  verb.add_option("--block", options.block_length, "Tokens of a block; default: the model's")->check(WholeNumber);
  verb.add_option("--memory-blocks", options.memory_blocks, "Blocks kept, the latest ones; 0: all")
      ->check(WholeNumber)
      ->capture_default_str();
  verb.add_option("--block-format", block_format, "How finished blocks are kept: f32, f16 or int8")
      ->check(CLI::IsMember({"f32", "f16", "int8"}))
      ->capture_default_str();
  verb.add_option("--granularity", granularity, "Who chooses blocks: head-and-token, head or token")
      ->check(CLI::IsMember({"head-and-token", "head", "token"}))
      ->capture_default_str();
  verb.add_option("--positions", positions, "slots, or exact distances (for models trained with positional jumps)")
      ->check(CLI::IsMember({"slots", "exact"}))
      ->capture_default_str();
  verb.add_option("--index", index, "How landmarks are found: exact, int8, hierarchical, ivf or auto")
      ->check(CLI::IsMember({"exact", "int8", "hierarchical", "ivf", "auto"}))
      ->capture_default_str();
  cutoff = verb.add_option("--cutoff", options.miss_cutoff,
                           "Skip the memory where the context-miss token's share is below this; default: as the model "
                           "was trained with a memory, else 0");
}

void SessionFlags::AddAudit(CLI::App& verb) {
  verb.add_flag("--audit", options.audit, "Also score all landmarks, and print what the index missed");
  verb.add_option("--audit-min", audit_min, "Fail when the index finds a smaller part of the best blocks than this")
      ->check(CLI::Range(0.0, 1.0));
}

std::shared_ptr<const InferenceModel> LoadModel(const SessionFlags& flags) {
  const auto kind = flags.weights.empty() ? std::nullopt : WeightKindNamed(flags.weights);
  return InferenceModel::Load(OpenModel(flags.model), kind);
}

std::shared_ptr<const Tokenizer> LoadTokenizerOf(const SessionFlags& flags, const InferenceModel& model) {
  const auto tokenizer =
      flags.tokenizer.empty() ? LoadModelTokenizer(model.source(), flags.model) : LoadTokenizerOrModel(flags.tokenizer);
  if (tokenizer->vocab_size() > model.config().vocab_size) {
    Fail("the tokenizer has {} tokens and the model {}; give the model's own with -t", tokenizer->vocab_size(),
         model.config().vocab_size);
  }
  return tokenizer;
}

SessionOptions OptionsFrom(const SessionFlags& flags, const InferenceModel& model) {
  SessionOptions options = flags.options;
  const SessionOptions defaults = DefaultSessionOptions(model.config());
  if (!flags.k_given && (flags.k == nullptr || flags.k->count() == 0)) options.top_k = defaults.top_k;
  if (!flags.cutoff_given && (flags.cutoff == nullptr || flags.cutoff->count() == 0)) {
    options.miss_cutoff = defaults.miss_cutoff;
  }
  options.attention = flags.attention.empty()     ? defaults.attention
                      : flags.attention == "full" ? AttentionKind::kFull
                                                  : AttentionKind::kLandmark;
  options.granularity = *GranularityNamed(flags.granularity);
  options.block_format = *BlockFormatNamed(flags.block_format);
  options.exact_positions = flags.positions == "exact";
  options.index = *IndexKindNamed(flags.index);
  options.audit = options.audit || flags.audit_min > 0;
  return options;
}

std::string Describe(const RetrievalAudit& audit) {
  if (audit.queries == 0) return "no block was chosen by an index";
  return fmt::format("recall {:.4f}, {:.2f}% of the landmarks' softmax chosen, {} queries", audit.MeanRecall(),
                     100 * audit.MeanMass(), audit.queries);
}

void CheckAudit(const SessionFlags& flags, const RetrievalAudit& audit) {
  CheckRecall(audit, flags.audit_min, flags.index);
}

void WarnBeyondTraining(const InferenceModel& model, const SessionOptions& options) {
  if (options.attention != AttentionKind::kLandmark) return;
  const size_t stride = options.block_length + 1;
  const size_t blocks = (options.chunk_length + options.block_length - 1) / options.block_length;
  const size_t trained = model.config().max_position_embeddings;
  const size_t span = (blocks + std::min(options.top_k, trained) + 1) * stride;
  if (!options.exact_positions && span > trained) {
    spdlog::warn(
        "chunk and retrieved blocks span {} positions, but the model was trained with {}; use a smaller --chunk "
        "or -k",
        span, trained);
  }
}

void AddSamplingFlags(CLI::App& verb, GenerationOptions& options) {
  verb.add_option("-n,--tokens", options.max_tokens, "Tokens to generate at most")
      ->check(WholeNumber)
      ->capture_default_str();
  SamplingOptions& sampling = options.sampling;
  verb.add_option("--temperature", sampling.temperature, "0: always the most probable token")->capture_default_str();
  verb.add_option("--top-k", sampling.top_k, "Draw from the k most probable tokens; 0: all")
      ->check(WholeNumber)
      ->capture_default_str();
  verb.add_option("--top-p", sampling.top_p, "Draw from the fewest tokens with this share")->capture_default_str();
  verb.add_option("--min-p", sampling.min_p, "Leave out tokens less probable than this part of the best")
      ->capture_default_str();
  verb.add_option("--repetition-penalty", sampling.repetition_penalty, "Above 1: repeat less")->capture_default_str();
  verb.add_option("--repetition-window", sampling.repetition_window, "Last tokens that count as repeated")
      ->check(WholeNumber)
      ->capture_default_str();
  verb.add_option("--seed", sampling.seed, "The same seed draws the same text")
      ->check(WholeNumber)
      ->capture_default_str();
  verb.add_option("--stop", options.stops, "Text that ends the generation; may be given several times")
      ->allow_extra_args(false);
}

}  // namespace cairn
