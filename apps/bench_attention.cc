// cairn bench attention.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "apps/bench.h"
#include "base/cpu.h"
#include "base/error.h"
#include "bench/attention_bench.h"

namespace cairn {

namespace {

using Json = nlohmann::ordered_json;

Json ToJson(const AttentionBenchOptions& options, const AttentionBenchResult& result) {
  Json out = BenchHead("attention");
  out["f32_peak_gflops"] = result.machine.f32_gflops;
  out["read_gb_per_s"] = result.machine.read_gbs;
  out["batch"] = options.batch;
  out["heads"] = options.heads;
  out["kv_heads"] = options.kv_heads;
  out["dim"] = options.dim;
  out["block_length"] = options.block_length;
  for (const AttentionBenchRow& row : result.rows) {
    Json r;
    r["length"] = row.length;
    r["attention"] = row.landmarks ? "landmark" : "full";
    r["forward_ms"] = row.forward_ms;
    r["forward_percent_of_peak"] = row.forward_percent;
    r["forward_backward_ms"] = row.both_ms;
    r["forward_backward_percent_of_peak"] = row.both_percent;
    r["extra_mb"] = row.extra_mb;
    r["reference_ratio"] = row.reference_ratio ? Json(*row.reference_ratio) : Json();
    out["rows"].push_back(r);
  }
  return out;
}

void PrintTable(const AttentionBenchOptions& options, const AttentionBenchResult& result) {
  fmt::print("machine: {:.0f} GFLOP/s f32, {:.1f} GB/s read, {} threads, {}\n", result.machine.f32_gflops,
             result.machine.read_gbs, result.threads, ActiveInstructionSet().name);
  fmt::print(
      "attention: batch {}, {} heads of {}, {} KV heads, blocks of {} and a landmark; full = plain causal "
      "attention\n\n",
      options.batch, options.heads, options.dim, options.kv_heads, options.block_length);
  fmt::print("{:>7}  {:<9} {:>11} {:>7} {:>14} {:>7} {:>10} {:>12}\n", "length", "attention", "forward ms", "% peak",
             "+ backward ms", "% peak", "extra MB", "vs naive");
  for (const AttentionBenchRow& row : result.rows) {
    fmt::print("{:>7}  {:<9} {:>11.2f} {:>6.1f}% {:>14.2f} {:>6.1f}% {:>10.2f} {:>12}\n", row.length,
               row.landmarks ? "landmark" : "full", row.forward_ms, row.forward_percent, row.both_ms, row.both_percent,
               row.extra_mb, row.reference_ratio ? fmt::format("{:.0f}x", *row.reference_ratio) : "-");
  }
  fmt::print(
      "\nPercent of the f32 peak measured in this run, counting 2 T^2 d operations a head forward and 2.5 times that "
      "backward.\n"
      "extra MB: saved state and scratch. vs naive: how many times faster than the one-threaded reference.\n");
}

}  // namespace

void AddAttentionBench(CLI::App& bench) {
  CLI::App* verb = bench.add_subcommand("attention", "Landmark and plain attention, forward and backward");
  auto options = std::make_shared<AttentionBenchOptions>();
  auto json = std::make_shared<bool>(false);
  auto quick = std::make_shared<bool>(false);
  auto kv_heads = std::make_shared<size_t>(0);
  verb->add_option("--lengths", options->lengths, "Sequence lengths")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  verb->add_option("--batch", options->batch, "Sequences")->check(CLI::Range(1, 4096))->capture_default_str();
  verb->add_option("--heads", options->heads, "Query heads")->check(CLI::Range(1, 1024))->capture_default_str();
  verb->add_option("--kv-heads", *kv_heads, "KV heads; must divide the query heads (default: as many)")
      ->check(CLI::Range(1, 1024));
  verb->add_option("--dim", options->dim, "Dimension of a head")->check(CLI::Range(1, 256))->capture_default_str();
  verb->add_option("--block", options->block_length, "Ordinary tokens in a block")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  verb->add_option("--seconds", options->min_seconds, "Shortest time of each measurement")
      ->check(CLI::Range(0.0, 600.0))
      ->capture_default_str();
  verb->add_option("--reference-limit", options->reference_limit,
                   "Longest sequence that the naive reference is timed at")
      ->capture_default_str();
  verb->add_flag("--quick", *quick, "Only lengths 512 and 2048, and short measurements");
  verb->add_flag("--json", *json, "Print JSON");
  verb->footer("Example:\n  cairn bench attention --lengths 512,2048 --heads 8 --dim 64 --block 50");
  verb->callback([=] {
    options->kv_heads = *kv_heads == 0 ? options->heads : *kv_heads;
    if (options->heads % options->kv_heads != 0) {
      Fail("{} query heads cannot share {} KV heads evenly; choose a divisor", options->heads, options->kv_heads);
    }
    if (*quick) {
      options->lengths = {512, 2048};
      options->min_seconds = 0.3;
      options->reference_limit = 512;
    }
    const AttentionBenchResult result = BenchAttention(*options);
    if (*json) {
      fmt::print("{}\n", ToJson(*options, result).dump(2));
    } else {
      PrintTable(*options, result);
    }
  });
}

}  // namespace cairn
