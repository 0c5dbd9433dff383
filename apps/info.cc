// cairn info: what this build and this machine offer.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "apps/verbs.h"
#include "base/cpu.h"
#include "base/threads.h"

namespace cairn {

void AddInfoVerb(CLI::App& root, int&) {
  CLI::App* verb = root.add_subcommand("info", "Show the version, the processor and the instruction sets");
  auto json = std::make_shared<bool>(false);
  verb->add_flag("--json", *json, "Print JSON");
  verb->footer("Example:\n  cairn info\n  CAIRN_ISA=avx2 cairn info");
  verb->callback([json] {
    nlohmann::ordered_json out;
    out["version"] = CAIRN_VERSION;
    out["processor"] = ProcessorName();
    out["threads"] = ThreadCount();
    out["instruction_set"] = ActiveInstructionSet().name;
    for (const auto& set : InstructionSets()) out["instruction_sets"].push_back(set.name);
    if (*json) {
      fmt::print("{}\n", out.dump(2));
      return;
    }
    std::string sets;
    for (const auto& set : InstructionSets()) sets += (sets.empty() ? "" : ", ") + set.name;
    fmt::print(
        "cairn {}\nprocessor         {}\nthreads           {}  (CAIRN_THREADS)\ninstruction set   {}  (CAIRN_ISA; this "
        "machine has: {})\n",
        CAIRN_VERSION, ProcessorName(), ThreadCount(), ActiveInstructionSet().name, sets);
  });
}

}  // namespace cairn
