// Sessions against the slow reference: tiny random models and random sequences of calls. CAIRN_SEQUENCES says how many
// (3000), CAIRN_SEQUENCE runs the one with that number alone, as a failure's message says.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <mutex>

#include "base/threads.h"
#include "infer/session.h"
#include "model_makers.h"
#include "reference_session.h"

namespace cairn {
namespace {

// Of logits, by the largest of a row or 1.
constexpr double kTolerance = 1e-4;
// Share of the choices that may differ because the scores hardly do, and because they do not at all: texts repeat.
constexpr double kNearTieShare = 1e-5;
constexpr double kTieShare = 1e-3;

size_t Between(Random& random, size_t low, size_t high) { return low + random.Below(high - low + 1); }
bool Chance(Random& random, double probability) { return random.Uniform() < probability; }

ModelConfig RandomConfig(Random& random) {
  ModelConfig config;
  config.hidden_size = 4 * Between(random, 4, 8);
  config.intermediate_size = Between(random, 8, 48);
  config.num_hidden_layers = Between(random, 1, 3);
  config.num_key_value_heads = Between(random, 1, 2);
  config.num_attention_heads = config.num_key_value_heads == 2 ? 2 * Between(random, 1, 2) : Between(random, 2, 4);
  config.head_dim = 2 * Between(random, 2, 8);
  config.vocab_size = Between(random, 17, 40);
  config.max_position_embeddings = Between(random, 8, 64);
  config.rms_norm_eps = 1e-5;
  config.rope_theta = Chance(random, 0.8) ? 10000 : 100;
  if (Chance(random, 0.1)) config.rope_scaling = {RopeScalingKind::kLinear, 2.0, 1, 4, 8192};
  if (Chance(random, 0.1)) config.rope_scaling = {RopeScalingKind::kLlama3, 8.0, 1, 4, 32};
  config.tie_word_embeddings = Chance(random, 0.3);
  config.rotary_layout = Chance(random, 0.5) ? RotaryLayout::kHalf : RotaryLayout::kInterleaved;
  config.landmark.attention = AttentionKind::kLandmark;
  config.landmark.block_length = Between(random, 1, 7);
  config.landmark.landmark_id = static_cast<int64_t>(random.Below(config.vocab_size));
  if (Chance(random, 0.35)) {
    config.landmark.context_miss.enabled = true;
    config.landmark.context_miss.token_id = static_cast<int64_t>(
        (static_cast<size_t>(config.landmark.landmark_id) + Between(random, 1, 5)) % config.vocab_size);
  }
  return config;
}

// Weights that keep every number near 1, with attention that prefers some keys.
std::shared_ptr<const ModelSource> MildModel(const ModelConfig& config, Random& random) {
  std::map<std::string, Tensor> tensors;
  for (const ExpectedTensor& expected : ExpectedTensors(config)) {
    Tensor tensor(expected.shape);
    const bool matrix = expected.shape.size() == 2;
    double factor = matrix ? 1.0 / std::sqrt(static_cast<double>(expected.shape[1])) : 0.2;
    if (expected.name.find("embed_tokens") != std::string::npos) factor = 1;
    if (expected.name.find("q_proj") != std::string::npos) factor *= 2;
    for (float& value : tensor.span()) value = static_cast<float>(factor * random.Normal() + (matrix ? 0 : 1));
    tensors[expected.name] = std::move(tensor);
  }
  if (Chance(random, 0.05)) {
    // A landmark that was never trained: all its keys in the first layer are 0, and every block ties.
    const auto row = static_cast<size_t>(config.landmark.landmark_id) * config.hidden_size;
    std::fill_n(tensors["model.embed_tokens.weight"].data() + row, config.hidden_size, 0.0f);
  }
  return MakeModelSource(config, std::move(tensors));
}

SessionOptions RandomOptions(const ModelConfig& config, Random& random) {
  SessionOptions options;
  options.block_format = BlockFormat::kF32;
  const bool full = Chance(random, 0.15);
  options.attention = full ? AttentionKind::kFull : AttentionKind::kLandmark;
  options.block_length = Chance(random, 0.5) ? 0 : Between(random, 1, 7);
  options.top_k = Chance(random, 0.02) ? size_t{1} << 40 : Between(random, 0, 5);
  options.chunk_length = Chance(random, 0.2) ? 0 : Between(random, 1, 20);
  if (Chance(random, 0.35)) options.memory_blocks = full ? Between(random, 1, 150) : Between(random, 1, 8);
  options.granularity = static_cast<Granularity>(random.Below(3));
  options.exact_positions = Chance(random, 0.25);
  options.group_chooses_together = Chance(random, 0.3);
  if (config.landmark.context_miss.enabled && Chance(random, 0.6)) {
    constexpr double kCutoffs[] = {0.02, 0.1, 0.3, 0.6, 1};
    options.miss_cutoff = kCutoffs[random.Below(std::size(kCutoffs))];
  }
  options.record_reads = true;
  return options;
}

struct Totals {
  ChoiceComparison choices;
  double worst = 0;  // difference of logits
  double worst_gate = 0;
  size_t tokens = 0;
  size_t calls = 0;
};

// A session and its reference.
struct Twins {
  std::unique_ptr<Session> session;
  ReferenceSession reference;
};

class Sequence {
 public:
  explicit Sequence(uint64_t number) : random_(number), config_(RandomConfig(random_)) {
    const auto source = MildModel(config_, random_);
    auto session = std::make_unique<Session>(InferenceModel::Load(source), RandomOptions(config_, random_));
    ReferenceSession reference(*source, session->options());
    twins_.push_back({std::move(session), std::move(reference)});
  }

