// The public interface's sessions.
#include <algorithm>
#include <map>

#include "api/model_impl.h"
#include "base/error.h"
#include "infer/generate.h"
#include "infer/session.h"

namespace cairn::api {

namespace {

cairn::SessionOptions InternalOptions(const SessionOptions& options, const ModelConfig& config) {
  cairn::SessionOptions result = DefaultSessionOptions(config);
  switch (options.attention) {
    case Attention::kAsTrained:
      break;
    case Attention::kLandmark:
      result.attention = AttentionKind::kLandmark;
      break;
    case Attention::kFull:
      result.attention = AttentionKind::kFull;
      break;
    default:
      Fail("{} is no kind of attention", static_cast<int>(options.attention));
  }
  switch (options.granularity) {
    case Granularity::kHeadAndToken:
      result.granularity = cairn::Granularity::kHeadAndToken;
      break;
    case Granularity::kHead:
      result.granularity = cairn::Granularity::kHead;
      break;
    case Granularity::kToken:
      result.granularity = cairn::Granularity::kToken;
      break;
    default:
      Fail("{} is no granularity", static_cast<int>(options.granularity));
  }
  if (options.positions != Positions::kSlots && options.positions != Positions::kExact) {
    Fail("{} is no kind of positions", static_cast<int>(options.positions));
  }
  switch (options.block_format) {
    case BlockFormat::kF32:
      result.block_format = cairn::BlockFormat::kF32;
      break;
    case BlockFormat::kF16:
      result.block_format = cairn::BlockFormat::kF16;
      break;
    case BlockFormat::kInt8:
      result.block_format = cairn::BlockFormat::kInt8;
      break;
    default:
      Fail("{} is no format of blocks", static_cast<int>(options.block_format));
  }
  switch (options.index) {
    case Index::kAuto:
      result.index = IndexKind::kAuto;
      break;
    case Index::kExact:
      result.index = IndexKind::kExact;
      break;
    case Index::kInt8:
      result.index = IndexKind::kInt8;
      break;
    case Index::kHierarchical:
      result.index = IndexKind::kHierarchical;
      break;
    case Index::kIvf:
      result.index = IndexKind::kIvf;
      break;
    default:
      Fail("{} is no index", static_cast<int>(options.index));
  }
  result.top_k = options.k;
  result.chunk_length = options.chunk;
  result.block_length = options.block;
  result.memory_blocks = options.memory_blocks;
  result.exact_positions = options.positions == Positions::kExact;
  result.miss_cutoff = options.cutoff;
  result.record_reads = options.reads;
  return result;
}

// `options` with every default resolved.
SessionOptions ResolvedOptions(SessionOptions options, const cairn::SessionOptions& resolved) {
  options.attention = resolved.attention == AttentionKind::kLandmark ? Attention::kLandmark : Attention::kFull;
  options.k = resolved.top_k;
  options.chunk = resolved.chunk_length;
  options.block = resolved.block_length;
  return options;
}

std::vector<Read> Flatten(const std::vector<cairn::Session::LayerReads>& layers) {
  std::vector<Read> reads;
  for (const auto& layer : layers) {
    for (const cairn::BlockRead& read : layer.blocks) reads.push_back({layer.layer, read.block, read.gate});
  }
  return reads;
}

EndReason PublicReason(cairn::EndReason reason) {
  switch (reason) {
    case cairn::EndReason::kLength:
      return EndReason::kLength;
    case cairn::EndReason::kEndToken:
      return EndReason::kEndToken;
    case cairn::EndReason::kStopString:
      return EndReason::kStop;
    case cairn::EndReason::kInterrupted:
      return EndReason::kInterrupted;
  }
  CAIRN_CHECK(false);
}

}  // namespace

struct Session::Impl {
  Impl(std::shared_ptr<const Model::Impl> shared, const SessionOptions& wanted)
      : model(std::move(shared)),
        session(model->model, InternalOptions(wanted, model->model->config())),
        options(ResolvedOptions(wanted, session.options())) {}
  Impl(const Impl& other) : model(other.model), session(other.session.Fork()), options(other.options) {}

  void CheckIdle() const {
    if (generating) Fail("the session is writing; change it when the generation has ended");
  }
  // Whether the tokens so far are only what begins a text.
  bool begins() const {
    const auto& tokens = session.tokens();
    return tokens.empty() || (tokens.size() == 1 && tokens[0] == model->info.bos);
  }

