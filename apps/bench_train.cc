// cairn bench train.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "apps/bench.h"
#include "base/cpu.h"
#include "base/error.h"
#include "bench/train_bench.h"

namespace cairn {

namespace {

using Json = nlohmann::ordered_json;

Json ToJson(const TrainBenchOptions& options, const TrainBenchResult& result) {
  Json out = BenchHead("train");
  out["f32_peak_gflops"] = result.machine.f32_gflops;
  out["attention"] = std::string(NameOf(options.attention));
  out["parameters"] = result.parameters;
  out["rows"] = options.rows;
  out["context"] = options.context;
  out["step_ms"] = result.step_ms;
  out["mean_step_ms"] = result.mean_step_ms;
  out["tokens_per_second"] = result.tokens_per_second;
  out["gflop_per_step"] = result.gflop;
  out["percent_of_peak"] = result.percent;
  out["activation_bytes_per_token"] = result.bytes_per_token;
  for (size_t i = 0; i < result.operations.size(); ++i) {
    out["operations_ms"][std::string(NameOf(static_cast<Operation>(i)))] = result.operations[i];
  }
  return out;
}

void Print(const TrainBenchOptions& options, const TrainBenchResult& result) {
  fmt::print("machine: {:.0f} GFLOP/s f32, {} threads, {}\n", result.machine.f32_gflops, result.threads,
             ActiveInstructionSet().name);
  fmt::print("model: {} layers, width {}, {} heads, {} KV heads, FFN {}, vocabulary {}: {:.1f}M parameters\n",
             options.layers, options.hidden, options.heads, options.kv_heads, options.inner, options.vocab,
             static_cast<double>(result.parameters) * 1e-6);
  fmt::print("step: {} sequences of {}, {} attention{}\n\n", options.rows, options.context, NameOf(options.attention),
             options.recompute ? ", recomputation" : "");
  fmt::print("{:.0f} tokens/s, {:.1f}% of the f32 peak ({:.1f} GFLOP in {:.1f} ms, the best step; mean {:.1f} ms)\n",
             result.tokens_per_second, result.percent, result.gflop, result.step_ms, result.mean_step_ms);
  fmt::print("activations: {:.1f} KB a token\n\n{:<16} {:>9} {:>7}\n",
             static_cast<double>(result.bytes_per_token) / 1e3, "operation", "ms", "share");
  for (size_t i = 0; i < result.operations.size(); ++i) {
    fmt::print("{:<16} {:>9.2f} {:>6.1f}%\n", NameOf(static_cast<Operation>(i)), result.operations[i],
               100 * result.operations[i] / result.mean_step_ms);
  }
}

}  // namespace

void AddTrainBench(CLI::App& bench) {
  CLI::App* verb = bench.add_subcommand("train", "A training step of a whole model");
  auto options = std::make_shared<TrainBenchOptions>();
  auto kv_heads = std::make_shared<size_t>(0);
  auto attention = std::make_shared<std::string>("landmark");
  auto json = std::make_shared<bool>(false);
  verb->add_option("--layers", options->layers, "Layers")->check(CLI::Range(1, 200))->capture_default_str();
  verb->add_option("--width", options->hidden, "Width of the model")
      ->check(CLI::Range(2, 16384))
      ->capture_default_str();
  verb->add_option("--heads", options->heads, "Query heads")->check(CLI::Range(1, 256))->capture_default_str();
  verb->add_option("--kv-heads", *kv_heads, "KV heads; must divide the query heads (default: as many)")
      ->check(CLI::Range(1, 256));
  verb->add_option("--ffn", options->inner, "Width of the feed-forward layer")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  verb->add_option("--vocab", options->vocab, "Vocabulary")->check(CLI::Range(2, 1 << 20))->capture_default_str();
  verb->add_option("--context", options->context, "Positions of a sequence")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  verb->add_option("--rows", options->rows, "Sequences of a step")->check(CLI::Range(1, 4096))->capture_default_str();
  verb->add_option("--block", options->block_length, "Ordinary tokens in a block")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  verb->add_option("--attention", *attention, "landmark or full")
      ->check(CLI::IsMember({"landmark", "full"}))
      ->capture_default_str();
  verb->add_flag("--recompute", options->recompute, "Recompute activations in the backward pass");
  verb->add_option("--seconds", options->min_seconds, "Shortest time of the measurement")
      ->check(CLI::Range(0.0, 600.0))
      ->capture_default_str();
  verb->add_flag("--json", *json, "Print JSON");
  verb->footer("Example:\n  cairn bench train --attention full");
  verb->callback([=] {
    options->kv_heads = *kv_heads == 0 ? options->heads : *kv_heads;
    options->attention = *attention == "full" ? AttentionKind::kFull : AttentionKind::kLandmark;
    if (options->hidden % options->heads != 0)
      Fail("--width {} is not a multiple of --heads {}", options->hidden, options->heads);
    const TrainBenchResult result = BenchTrain(*options);
    if (*json) {
      fmt::print("{}\n", ToJson(*options, result).dump(2));
    } else {
      Print(*options, result);
    }
  });
}

}  // namespace cairn
