#include "plot/line_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "plot/svg.h"

namespace cairn {

namespace {

constexpr double kWidth = 960, kPlotHeight = 400, kPanelPlotHeight = 230;
constexpr double kLeft = 76, kRight = 28, kBottom = 60;
constexpr double kTitleRow = 46, kLegendRow = 20;

// One axis: from values to the pixels between `begin` and `end`.
class Axis {
 public:
  Axis(std::pair<double, double> range, bool log, double begin, double end)
      : low_(range.first), high_(range.second), log_(log), begin_(begin), end_(end) {}
  double low() const { return low_; }
  double high() const { return high_; }
  bool Draws(double value) const { return std::isfinite(value) && (!log_ || value > 0); }
  double At(double value) const {
    value = std::clamp(value, low_, high_);
    const double part = log_ ? std::log(value / low_) / std::log(high_ / low_) : (value - low_) / (high_ - low_);
    return begin_ + part * (end_ - begin_);
  }
  std::vector<double> Ticks(int count) const {
    return log_ ? LogAxisTicks(low_, high_) : AxisTicks(low_, high_, count);
  }

 private:
  double low_, high_;
  bool log_;
  double begin_, end_;
};

// What the drawn points span in one direction; 0 .. 1 (or 1 .. 10) when there are none.
std::pair<double, double> Span(const LineChart& chart, double ChartPoint::*side) {
  const bool log = side == &ChartPoint::x ? chart.log_x : chart.log_y;
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const ChartSeries& series : chart.series) {
    for (const ChartPoint& point : series.points) {
      if (!std::isfinite(point.x) || !std::isfinite(point.y)) continue;
      if ((chart.log_x && point.x <= 0) || (chart.log_y && point.y <= 0)) continue;
      low = std::min(low, point.*side);
      high = std::max(high, point.*side);
    }
  }
  if (low > high) return log ? std::pair(1.0, 10.0) : std::pair(0.0, 1.0);
  if (log) return low == high ? std::pair(low / 2, high * 2) : std::pair(low, high);
  return low == high ? std::pair(low - 0.5, high + 0.5) : std::pair(low, high);
}

std::pair<double, double> YRange(const LineChart& chart) {
  if (chart.y_range) return *chart.y_range;
  auto [low, high] = Span(chart, &ChartPoint::y);
  if (chart.log_y) return {low / 1.2, high * 1.2};
  const bool from_zero = low >= 0 && low < 0.5 * high;
  const double air = 0.08 * (high - low);
  return {from_zero ? 0 : low - air, high + air};
}

std::string Mark(double x, double y, const std::string& colour) {
  return fmt::format("<circle cx='{:.1f}' cy='{:.1f}' r='3.6' class='paper {}' stroke-width='1.8'/>\n", x, y, colour);
}

const char* Stroke(LineStyle style) {
  switch (style) {
    case LineStyle::kLine:
      return "stroke-width='2.2' stroke-linejoin='round'";
    case LineStyle::kDots:
      return "stroke-width='1.8' stroke-linejoin='round'";
    case LineStyle::kDashed:
      return "stroke-width='1.6' stroke-dasharray='5 4'";
    case LineStyle::kFaint:
      return "stroke-width='1' stroke-opacity='0.3'";
  }
  return "";
}

bool HasMarks(LineStyle style) { return style == LineStyle::kDots || style == LineStyle::kDashed; }

std::string ColourClass(const ChartSeries& series, size_t number) {
  return fmt::format("s{}", (series.colour >= 0 ? series.colour : static_cast<int>(number)) % kSvgColours);
}

std::string DrawSeries(const ChartSeries& series, const std::string& colour, const Axis& x, const Axis& y) {
  std::string path, marks;
  bool open = false;
  for (const ChartPoint& point : series.points) {
    if (!x.Draws(point.x) || !y.Draws(point.y)) {
      open = false;
      continue;
    }
    path += fmt::format("{}{:.1f} {:.1f}", open ? "L" : "M", x.At(point.x), y.At(point.y));
    open = true;
    if (HasMarks(series.style) || series.points.size() == 1) marks += Mark(x.At(point.x), y.At(point.y), colour);
  }
  if (path.empty()) return "";
  return fmt::format("<path d='{}' class='{}' {}/>\n", path, colour, Stroke(series.style)) + marks;
}

// Entries from left to right, in as many rows as they need; `rows` says how many. The first row's middle is at `top`.
std::string DrawLegend(const LineChart& chart, double top, int& rows) {
  std::string out;
  double x = kLeft, y = top;
  rows = 0;
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const ChartSeries& series = chart.series[i];
    if (series.name.empty()) continue;
    const double width = 40 + SvgTextWidth(series.name, 13) + 22;
    if (rows == 0) rows = 1;
    if (x > kLeft && x + width > kWidth - kRight) {
      x = kLeft;
      y += kLegendRow;
      ++rows;
    }
    const std::string colour = ColourClass(series, i);
    out += fmt::format("<path d='M{:.1f} {:.1f}h32' class='{}' {}/>\n", x, y, colour, Stroke(series.style));
    if (HasMarks(series.style)) out += Mark(x + 16, y, colour);
    out += SvgWrite({.x = x + 40, .y = y + 4, .size = 13}, series.name);
    x += width;
  }
  return out;
}

