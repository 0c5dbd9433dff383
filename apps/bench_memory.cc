// cairn bench memory.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/bench.h"
#include "apps/session_flags.h"
#include "base/cpu.h"
#include "base/threads.h"
#include "bench/memory_bench.h"
#include "io/file.h"

namespace cairn {

namespace {

struct Options {
  SessionFlags session;
  MemoryBenchOptions bench;
  std::string memory;
  uint64_t ram = uint64_t{512} << 20;
  std::string svg;
  bool longer = false;
  bool json = false;
};

void Run(const Options& options) {
  const auto model = LoadModel(options.session);
  const auto tokenizer = LoadTokenizerOf(options.session, *model);
  MemoryBenchOptions bench = options.bench;
  bench.session = OptionsFrom(options.session, *model);
  bench.ram = options.ram;
  const bool temporary = options.memory.empty();
  bench.memory = temporary ? std::filesystem::temp_directory_path() / fmt::format("cairn-bench-{}.cairn", getpid())
                           : std::filesystem::path(options.memory);
  if (options.longer) {
    for (const size_t size : {2097152, 4194304, 10485760}) bench.sizes.push_back(size);
  }
  const auto megabytes = [](size_t bytes) { return static_cast<double>(bytes) / 1e6; };
  if (!options.json) {
    fmt::print("{:>9} {:>8} {:>9} {:>7} {:>8} {:>9} {:>6} {:>6} {:>8} {:>8} {:>12} {:>6} {:>9} {:>9}\n", "tokens",
               "blocks", "ingest/s", "open s", "first s", "write/s", "slower", "median", "p50 ms", "p99 ms",
               "disk KB/tok", "hits", "RAM MB", "file MB");
  }
  std::vector<MemoryBenchRow> rows;
  try {
    rows = BenchMemory(model, tokenizer, bench, [&](const MemoryBenchRow& row) {
      if (options.json) return;
      fmt::print(
          "{:>9} {:>8} {:>9.0f} {:>7.2f} {:>8.2f} {:>9.1f} {:>5.2f}x {:>5.2f}x {:>8.2f} {:>8.2f} {:>12.1f} {:>5.0f}% "
          "{:>9.0f} "
          "{:>9.0f}\n",
          row.tokens, row.blocks, row.ingest_tokens_per_second, row.open_seconds, row.first_token_seconds,
          row.decode_tokens_per_second, row.slower_than_first, row.median_slower, row.p50_ms, row.p99_ms,
          row.disk_bytes_per_token / 1e3, row.hit_percent, megabytes(row.resident_bytes), megabytes(row.file_bytes));
      std::fflush(stdout);
    });
  } catch (...) {
    std::error_code ignored;
    if (temporary) std::filesystem::remove(bench.memory, ignored);
    throw;
  }
  std::error_code ignored;
  if (temporary) std::filesystem::remove(bench.memory, ignored);
  if (!options.svg.empty()) {
    const std::string title =
        fmt::format("A memory as it grows: {:.1f}M parameters, --ram {:.0f} MB, {} threads",
                    static_cast<double>(ParameterCount(model->config())) * 1e-6, megabytes(options.ram), ThreadCount());
    WriteFileAtomically(options.svg, DrawMemoryBench(title, rows));
  }
  if (!options.json) {
    fmt::print("\nmodel: {:.1f}M parameters, {} weights ({:.0f} MB); --ram {:.0f} MB; {} threads\n",
               static_cast<double>(ParameterCount(model->config())) * 1e-6, NameOf(model->kind()),
               megabytes(model->weight_bytes()), megabytes(options.ram), ThreadCount());
    return;
  }
  nlohmann::ordered_json out = BenchHead("memory");
  out["parameters"] = ParameterCount(model->config());
  out["weights"] = NameOf(model->kind());
  out["weight_bytes"] = model->weight_bytes();
  out["ram"] = options.ram;
  out["k"] = bench.session.top_k;
  out["index"] = NameOf(bench.session.index);
  out["block_format"] = NameOf(bench.session.block_format);
  for (const MemoryBenchRow& row : rows) {
    out["sizes"].push_back({{"tokens", row.tokens},
                            {"blocks", row.blocks},
                            {"ingest_tokens_per_second", row.ingest_tokens_per_second},
                            {"open_seconds", row.open_seconds},
                            {"first_token_seconds", row.first_token_seconds},
                            {"decode_tokens_per_second", row.decode_tokens_per_second},
                            {"slower_than_first", row.slower_than_first},
                            {"median_slower", row.median_slower},
                            {"p50_ms", row.p50_ms},
                            {"p99_ms", row.p99_ms},
                            {"disk_bytes_per_token", row.disk_bytes_per_token},
                            {"hit_percent", row.hit_percent},
                            {"resident_bytes", row.resident_bytes},
                            {"file_bytes", row.file_bytes}});
  }
  fmt::print("{}\n", out.dump(2));
}

}  // namespace

void AddMemoryBench(CLI::App& bench) {
  CLI::App* verb = bench.add_subcommand("memory", "A memory on disk as it grows to a million tokens");
  auto options = std::make_shared<Options>();
  options->session.AddModel(*verb);
  verb->add_option("TEXT", options->bench.texts, "Text files or folders; repeated where they end")->required();
  verb->add_option("--size", options->bench.sizes, "Tokens in the memory at which to measure, ascending")
      ->delimiter(',')
      ->capture_default_str();
  verb->add_flag("--long", options->longer, "Go on to ten million tokens");
  verb->add_option("--ram", options->ram, "RAM for blocks and landmarks, e.g. 512M")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  verb->add_option("--memory", options->memory, "Keep the memory as this file; default: a temporary one");
  verb->add_option("--tokens", options->bench.tokens, "Tokens written at each size")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  options->session.AddAttention(*verb);
  verb->add_option("--svg", options->svg, "Draw the table as a picture");
  verb->add_flag("--json", options->json, "Print JSON");
  verb->footer("Example:\n  cairn bench memory -m model books/ --ram 512M");
  verb->callback([options] { Run(*options); });
}

}  // namespace cairn
