// Charts of lines over a plain or logarithmic axis, as SVG pictures: one panel or several, one above the other.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cairn {

struct ChartPoint {
  double x = 0, y = 0;
};

enum class LineStyle {
  kLine,
  kDots,    // a line with a dot at each point
  kDashed,  // a broken line with a dot at each point
  kFaint,   // a thin pale line: raw values behind a smoothed line
};

struct ChartSeries {
  std::string name;                // for the legend; empty: not listed
  std::vector<ChartPoint> points;  // by rising x. One that is not finite breaks the line
  LineStyle style = LineStyle::kDots;
  int colour = -1;  // its number in the palette; -1: the number of the series
};

struct LineChart {
  std::string title, x_label, y_label;
  bool log_x = false, log_y = false;                 // values must be above 0; others are left out
  std::optional<std::pair<double, double>> x_range;  // else what the points span
  std::optional<std::pair<double, double>> y_range;  // else the same with some air, from 0 where that is near
  std::vector<double> x_ticks;                       // else round numbers
  std::vector<ChartSeries> series;
};

// Values outside y_range are drawn at its edge. A chart without points has an empty frame.
std::string DrawLineChart(const LineChart& chart);

// One picture with a panel for each chart, each with its own axes, under a common title (empty: none).
std::string DrawLineCharts(const std::string& title, const std::vector<LineChart>& charts);

}  // namespace cairn
