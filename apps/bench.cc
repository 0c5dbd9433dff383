// cairn bench: measures Cairn as a part of what the machine can do.
#include "apps/bench.h"

#include "apps/verbs.h"

namespace cairn {

void AddBenchVerb(CLI::App& root, int&) {
  CLI::App* verb = root.add_subcommand("bench", "Measure speed against the machine's limits");
  verb->require_subcommand(1);
  verb->footer("Example:\n  cairn bench attention --quick");
  AddAttentionBench(*verb);
  AddInferenceBenches(*verb);
  AddMatrixBench(*verb);
  AddMemoryBench(*verb);
  AddTrainBench(*verb);
}

}  // namespace cairn