// Draws a panel whose upper edge is at `top`, and moves `top` to its lower edge.
std::string DrawPanel(const LineChart& chart, double plot_height, double& top) {
  std::string out;
  if (!chart.title.empty()) {
    out += SvgWrite({.x = kLeft, .y = top + 32, .size = 18, .bold = true}, chart.title);
    top += kTitleRow;
  } else {
    top += kLegendRow;
  }
  int legend_rows = 0;
  out += DrawLegend(chart, top + 8, legend_rows);
  top += legend_rows * kLegendRow + 8;
  const double bottom = top + plot_height, right = kWidth - kRight;
  const Axis x(chart.x_range.value_or(Span(chart, &ChartPoint::x)), chart.log_x, kLeft, right);
  const Axis y(YRange(chart), chart.log_y, bottom, top);
  CAIRN_CHECK(x.low() < x.high() && y.low() < y.high());
  CAIRN_CHECK((!chart.log_x || x.low() > 0) && (!chart.log_y || y.low() > 0));
  for (const double tick : y.Ticks(plot_height > 300 ? 7 : 5)) {
    out += fmt::format("<path d='M{:.0f} {:.1f}H{:.0f}' class='grid'/>\n", kLeft, y.At(tick), right);
    out += SvgWrite({.x = kLeft - 10, .y = y.At(tick) + 4, .anchor = "end"}, ShortNumber(tick));
  }
  for (const double tick : chart.x_ticks.empty() ? x.Ticks(8) : chart.x_ticks) {
    out += fmt::format("<path d='M{:.1f} {:.0f}v6' class='axis'/>\n", x.At(tick), bottom);
    out += SvgWrite({.x = x.At(tick), .y = bottom + 22, .anchor = "middle"}, ShortNumber(tick));
  }
  for (size_t i = 0; i < chart.series.size(); ++i) {
    out += DrawSeries(chart.series[i], ColourClass(chart.series[i], i), x, y);
  }
  out += fmt::format("<path d='M{:.0f} {:.0f}V{:.0f}H{:.0f}' class='axis' stroke-width='1.2'/>\n", kLeft, top, bottom,
                     right);
  out += SvgWrite({.x = (kLeft + right) / 2, .y = bottom + 46, .size = 13, .anchor = "middle"}, chart.x_label);
  out += SvgWrite({.x = 22, .y = (top + bottom) / 2, .size = 13, .anchor = "middle", .turn = -90}, chart.y_label);
  top = bottom + kBottom;
  return out;
}

}  // namespace

std::string DrawLineChart(const LineChart& chart) {
  double height = 0;
  const std::string panel = DrawPanel(chart, kPlotHeight, height);
  return SvgBegin(kWidth, height) + panel + "</svg>\n";
}

std::string DrawLineCharts(const std::string& title, const std::vector<LineChart>& charts) {
  double height = 0;
  std::string out;
  if (!title.empty()) {
    out += SvgWrite({.x = kLeft, .y = 36, .size = 20, .bold = true}, title);
    height += 40;
  }
  for (const LineChart& chart : charts) out += DrawPanel(chart, kPanelPlotHeight, height);
  return SvgBegin(kWidth, height) + out + "</svg>\n";
}

}  // namespace cairn
