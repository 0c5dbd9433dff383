// Loss curves of runs as an SVG picture, out of their logs.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace cairn {

struct LossPoint {
  double step, tokens, loss;
};

struct RunCurves {
  std::string name;
  std::vector<LossPoint> training, validation;
};

// The name is that of the log's directory, or of the file when it is not called log.jsonl. Throws Error when the file
// is no log or has no losses.
RunCurves ReadRunCurves(const std::filesystem::path& log);

struct LossPlotOptions {
  bool over_tokens = false;  // else over steps
  double smoothing = 0.02;   // width of the moving mean of the training loss, as a part of the run; 0: none
  std::string title = "Loss";
};

// Training loss as measured (faint) and smoothed, validation loss as dots on a broken line; one colour a run.
std::string DrawLossPlot(const std::vector<RunCurves>& runs, const LossPlotOptions& options);

}  // namespace cairn