  // Throws Error where the two part.
  void Run() {
    for (size_t i = Between(random_, 3, 9); i > 0; --i) {
      Step(twins_[random_.Below(twins_.size())]);
      ++totals_.calls;
    }
    for (const Twins& pair : twins_) CompareLogits(pair);
  }

  const Totals& totals() const { return totals_; }
  const std::vector<std::string>& log() const { return log_; }

 private:
  std::vector<int32_t> Tokens(size_t count) {
    std::vector<int32_t> ids;
    // Few different ones at times, so that texts repeat.
    const size_t bound = Chance(random_, 0.2) ? 3 : config_.vocab_size;
    while (ids.size() < count) {
      const auto id = static_cast<int32_t>(random_.Below(bound));
      if (id != config_.landmark.landmark_id) ids.push_back(id);
    }
    return ids;
  }

  void Step(Twins& pair) {
    const double dice = random_.Uniform();
    if (dice < 0.4) {
      Append(pair, Tokens(Chance(random_, 0.5) ? random_.Below(41) : random_.Below(10)));
    } else if (dice < 0.5) {
      Feed(pair);
    } else if (dice < 0.65) {
      Continue(pair, Between(random_, 1, 6));
    } else if (dice < 0.75) {
      if (twins_.size() == 3) return;
      log_.push_back("fork");
      Twins fork{std::unique_ptr<Session>(new Session(pair.session->Fork())), pair.reference};
      twins_.push_back(std::move(fork));
    } else if (dice < 0.87) {
      Truncate(pair);
    } else if (dice < 0.9) {
      log_.push_back("reset");
      pair.session->Reset();
      pair.reference.Reset();
    } else {
      const size_t k = Chance(random_, 0.05) ? size_t{1} << 40 : Between(random_, 0, 6);
      log_.push_back(fmt::format("k = {}", k));
      pair.session->SetTopK(k);
      pair.reference.SetTopK(k);
    }
  }

  // The session's logits after each token, and what its chunks read, by `call`.
  template <typename Call>
  void CompareCall(Twins& pair, const Call& call) {
    ReferenceSession::ForeignReads reads;
    std::vector<std::vector<float>> rows;
    const size_t first = pair.session->tokens().size();
    size_t chunks = pair.session->counters().chunks;
    const auto note_chunk = [&] {
      if (chunks == pair.session->counters().chunks) return;
      chunks = pair.session->counters().chunks;
      reads.push_back(pair.session->LastChunkReads());
    };
    call(*pair.session, [&](size_t token, std::span<const float> logits) {
      if (token != first + rows.size()) Fail("the sink got token {} after {} of the call", token, rows.size());
      note_chunk();
      rows.emplace_back(logits.begin(), logits.end());
    });
    note_chunk();
    call(pair.reference, reads);
    const std::vector<Vector>& expected = pair.reference.TokenLogits();
    if (rows.size() != expected.size()) Fail("{} rows of logits instead of {}", rows.size(), expected.size());
    CheckChoices(pair);
    for (size_t i = 0; i < rows.size(); ++i) CompareRow(rows[i], expected[i], first + i);
    totals_.tokens += rows.size();
    CompareLogits(pair);
  }

