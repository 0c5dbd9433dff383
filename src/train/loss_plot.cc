#include "train/loss_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/file.h"
#include "plot/line_chart.h"

namespace cairn {

namespace {

// Mean over a window around each point, narrower at the ends so that it stays centred.
std::vector<LossPoint> Smoothed(const std::vector<LossPoint>& points, double share) {
  const auto reach = static_cast<size_t>(share * static_cast<double>(points.size()) / 2);
  std::vector<double> sums(points.size() + 1, 0);
  for (size_t i = 0; i < points.size(); ++i) sums[i + 1] = sums[i] + points[i].loss;
  std::vector<LossPoint> result = points;
  for (size_t i = 0; i < points.size(); ++i) {
    const size_t r = std::min({reach, i, points.size() - 1 - i});
    result[i].loss = (sums[i + r + 1] - sums[i - r]) / static_cast<double>(2 * r + 1);
  }
  return result;
}

double XOf(const LossPoint& point, bool over_tokens) { return over_tokens ? point.tokens : point.step; }

// At most as many points as can be told apart.
std::vector<LossPoint> Thinned(const std::vector<LossPoint>& points) {
  constexpr size_t kMost = 1600;
  if (points.size() <= kMost) return points;
  std::vector<LossPoint> result;
  for (size_t i = 0; i < kMost; ++i) result.push_back(points[i * (points.size() - 1) / (kMost - 1)]);
  return result;
}

// The lowest loss with some air, and the top of what matters: the untrained model's peak would flatten everything else.
std::pair<double, double> LossRange(const std::vector<RunCurves>& runs) {
  std::vector<double> losses;
  for (const RunCurves& run : runs) {
    for (const auto* points : {&run.training, &run.validation}) {
      for (const LossPoint& point : *points) losses.push_back(point.loss);
    }
  }
  std::sort(losses.begin(), losses.end());
  const double low = losses.front();
  const double high = losses[std::min(losses.size() - 1, losses.size() * 97 / 100)];
  const double air = std::max(0.08 * (high - low), 1e-3);
  return {low - air, high + 2 * air};
}

std::vector<ChartPoint> ChartPoints(const std::vector<LossPoint>& points, bool over_tokens) {
  std::vector<ChartPoint> result;
  for (const LossPoint& point : points) result.push_back({XOf(point, over_tokens), point.loss});
  return result;
}

}  // namespace

RunCurves ReadRunCurves(const std::filesystem::path& log) {
  RunCurves run;
  const std::filesystem::path full = std::filesystem::absolute(log);
  run.name = full.filename() == "log.jsonl" ? full.parent_path().filename().string() : full.stem().string();
  const std::string text = ReadTextFile(log);
  size_t begin = 0;
  for (size_t number = 1; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const auto record = nlohmann::json::parse(text.substr(begin, end - begin), nullptr, false);
    const bool unfinished = end == text.size();  // a run may be writing it just now
    begin = end + 1;
    if (!record.is_object()) {
      if (unfinished) break;
      Fail("'{}', line {}: not a JSON object; is it the log of a run?", log.string(), number);
    }
    const auto type = record.find("type");
    if (type == record.end() || (*type != "step" && *type != "validation")) continue;
    LossPoint point{};
    for (const auto& [key, value] :
         {std::pair("step", &point.step), std::pair("tokens", &point.tokens), std::pair("loss", &point.loss)}) {
      const auto found = record.find(key);
      if (found == record.end() || !found->is_number()) Fail("'{}', line {}: {} is missing", log.string(), number, key);
      *value = found->get<double>();
    }
    (*type == "step" ? run.training : run.validation).push_back(point);
  }
  if (run.training.empty() && run.validation.empty()) Fail("'{}' has no losses yet", log.string());
  return run;
}

std::string DrawLossPlot(const std::vector<RunCurves>& runs, const LossPlotOptions& options) {
  CAIRN_CHECK(!runs.empty());
  LineChart chart;
  chart.title = options.title;
  chart.x_label = options.over_tokens ? "tokens trained on" : "steps";
  chart.y_label = "cross-entropy, nats a token";
  chart.y_range = LossRange(runs);
  double x_high = 1;
  for (size_t i = 0; i < runs.size(); ++i) {
    const RunCurves& run = runs[i];
    for (const auto* points : {&run.training, &run.validation}) {
      for (const LossPoint& point : *points) x_high = std::max(x_high, XOf(point, options.over_tokens));
    }
    const auto add = [&](const std::string& name, const std::vector<LossPoint>& points, LineStyle style) {
      if (points.empty()) return;
      chart.series.push_back({name, ChartPoints(points, options.over_tokens), style, static_cast<int>(i)});
    };
    if (run.training.size() > 1 && options.smoothing > 0) add("", Thinned(run.training), LineStyle::kFaint);
    add(run.name + ", training", Thinned(Smoothed(run.training, options.smoothing)), LineStyle::kLine);
    if (run.validation.empty()) continue;
    add(fmt::format("{}, validation (last {:.3f})", run.name, run.validation.back().loss), run.validation,
        LineStyle::kDashed);
  }
  chart.x_range = {0, x_high};
  return DrawLineChart(chart);
}

}  // namespace cairn
