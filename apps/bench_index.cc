// cairn bench index.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/bench.h"
#include "apps/session_flags.h"
#include "base/error.h"
#include "bench/index_bench.h"

namespace cairn {

namespace {

using Json = nlohmann::ordered_json;

struct Options {
  SessionFlags session;
  LandmarkSource source;
  IndexBenchOptions bench;
  std::string memory;
  std::vector<std::string> kinds;
  uint64_t ram = uint64_t{512} << 20;
  bool json = false;
};

std::vector<LandmarkSample> Sample(const Options& options) {
  const auto model = LoadModel(options.session);
  const auto tokenizer = LoadTokenizerOf(options.session, *model);
  LandmarkSource source = options.source;
  source.session = OptionsFrom(options.session, *model);
  source.ram = options.ram;
  if (!options.memory.empty()) {
    source.memory = options.memory;
    return SampleLandmarks(model, tokenizer, source);
  }
  source.memory = std::filesystem::temp_directory_path() / fmt::format("cairn-bench-{}.cairn", getpid());
  std::error_code ignored;
  try {
    auto samples = SampleLandmarks(model, tokenizer, source);
    std::filesystem::remove(source.memory, ignored);
    return samples;
  } catch (...) {
    std::filesystem::remove(source.memory, ignored);
    throw;
  }
}

Json ToJson(const IndexBenchRow& row) {
  return {{"landmarks", row.size},
          {"index", NameOf(row.kind)},
          {"recall", row.recall},
          {"recall_in_chunks", row.chunk_recall},
          {"recall_of_worst_head", row.worst_recall},
          {"recall_by_layer", row.layer_recall},
          {"microseconds_alone", row.one_us},
          {"microseconds_in_a_chunk", row.chunk_us},
          {"microseconds_to_append", row.append_us},
          {"bytes_a_landmark", row.bytes}};
}

void Run(Options options) {
  for (const std::string& name : options.kinds) options.bench.kinds.push_back(*IndexKindNamed(name));
  options.bench.top_k = options.session.options.top_k;
  const std::vector<LandmarkSample> samples = Sample(options);
  Json out = BenchHead("index");
  out["threads"] = 1;
  out["k"] = options.bench.top_k;
  out["dim"] = samples[0].keys.dim();
  out["heads"] = samples.size();
  out["first_layer"] = samples[0].layer;
  out["queries_a_head"] = samples[0].query_count();
  if (!options.json) {
    fmt::print("{} landmarks of {} heads, {} numbers each; {} queries a head; k = {}; one thread\n",
               samples[0].keys.size(), samples.size(), samples[0].keys.dim(), samples[0].query_count(),
               options.bench.top_k);
    fmt::print("{:>9} {:<13} {:>8} {:>10} {:>10} {:>12} {:>9} {:>9} {:>10} {:>11}\n", "landmarks", "index", "recall",
               "in chunks", "worst head", "worst layer", "us alone", "us chunk", "us append", "bytes/key");
  }
  BenchIndexes(samples, options.bench, [&](const IndexBenchRow& row) {
    out["sizes"].push_back(ToJson(row));
    if (options.json) return;
    fmt::print("{:>9} {:<13} {:>8.4f} {:>10.4f} {:>10.4f} {:>12.4f} {:>9.2f} {:>9.2f} {:>10.2f} {:>11.0f}\n", row.size,
               NameOf(row.kind), row.recall, row.chunk_recall, row.worst_recall,
               *std::min_element(row.layer_recall.begin(), row.layer_recall.end()), row.one_us, row.chunk_us,
               row.append_us, row.bytes);
    std::fflush(stdout);
  });
  if (options.json) fmt::print("{}\n", out.dump(2));
}

}  // namespace

void AddIndexBench(CLI::App& bench) {
  CLI::App* verb = bench.add_subcommand("index", "Speed and recall of the indexes of landmarks");
  auto options = std::make_shared<Options>();
  options->session.AddModel(*verb);
  verb->add_option("TEXT", options->source.texts, "Text files or folders; their end gives the queries")->required();
  verb->add_option("--tokens", options->source.tokens, "Tokens of the text to remember")
      ->check(CLI::Range(1000, 1 << 30))
      ->capture_default_str();
  verb->add_option("--memory", options->memory,
                   "Search the landmarks of this memory instead; made from the text where there is none");
  verb->add_option("--ram", options->ram, "RAM for blocks and landmarks, e.g. 512M")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  verb->add_option("--sizes", options->bench.sizes, "Landmarks among which to search; the first ones of the memory")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 26))
      ->capture_default_str();
  verb->add_option("--kind", options->kinds, "exact, int8, hierarchical, ivf; default: all there are")
      ->delimiter(',')
      ->check(CLI::IsMember({"exact", "int8", "hierarchical", "ivf"}));
  options->session.AddAttention(*verb);
  verb->add_flag("--json", options->json, "Print JSON");
  verb->footer("Example:\n  cairn bench index -m model books/ --tokens 250000");
  verb->callback([options] { Run(*options); });
}

}  // namespace cairn