  // The same without a sink, for a call of one chunk.
  void CompareSilently(Twins& pair, const std::vector<int32_t>& tokens) {
    const size_t chunks = pair.session->counters().chunks;
    pair.session->Append(tokens);
    const ReferenceSession::ForeignReads reads{pair.session->LastChunkReads()};
    if (pair.session->counters().chunks != chunks + 1) Fail("{} tokens were more than a chunk", tokens.size());
    pair.reference.Append(tokens, &reads);
    CheckChoices(pair);
    totals_.tokens += tokens.size();
    CompareLogits(pair);
  }

  void Append(Twins& pair, const std::vector<int32_t>& tokens) {
    const size_t unfinished = pair.reference.Unfinished();
    const bool one_chunk = !tokens.empty() && tokens.size() + unfinished <= pair.session->options().chunk_length;
    log_.push_back(fmt::format("append {}{}", tokens.size(), one_chunk ? " in one chunk" : ""));
    if (one_chunk) return CompareSilently(pair, tokens);
    CompareCall(pair, [&](auto& session, const auto& other) { AppendTo(session, tokens, other); });
  }
  static void AppendTo(Session& session, const std::vector<int32_t>& tokens, const Session::LogitsSink& sink) {
    session.Append(tokens, sink);
  }
  static void AppendTo(ReferenceSession& session, const std::vector<int32_t>& tokens,
                       const ReferenceSession::ForeignReads& reads) {
    session.Append(tokens, &reads);
  }

  // A chunk of positions that may end anywhere, also before a landmark.
  void Feed(Twins& pair) {
    const SessionOptions& options = pair.session->options();
    std::vector<int32_t> ids;
    size_t place = pair.reference.Unfinished();
    for (const int32_t id : Tokens(random_.Below(12))) {
      const bool full = options.attention == AttentionKind::kLandmark && place == options.block_length;
      ids.push_back(full ? static_cast<int32_t>(config_.landmark.landmark_id) : id);
      place = full ? 0 : place + 1;
    }
    log_.push_back(fmt::format("feed {} positions", ids.size()));
    CompareCall(pair, [&](auto& session, const auto& other) { FeedTo(session, ids, other); });
  }
  static void FeedTo(Session& session, const std::vector<int32_t>& ids, const Session::LogitsSink& sink) {
    session.FeedPositions(ids, sink);
  }
  static void FeedTo(ReferenceSession& session, const std::vector<int32_t>& ids,
                     const ReferenceSession::ForeignReads& reads) {
    session.FeedPositions(ids, &reads);
  }

  // Greedy tokens, one at a time.
  void Continue(Twins& pair, size_t count) {
    if (pair.reference.Logits().empty()) return;
    log_.push_back(fmt::format("generate {}", count));
    for (size_t i = 0; i < count; ++i) {
      const std::span<const float> logits = pair.session->Logits();
      const auto best = std::max_element(logits.begin(), logits.end());
      CompareSilently(pair, {static_cast<int32_t>(best - logits.begin())});
    }
  }

  void Truncate(Twins& pair) {
    const size_t size = pair.session->tokens().size();
    const size_t length = Chance(random_, 0.5) ? random_.Below(size + 2) : size - std::min(size, random_.Below(9));
    log_.push_back(fmt::format("truncate {} to {}", size, length));
    const bool possible = pair.reference.CanTruncate(length);
    try {
      pair.session->Truncate(length);
    } catch (const Error& error) {
      if (possible) throw;
      return;
    }
    if (!possible) Fail("it should not have been possible");
    pair.reference.Truncate(length);
  }

  void CompareLogits(const Twins& pair) {
    if (pair.session->tokens() != pair.reference.tokens()) Fail("the tokens differ");
    if (pair.reference.Logits().empty()) {
      bool failed = false;
      try {
        (void)pair.session->Logits();
      } catch (const Error&) {
        failed = true;
      }
      if (!failed) Fail("there should be no logits");
      return;
    }
    CompareRow(pair.session->Logits(), pair.reference.Logits(), pair.session->tokens().size() - 1);
  }