  std::shared_ptr<const Model::Impl> model;
  cairn::Session session;
  SessionOptions options;
  bool generating = false;
};

Session::Session(const Model& model, const SessionOptions& options)
    : impl_(std::make_unique<Impl>(model.impl_, options)) {}
Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

const SessionOptions& Session::options() const { return impl_->options; }

void Session::Append(std::string_view text) {
  impl_->CheckIdle();
  const Tokenizer& tokenizer = *impl_->model->tokenizer;
  impl_->session.Append(impl_->session.tokens().empty() ? EncodePrompt(impl_->model->model->source(), tokenizer, text)
                        : impl_->begins()               ? tokenizer.Encode(text)
                                                        : tokenizer.EncodeMiddle(text));
}

void Session::Append(std::span<const int32_t> tokens) {
  impl_->CheckIdle();
  impl_->session.Append(tokens);
}

std::span<const float> Session::Logits() const { return impl_->session.Logits(); }

std::span<const int32_t> Session::Tokens() const { return impl_->session.tokens(); }

Generation Session::Generate(const GenerateOptions& options, const std::function<bool(const Token&)>& each) {
  impl_->CheckIdle();
  const Tokenizer& tokenizer = *impl_->model->tokenizer;
  GenerationOptions generation;
  generation.max_tokens = options.max_tokens;
  SamplingOptions& sampling = generation.sampling;
  sampling.repetition_penalty = options.repetition_penalty;
  sampling.repetition_window = options.repetition_window;
  sampling.temperature = options.temperature;
  sampling.top_k = options.top_k;
  sampling.top_p = options.top_p;
  sampling.min_p = options.min_p;
  sampling.seed = options.seed;
  ValidateSamplingOptions(sampling);
  generation.stops = options.stops;
  if (!options.ignore_end) generation.end_tokens = EndTokens(impl_->model->model->config(), tokenizer);
  generation.end_tokens.insert(generation.end_tokens.end(), options.end_tokens.begin(), options.end_tokens.end());
  generation.continues_text = !impl_->begins();

  // Holds however the generation ends. The session may be moved while it runs; what it holds stays where it is.
  struct Busy {
    explicit Busy(bool& value) : flag(value) { flag = true; }
    ~Busy() { flag = false; }
    bool& flag;
  } busy(impl_->generating);
  std::function<bool(const GeneratedToken&)> forward;
  if (each) {
    forward = [&each](const GeneratedToken& token) {
      const std::vector<Read> reads = Flatten(token.reads);
      return each({token.id, token.text, reads});
    };
  }
  cairn::Generation result = cairn::Generate(impl_->session, tokenizer, generation, forward);
  return {std::move(result.text), std::move(result.tokens), PublicReason(result.end), result.seconds};
}

Session Session::Fork() const { return Session(std::make_unique<Impl>(*impl_)); }

void Session::Truncate(size_t tokens) {
  impl_->CheckIdle();
  impl_->session.Truncate(tokens);
}

void Session::Reset() {
  impl_->CheckIdle();
  impl_->session.Reset();
}

void Session::SetK(size_t k) {
  impl_->CheckIdle();
  impl_->session.SetTopK(k);
  impl_->options.k = k;
}

std::vector<Read> Session::Reads() const { return Flatten(impl_->session.LastReads()); }

std::vector<BlockRead> Session::BlocksRead() const {
  const auto layers = impl_->session.LastReads();
  std::map<size_t, double> weights;
  for (const Read& read : Flatten(layers)) weights[read.block] += read.weight / static_cast<double>(layers.size());
  std::vector<BlockRead> result;
  for (const auto& [block, weight] : weights) result.push_back({block, weight, BlockText(block)});
  std::stable_sort(result.begin(), result.end(),
                   [](const BlockRead& a, const BlockRead& b) { return a.weight > b.weight; });
  return result;
}

std::string Session::BlockText(size_t block) const {
  const size_t length = impl_->session.block_length();
  const std::vector<int32_t>& tokens = impl_->session.tokens();
  if (length == 0) Fail("full attention has no blocks");
  if (block >= tokens.size() / length) {
    Fail("block {} is not finished: the text has {} whole blocks of {} tokens", block, tokens.size() / length, length);
  }
  return impl_->model->TextOf({tokens.data() + block * length, length}, block == 0);
}

SessionStats Session::stats() const {
  const cairn::Session::Counters counters = impl_->session.counters();
  return {impl_->session.tokens().size(), counters.blocks,      counters.blocks_kept, counters.memory_bytes,
          counters.workspace_bytes,       counters.blocks_read, counters.chunks};
}

}  // namespace cairn::api
