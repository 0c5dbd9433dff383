#include "eval/retrieval_plots.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <set>

#include "plot/heat_map.h"
#include "plot/line_chart.h"

namespace cairn {

namespace {

// "4K", "1M" where it is even.
std::string LengthName(size_t length) {
  if (length % (1 << 20) == 0) return fmt::format("{}M", length >> 20);
  return length % 1024 == 0 ? fmt::format("{}K", length >> 10) : std::to_string(length);
}

}  // namespace

std::string DrawAccuracy(std::span<const TrialSum> sums, const std::string& title, const std::string& unit) {
  LineChart chart;
  chart.title = title;
  chart.x_label = "length, " + unit;
  chart.y_label = "per cent of the trials";
  chart.log_x = true;
  chart.y_range = {0, 100};
  ChartSeries right{"answer right", {}, LineStyle::kDots, 0}, low{"95% interval", {}, LineStyle::kFaint, 0},
      high{"", {}, LineStyle::kFaint, 0}, found{"block found", {}, LineStyle::kDashed, 1};
  for (const TrialSum& sum : sums) {
    const auto x = static_cast<double>(sum.length);
    const Interval interval = WilsonInterval(sum.right, sum.trials);
    right.points.push_back({x, 100 * sum.accuracy()});
    low.points.push_back({x, 100 * interval.low});
    high.points.push_back({x, 100 * interval.high});
    if (sum.choices > 0) {
      found.points.push_back({x, 100 * static_cast<double>(sum.found) / static_cast<double>(sum.choices)});
    }
  }
  chart.series = {low, high, right};
  if (!found.points.empty()) chart.series.push_back(found);
  return DrawLineChart(chart);
}

std::string DrawAccuracyHeat(std::span<const TrialSum> sums, const std::string& title, const std::string& unit) {
  std::set<size_t> lengths;
  std::set<double> depths;
  for (const TrialSum& sum : sums) {
    lengths.insert(sum.length);
    depths.insert(sum.depth);
  }
  HeatMap map;
  map.title = title;
  map.x_label = "length, " + unit;
  map.y_label = "depth of the fact";
  for (const size_t length : lengths) map.columns.push_back(LengthName(length));
  for (const double depth : depths) {
    map.rows.push_back(fmt::format("{:.3g}", depth));
    for (const size_t length : lengths) {
      double value = std::numeric_limits<double>::quiet_NaN();
      for (const TrialSum& sum : sums) {
        if (sum.length == length && sum.depth == depth) value = sum.accuracy();
      }
      map.values.push_back(value);
    }
  }
  return DrawHeatMap(map);
}

}  // namespace cairn