  void CompareRow(std::span<const float> logits, const Vector& expected, size_t token) {
    double scale = 1;
    for (const double value : expected) scale = std::isfinite(value) ? std::max(scale, std::abs(value)) : scale;
    for (size_t i = 0; i < expected.size(); ++i) {
      const auto value = static_cast<double>(logits[i]);
      if (value == expected[i]) continue;
      const double difference = std::abs(value - expected[i]) / scale;
      if (!(difference <= kTolerance)) {
        Fail("logit {} after token {} is {} instead of {}", i, token, value, expected[i]);
      }
      totals_.worst = std::max(totals_.worst, difference);
    }
  }

  void CheckChoices(Twins& pair) {
    totals_.choices += pair.reference.comparison();
    totals_.worst_gate = std::max(totals_.worst_gate, pair.reference.worst_gate());
    if (pair.reference.comparison().wrong > 0) Fail("wrong blocks were read in layer {}", pair.reference.wrong_layer());
    if (pair.reference.first_ties() > 0) Fail("equal landmarks of the first layer were not taken by the rule");
    if (totals_.worst_gate > kTolerance) Fail("a gate differs by {}", totals_.worst_gate);
    pair.reference.ClearComparison();
  }

  Random random_;
  ModelConfig config_;
  std::vector<Twins> twins_;
  std::vector<std::string> log_;
  Totals totals_;
};

// What went wrong, or nothing.
std::string RunSequence(uint64_t number, Totals& totals, bool verbose) {
  std::vector<std::string> log;
  std::string failure;
  try {
    Sequence sequence(number);
    try {
      sequence.Run();
    } catch (const std::exception& error) {
      failure = error.what();
    }
    totals = sequence.totals();
    log = sequence.log();
  } catch (const std::exception& error) {
    failure = error.what();
  }
  if (failure.empty() && !verbose) return "";
  const std::string calls = fmt::format("{}", fmt::join(log, ", "));
  if (failure.empty()) {
    fmt::print("sequence {}: {}\n", number, calls);
    return "";
  }
  return fmt::format("sequence {}: {}\n  after: {}\n  replay with CAIRN_SEQUENCE={}", number, failure, calls, number);
}

uint64_t Variable(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(SessionRandom, EverySequenceOfCallsAgreesWithTheReference) {
  const uint64_t only = Variable("CAIRN_SEQUENCE", 0);
  const size_t count = only > 0 ? 1 : Variable("CAIRN_SEQUENCES", 3000);
  std::mutex mutex;
  Totals all;
  std::vector<std::string> failures;
  const auto run = [&](size_t index) {
    Totals totals;
    const std::string failure = RunSequence(only > 0 ? only : index + 1, totals, only > 0);
    const std::lock_guard lock(mutex);
    all.choices += totals.choices;
    all.worst = std::max(all.worst, totals.worst);
    all.worst_gate = std::max(all.worst_gate, totals.worst_gate);
    all.tokens += totals.tokens;
    all.calls += totals.calls;
    if (!failure.empty()) failures.push_back(failure);
  };
  // Whole sequences side by side, so a session's own loops run on one thread; some alone with all threads.
  const size_t alone = std::max<size_t>(1, count / 50);
  for (size_t index = 0; index < alone; ++index) run(index);
  ParallelFor(count - alone, [&](size_t index, int) { run(alone + index); });
  for (size_t i = 0; i < std::min<size_t>(failures.size(), 10); ++i) ADD_FAILURE() << failures[i];
  EXPECT_EQ(failures.size(), 0u);
  fmt::print(
      "{} sequences, {} calls, {} tokens, {} choices of blocks; near ties {}, ties {}; largest difference of logits "
      "{:.2g}, of gates {:.2g}\n",
      count, all.calls, all.tokens, all.choices.choices, all.choices.near_ties, all.choices.ties, all.worst,
      all.worst_gate);
  const auto choices = static_cast<double>(all.choices.choices);
  EXPECT_LE(static_cast<double>(all.choices.near_ties), 4 + kNearTieShare * choices);
  EXPECT_LE(static_cast<double>(all.choices.ties), 100 + kTieShare * choices);
}

}  // namespace
}  // namespace cairn
