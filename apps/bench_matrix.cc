// cairn bench matrix.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "apps/bench.h"
#include "base/cpu.h"
#include "base/error.h"
#include "bench/packed_matrix_bench.h"

namespace cairn {

namespace {

using Json = nlohmann::ordered_json;

Json ToJson(const MatrixBenchResult& result) {
  Json out = BenchHead("matrix");
  out["f32_peak_gflops"] = result.machine.f32_gflops;
  out["int8_peak_gops"] = result.int8_gops;
  out["read_gbs"] = result.machine.read_gbs;
  out["pack_gbs"] = result.pack_gbs;
  out["rows"] = Json::array();
  for (const MatrixBenchRow& row : result.rows) {
    out["rows"].push_back({{"kind", NameOf(row.kind)},
                           {"rows", row.size.rows},
                           {"columns", row.size.columns},
                           {"m", row.m},
                           {"microseconds", row.microseconds},
                           {"gops", row.gops},
                           {"gbs", row.gbs},
                           {"percent_of_peak", row.compute_percent},
                           {"percent_of_bandwidth", row.bandwidth_percent}});
  }
  return out;
}

void Print(const MatrixBenchResult& result) {
  fmt::print("machine: {:.0f} GFLOP/s f32, {:.0f} GOP/s int8, {:.1f} GB/s, {} threads, {}\n", result.machine.f32_gflops,
             result.int8_gops, result.machine.read_gbs, result.threads, ActiveInstructionSet().name);
  if (result.pack_gbs > 0) fmt::print("packing q8_0: {:.2f} GB/s\n", result.pack_gbs);
  fmt::print("\n{:<6} {:>6} {:>6} {:>5} {:>10} {:>9} {:>7} {:>8} {:>8}\n", "kind", "n", "k", "m", "us", "GOP/s", "peak",
             "GB/s", "memory");
  for (const MatrixBenchRow& row : result.rows) {
    fmt::print("{:<6} {:>6} {:>6} {:>5} {:>10.1f} {:>9.1f} {:>6.1f}% {:>8.2f} {:>7.1f}%\n", NameOf(row.kind),
               row.size.rows, row.size.columns, row.m, row.microseconds, row.gops, row.compute_percent, row.gbs,
               row.bandwidth_percent);
  }
}

}  // namespace

void AddMatrixBench(CLI::App& bench) {
  CLI::App* verb = bench.add_subcommand("matrix", "Products with packed weights, as in inference");
  auto options = std::make_shared<MatrixBenchOptions>();
  auto kinds = std::make_shared<std::vector<std::string>>();
  auto size = std::make_shared<std::vector<size_t>>();
  auto json = std::make_shared<bool>(false);
  verb->add_option("--kind", *kinds, "int8, int4, f16 or f32; several are allowed (default: all)")
      ->check(CLI::IsMember({"int8", "int4", "f16", "f32"}));
  verb->add_option("--size", *size, "Outputs and inputs of one matrix (default: those of a 1B model)")
      ->expected(2)
      ->check(CLI::Range(32, 1 << 17));
  verb->add_option("--m", options->rows, "Rows multiplied at once; several are allowed")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  verb->add_option("--megabytes", options->megabytes, "Weights that take turns, to defeat the caches")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  verb->add_option("--seconds", options->min_seconds, "Shortest time of each measurement")
      ->check(CLI::Range(0.0, 600.0))
      ->capture_default_str();
  verb->add_flag("--json", *json, "Print JSON");
  verb->footer("Example:\n  cairn bench matrix --kind int8 --size 2048 2048 --m 1 128");
  verb->callback([=] {
    if (!kinds->empty()) {
      options->kinds.clear();
      for (const std::string& name : *kinds) options->kinds.push_back(*WeightKindNamed(name));
    }
    if (!size->empty()) {
      options->sizes = {{(*size)[0], (*size)[1]}};
      // Rows of quantised types are whole blocks.
      if ((*size)[1] % 32 != 0) Fail("--size {} {}: the inputs must be a multiple of 32", (*size)[0], (*size)[1]);
    }
    const MatrixBenchResult result = BenchMatrices(*options);
    if (*json) {
      fmt::print("{}\n", ToJson(result).dump(2));
    } else {
      Print(result);
    }
  });
}

}  // namespace cairn
