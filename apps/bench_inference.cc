// cairn bench decode and cairn bench prefill.
#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "apps/bench.h"
#include "base/cpu.h"
#include "base/error.h"
#include "bench/inference_bench.h"
#include "bench/random_model.h"

namespace cairn {

namespace {

using Json = nlohmann::ordered_json;

Json ToJson(const InferenceBenchOptions& options, const InferenceBenchResult& result) {
  const bool decode = options.phase == InferencePhase::kDecode;
  Json out = BenchHead(decode ? "decode" : "prefill");
  out["f32_peak_gflops"] = result.machine.f32_gflops;
  out["int8_peak_gops"] = result.int8_gops;
  out["read_gbs"] = result.machine.read_gbs;
  out["model"] = result.model;
  out["weights"] = NameOf(result.kind);
  out["parameters"] = result.parameters;
  out["weight_bytes"] = result.weight_bytes;
  out["load_seconds"] = result.load_seconds;
  out["attention"] = NameOf(options.attention);
  if (options.attention == AttentionKind::kLandmark) {
    out["block_length"] = result.block_length;
    out["k"] = result.top_k;
  }
  out["chunk"] = options.chunk_length;
  for (const DepthResult& row : result.depths) {
    Json entry;
    entry["depth"] = row.depth;
    entry["tokens_per_second"] = row.tokens_per_second;
    entry["percent_of_limit"] = row.percent;
    if (decode) entry["bytes_per_token"] = row.bytes_per_token;
    entry["memory_bytes"] = row.memory_bytes;
    entry["workspace_bytes"] = row.workspace_bytes;
    entry["peak_process_bytes"] = row.peak_bytes;
    if (row.llama_tokens_per_second > 0) {
      entry["llama_cpp_tokens_per_second"] = row.llama_tokens_per_second;
      entry["ratio_to_llama_cpp"] = row.tokens_per_second / row.llama_tokens_per_second;
    }
    out["depths"].push_back(entry);
  }
  return out;
}

void Run(const InferenceBenchOptions& options, bool json) {
  const bool decode = options.phase == InferencePhase::kDecode;
  if (options.model.empty() == options.random.empty()) Fail("name a model with -m, or a shape with --random");
  const auto megabytes = [](size_t bytes) { return static_cast<double>(bytes) / 1e6; };
  bool head = false;
  double first = 0;
  const auto print = [&](const DepthResult& row) {
    if (!head) {
      fmt::print("{:>8} {:>10} {:>8} {:>9} {:>12} {:>12} {:>11} {:>11} {:>6}\n", "depth", "tokens/s", "of first",
                 "of limit", "memory MB", "workspace MB", "process MB", "llama.cpp", "ratio");
      head = true;
      first = row.tokens_per_second;
    }
    const bool peer = row.llama_tokens_per_second > 0;
    fmt::print("{:>8} {:>10.1f} {:>7.0f}% {:>8.1f}% {:>12.1f} {:>12.1f} {:>11.0f} {:>11} {:>6}\n", row.depth,
               row.tokens_per_second, 100 * row.tokens_per_second / first, row.percent, megabytes(row.memory_bytes),
               megabytes(row.workspace_bytes), megabytes(row.peak_bytes),
               peer ? fmt::format("{:.1f}", row.llama_tokens_per_second) : "-",
               peer ? fmt::format("{:.2f}x", row.tokens_per_second / row.llama_tokens_per_second) : "-");
    std::fflush(stdout);
  };
  const InferenceBenchResult result = BenchInference(options, json ? std::function<void(const DepthResult&)>() : print);
  if (json) {
    fmt::print("{}\n", ToJson(options, result).dump(2));
    return;
  }
  fmt::print("\nmodel: {}, {:.1f}M parameters, {} weights ({:.1f} MB a token), loaded in {:.2f} s; {} attention",
             result.model, static_cast<double>(result.parameters) * 1e-6, NameOf(result.kind),
             megabytes(result.weight_bytes), result.load_seconds, NameOf(options.attention));
  if (result.block_length > 0) fmt::print(", blocks of {}, k = {}", result.block_length, result.top_k);
  fmt::print("\nmachine: {:.1f} GB/s read, {:.0f} GOP/s int8, {:.0f} GFLOP/s f32, {} threads, {}\n",
             result.machine.read_gbs, result.int8_gops, result.machine.f32_gflops, result.threads,
             ActiveInstructionSet().name);
  fmt::print("the limit is {}\n", decode ? "the memory's read bandwidth (a model that fits the caches can exceed it)"
                                         : "the processor's peak for the weights' kind");
}

void Add(CLI::App& bench, InferencePhase phase, const char* name, const char* what) {
  CLI::App* verb = bench.add_subcommand(name, what);
  auto options = std::make_shared<InferenceBenchOptions>();
  auto weights = std::make_shared<std::string>();
  auto attention = std::make_shared<std::string>("landmark");
  auto json = std::make_shared<bool>(false);
  options->phase = phase;
  verb->add_option("-m,--model", options->model, "Hugging Face directory, GGUF file or llama2.c file");
  verb->add_option("--random", options->random, "Random weights in the shape of a known model: 1.1B, 110M or 15M")
      ->check(CLI::IsMember(RandomModelShapes()));
  verb->add_option("--weights", *weights, "f32, f16, int8 or int4; default: as stored")
      ->check(CLI::IsMember({"f32", "f16", "int8", "int4"}));
  verb->add_option("--attention", *attention, "landmark or full")
      ->check(CLI::IsMember({"landmark", "full"}))
      ->capture_default_str();
  verb->add_option("--depth", options->depths, "Tokens in the context before measuring")
      ->delimiter(',')
      ->capture_default_str();
  verb->add_option("-k", options->top_k, "Blocks that each query retrieves")->capture_default_str();
  verb->add_option("--block", options->block_length, "Tokens of a block, for models without landmarks")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  verb->add_option("--chunk", options->chunk_length, "Tokens read at once")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  verb->add_option("--tokens", options->tokens, "Tokens measured at each depth; default 64 decoded, 512 read");
  verb->add_option("--rounds", options->rounds, "Repetitions, the best counts")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  verb->add_option("--llama-bench", options->llama_bench, "llama.cpp's program to compare with, on the same weights")
      ->envname("LLAMA_BENCH");
  verb->add_option("--llama-depth", options->llama_depths,
                   "Depths at which it is compared; it needs minutes for deep ones")
      ->delimiter(',')
      ->capture_default_str();
  verb->add_flag("--json", *json, "Print JSON");
  verb->footer(
      fmt::format("Examples:\n  cairn bench {} --random 1.1B\n"
                  "  LLAMA_BENCH=llama-bench cairn bench {} -m stories15M-q8_0.gguf",
                  name, name));
  verb->callback([=] {
    if (!weights->empty()) options->weights = WeightKindNamed(*weights);
    options->attention = *attention == "full" ? AttentionKind::kFull : AttentionKind::kLandmark;
    Run(*options, *json);
  });
}

}  // namespace

void AddInferenceBenches(CLI::App& bench) {
  Add(bench, InferencePhase::kDecode, "decode", "Speed of generating, token by token, at several context depths");
  Add(bench, InferencePhase::kPrefill, "prefill", "Speed of reading a prompt at several context depths");
}

}  // namespace cairn
