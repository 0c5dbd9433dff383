// cairn bench: measures Cairn as a part of what the machine can do.
#include "apps/bench.h"

#include <nlohmann/json.hpp>

#include "apps/verbs.h"
#include "base/cpu.h"
#include "base/threads.h"

namespace cairn {

nlohmann::ordered_json BenchHead(const std::string& benchmark) {
  nlohmann::ordered_json head;
  head["benchmark"] = benchmark;
  head["processor"] = ProcessorName();
  head["instruction_set"] = ActiveInstructionSet().name;
  head["threads"] = ThreadCount();
  return head;
}

void AddBenchVerb(CLI::App& root, int&) {
  CLI::App* verb = root.add_subcommand("bench", "Measure speed against the machine's limits");
  verb->require_subcommand(1);
  verb->footer("Example:\n  cairn bench attention --quick");
  AddAttentionBench(*verb);
  AddIndexBench(*verb);
  AddInferenceBenches(*verb);
  AddMatrixBench(*verb);
  AddMemoryBench(*verb);
  AddTrainBench(*verb);
}

}  // namespace cairn
