// cairn plot: loss curves of runs as a picture.
#include <fmt/format.h>

#include "apps/verbs.h"
#include "io/file.h"
#include "train/loss_plot.h"

namespace cairn {

void AddPlotVerb(CLI::App& root, int&) {
  CLI::App* verb = root.add_subcommand("plot", "Draw the losses of training runs as an SVG picture");
  struct Options {
    std::vector<std::filesystem::path> logs;
    std::filesystem::path output;
    std::string x = "steps";
    LossPlotOptions plot;
  };
  auto options = std::make_shared<Options>();
  verb->add_option("LOG", options->logs, "Logs of runs (log.jsonl), or their output directories")->required();
  verb->add_option("-o,--output", options->output, "SVG file to write")->required();
  verb->add_option("--x", options->x, "What the horizontal axis counts")
      ->check(CLI::IsMember({"steps", "tokens"}))
      ->capture_default_str();
  verb->add_option("--smooth", options->plot.smoothing,
                   "Width of the moving mean of the training loss, part of the run")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  verb->add_option("--title", options->plot.title, "Title of the picture")->capture_default_str();
  verb->footer("Example:\n  cairn plot runs/books-landmark runs/books-full -o loss.svg");
  verb->callback([options] {
    options->plot.over_tokens = options->x == "tokens";
    std::vector<RunCurves> runs;
    for (const auto& path : options->logs) {
      std::error_code ignored;
      runs.push_back(ReadRunCurves(std::filesystem::is_directory(path, ignored) ? path / "log.jsonl" : path));
    }
    WriteFileAtomically(options->output, DrawLossPlot(runs, options->plot));
    fmt::print("wrote {}\n", options->output.string());
  });
}

}  // namespace cairn
