// cairn golden: runs golden files of the authors' code again and compares.
#include <fmt/format.h>

#include <cmath>

#include <nlohmann/json.hpp>

#include "apps/verbs.h"
#include "base/error.h"
#include "eval/golden.h"

namespace cairn {

namespace {

void PrintReport(const GoldenReport& report) {
  for (const GoldenCheck& check : report.checks) {
    fmt::print("{:<40} {:<22} {:<12} abs {:9.2e}  rel {:9.2e}  {}\n", report.file, check.implementation, check.tensor,
               check.absolute_error, check.relative_error,
               !check.ok                     ? "FAIL"
               : std::isinf(check.tolerance) ? "not judged"
                                             : "ok");
  }
}

nlohmann::ordered_json ToJson(const GoldenReport& report) {
  nlohmann::ordered_json out{{"file", report.file}, {"kind", report.kind}, {"ok", report.ok()}};
  for (const GoldenCheck& check : report.checks) {
    // JSON has no infinity: an error that is not finite becomes null.
    const auto number = [](double x) {
      return std::isfinite(x) ? nlohmann::ordered_json(x) : nlohmann::ordered_json();
    };
    out["checks"].push_back({{"implementation", check.implementation},
                             {"tensor", check.tensor},
                             {"absolute_error", number(check.absolute_error)},
                             {"relative_error", number(check.relative_error)},
                             {"tolerance", check.tolerance},
                             {"ok", check.ok}});
  }
  return out;
}

}  // namespace

void AddGoldenVerb(CLI::App& root, int& exit_code) {
  CLI::App* verb = root.add_subcommand("golden", "Run golden files of the authors' code again and compare");
  auto files = std::make_shared<std::vector<std::string>>();
  auto json = std::make_shared<bool>(false);
  auto one = std::make_shared<bool>(false);
  verb->add_option("FILE", *files, "Golden files (safetensors)")->required();
  verb->add_flag("--one-isa", *one,
                 "Check only the active instruction set (see CAIRN_ISA), not every one of this machine");
  verb->add_flag("--json", *json, "Print JSON");
  verb->footer(
      "Prints one line a tensor with the largest absolute error, the same relative to the largest magnitude, and\n"
      "ok or FAIL. The exit code is 1 when anything fails.\n\n"
      "Example:\n  cairn golden ../shared/golden/attention_*.safetensors");
  verb->callback([=, &exit_code] {
    // A forced instruction set is the only one that is checked.
    const char* forced = std::getenv("CAIRN_ISA");
    const bool every = !*one && (forced == nullptr || *forced == '\0');
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    size_t passed = 0;
    for (const std::string& file : *files) {
      GoldenReport report;
      try {
        report = RunGolden(file, every);
      } catch (const Error& error) {
        // The other files are still worth running.
        std::fflush(stdout);
        fmt::print(stderr, "cairn: error: {}\n", error.what());
        continue;
      }
      if (*json) {
        all.push_back(ToJson(report));
      } else {
        PrintReport(report);
      }
      passed += report.ok();
    }
    if (*json) {
      fmt::print("{}\n", all.dump(2));
    } else {
      fmt::print("{} of {} files ok\n", passed, files->size());
    }
    exit_code = passed == files->size() ? 0 : 1;
  });
}

}  // namespace cairn
