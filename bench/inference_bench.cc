#include "bench/inference_bench.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/threads.h"
#include "bench/random_model.h"
#include "bench/timing.h"
#include "formats/gguf_model.h"

namespace cairn {

namespace {

namespace fs = std::filesystem;

size_t PeakBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<size_t>(usage.ru_maxrss) * 1024;
}

// Ordinary tokens, the same every time.
std::vector<int32_t> SomeTokens(const ModelConfig& config, size_t count) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<int32_t>(3 + (i * 7919) % (config.vocab_size - 4)));
  }
  return ids;
}

// A file that llama-bench can read: the model itself, or a GGUF written beside the temporary files.
class PeerFile {
 public:
  PeerFile(const ModelSource& source, const std::string& path) : path_(path) {
    if (!path.empty() && source.format() == ModelFormat::kGguf) return;
    path_ = (fs::temp_directory_path() / fmt::format("cairn-bench-{}.gguf", getpid())).string();
    made_ = true;
    WriteGguf(source, path_, {});
  }
  PeerFile(const PeerFile&) = delete;
  PeerFile& operator=(const PeerFile&) = delete;
  ~PeerFile() {
    std::error_code ignored;
    if (made_) fs::remove(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool made_ = false;
};

// Tokens a second of one run of llama-bench, or 0 with a warning.
double RunLlamaBench(const InferenceBenchOptions& options, const std::string& file, size_t depth, size_t tokens) {
  const bool decode = options.phase == InferencePhase::kDecode;
  const std::string command =
      fmt::format("'{}' -m '{}' -t {} -p {} -n {} -d {} -r 1 -o json 2>/dev/null", options.llama_bench, file,
                  ThreadCount(), decode ? 0 : tokens, decode ? tokens : 0, depth);
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) Fail("cannot run '{}'", options.llama_bench);
  std::string text;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, n);
  const int status = pclose(pipe);
  try {
    const auto json = nlohmann::json::parse(text);
    if (status == 0) return json.at(0).at("avg_ts").get<double>();
  } catch (const nlohmann::json::exception&) {
  }
  spdlog::warn("'{}' failed at depth {}; run this to see why: {}", options.llama_bench, depth, command);
  return 0;
}

// A session that has read `depth` tokens. The first few are read in truth; the rest of the memory are copies of their
// blocks.
Session SessionAtDepth(const std::shared_ptr<const InferenceModel>& model, const SessionOptions& settings,
                       size_t depth) {
  Session session(model, settings);
  const size_t block = settings.attention == AttentionKind::kLandmark ? session.block_length() : 64;
  if (depth == 0) return session;
  const size_t read = std::min(depth, std::max<size_t>(512 / block, 2) * block);
  session.Append(SomeTokens(model->config(), read));
  session.FillMemory(depth / block);
  return session;
}

double MeasureOnce(Session& session, const InferenceBenchOptions& options, size_t tokens, double& blocks_read) {
  const std::vector<int32_t> ids = SomeTokens(session.model().config(), tokens);
  const size_t read_before = session.counters().blocks_read;
  const double begin = SecondsNow();
  if (options.phase == InferencePhase::kPrefill) {
    session.Append(ids);
  } else {
    for (const int32_t id : ids) session.Append({&id, 1});
  }
  const double seconds = SecondsNow() - begin;
  blocks_read = static_cast<double>(session.counters().blocks_read - read_before) / static_cast<double>(tokens);
  return static_cast<double>(tokens) / seconds;
}

}  // namespace

InferenceBenchResult BenchInference(const InferenceBenchOptions& options,
                                    const std::function<void(const DepthResult&)>& each) {
  const bool decode = options.phase == InferencePhase::kDecode;
  InferenceBenchResult result;
  result.machine = MeasureMachine();
  result.int8_gops = MeasureInt8Gops();
  result.threads = ThreadCount();
  auto source = options.random.empty() ? OpenModel(options.model) : MakeRandomModel(options.random);
  const bool landmarks = options.attention == AttentionKind::kLandmark;
  const auto own = source;  // without a lent landmark, for the peer
  if (landmarks) source = LendLandmark(source, options.block_length);
  const double load_begin = SecondsNow();
  const auto model = InferenceModel::Load(source, options.weights);
  result.load_seconds = SecondsNow() - load_begin;
  const ModelConfig& config = model->config();
  result.model = options.random.empty() ? fs::path(options.model).filename().string() : "random " + options.random;
  result.kind = model->kind();
  result.parameters = ParameterCount(config);
  result.weight_bytes = model->weight_bytes();

  SessionOptions settings;
  settings.attention = options.attention;
  settings.top_k = options.top_k;
  settings.chunk_length = options.chunk_length;
  if (landmarks) settings.block_length = config.landmark.block_length;
  result.block_length = settings.block_length;
  result.top_k = landmarks ? options.top_k : 0;
  const size_t tokens = options.tokens != 0 ? options.tokens : decode ? 64 : 512;
  std::optional<PeerFile> peer;
  if (!options.llama_bench.empty()) peer.emplace(*own, options.model);

  const double products = static_cast<double>(result.parameters - config.vocab_size * config.hidden_size *
                                                                      (config.tie_word_embeddings ? 1 : 2));
  for (const size_t depth : options.depths) {
    Session session = SessionAtDepth(model, settings, depth);
    const size_t start = session.tokens().size();
    DepthResult row{};
    row.depth = depth;
    double blocks_read = 0;
    const bool compares = peer && std::count(options.llama_depths.begin(), options.llama_depths.end(), depth) > 0;
    for (size_t round = 0; round < options.rounds; ++round) {
      // Each round starts from the same depth, with the memory that the last one worked in; the first is preceded by
      // one that compiles products and touches memory.
      if (round == 0) {
        MeasureOnce(session, options, decode ? 4 : tokens, blocks_read);
        session.Truncate(start);
      }
      row.tokens_per_second = std::max(row.tokens_per_second, MeasureOnce(session, options, tokens, blocks_read));
      const Session::Counters counters = session.counters();
      row.memory_bytes = counters.memory_bytes;
      row.workspace_bytes = counters.workspace_bytes;
      session.Truncate(start);
      if (compares) {
        row.llama_tokens_per_second =
            std::max(row.llama_tokens_per_second, RunLlamaBench(options, peer->path(), depth, tokens));
      }
    }
    if (decode) {
      const size_t block = landmarks ? settings.block_length : 64;
      const double landmark_bytes = landmarks ? static_cast<double>(depth / block * config.key_size() * 2) *
                                                    static_cast<double>(config.num_hidden_layers)
                                              : 0;
      const BlockShape shape{config.head_dim, block, landmarks, settings.block_format};
      const double blocks =
          landmarks ? blocks_read
                    : static_cast<double>(depth / block * config.num_key_value_heads * config.num_hidden_layers);
      row.bytes_per_token =
          static_cast<double>(result.weight_bytes) + landmark_bytes + blocks * static_cast<double>(shape.bytes());
      row.percent = 100 * row.bytes_per_token * row.tokens_per_second / (result.machine.read_gbs * 1e9);
    } else {
      const bool integer = result.kind == WeightKind::kInt8 || result.kind == WeightKind::kInt4;
      const double peak = (integer ? result.int8_gops : result.machine.f32_gflops) * 1e9;
      row.percent = 100 * 2 * products * row.tokens_per_second / peak;
    }
    row.peak_bytes = PeakBytes();
    result.depths.push_back(row);
    if (each) each(row);
  }
  return result;
}

}  // namespace cairn
