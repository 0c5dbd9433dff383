#include "plot/heat_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "plot/svg.h"

namespace cairn {

namespace {

struct Colour {
  double red, green, blue;  // 0 to 255
};

// From pale to deep, even in lightness; read the same on light and dark paper, and without colour vision.
constexpr Colour kRamp[] = {{247, 244, 220}, {175, 217, 190}, {86, 176, 184}, {42, 118, 168}, {34, 54, 120}};

Colour RampAt(double value) {
  const double place = std::clamp(value, 0.0, 1.0) * (std::size(kRamp) - 1);
  const auto low = std::min(static_cast<size_t>(place), std::size(kRamp) - 2);
  const double part = place - static_cast<double>(low);
  const auto mix = [&](double Colour::*side) { return kRamp[low].*side * (1 - part) + kRamp[low + 1].*side * part; };
  return {mix(&Colour::red), mix(&Colour::green), mix(&Colour::blue)};
}

std::string Hex(const Colour& colour) {
  return fmt::format("#{:02x}{:02x}{:02x}", std::lround(colour.red), std::lround(colour.green),
                     std::lround(colour.blue));
}

const char* TextOn(const Colour& colour) {
  return 0.299 * colour.red + 0.587 * colour.green + 0.114 * colour.blue > 140 ? "#1f2933" : "#ffffff";
}

}  // namespace

std::string DrawHeatMap(const HeatMap& map) {
  const size_t columns = map.columns.size(), rows = map.rows.size();
  CAIRN_CHECK(columns > 0 && rows > 0 && map.values.size() == rows * columns);
  double label_width = 0;
  for (const std::string& row : map.rows) label_width = std::max(label_width, SvgTextWidth(row, 12));
  const double left = 44 + label_width, top = 56, bottom = 64, scale = 96;
  const double field_width = std::clamp(760.0 / static_cast<double>(columns), 34.0, 96.0);
  const double field_height = std::clamp(400.0 / static_cast<double>(rows), 22.0, 44.0);
  const double right = left + field_width * static_cast<double>(columns);
  const double end = top + field_height * static_cast<double>(rows);
  const double width = std::max(right + scale, left + SvgTextWidth(map.title, 19)), height = end + bottom;
  std::string out = SvgBegin(width, height);
  out += SvgWrite({.x = left, .y = 32, .size = 18, .bold = true}, map.title);
  for (size_t r = 0; r < rows; ++r) {
    const double y = top + field_height * static_cast<double>(r);
    out += SvgWrite({.x = left - 10, .y = y + field_height / 2 + 4, .anchor = "end"}, map.rows[r]);
    for (size_t c = 0; c < columns; ++c) {
      const double x = left + field_width * static_cast<double>(c), value = map.values[r * columns + c];
      const std::string field = fmt::format("<rect x='{:.1f}' y='{:.1f}' width='{:.1f}' height='{:.1f}'", x + 0.5,
                                            y + 0.5, field_width - 1, field_height - 1);
      if (!std::isfinite(value)) {
        out += field + " class='grid'/>\n";
        continue;
      }
      const Colour colour = RampAt(value);
      out += fmt::format("{} fill='{}'/>\n", field, Hex(colour));
      out += SvgWrite(
          {.x = x + field_width / 2, .y = y + field_height / 2 + 4, .anchor = "middle", .fill = TextOn(colour)},
          fmt::format("{:.0f}", 100 * value));
    }
  }
  for (size_t c = 0; c < columns; ++c) {
    const double x = left + field_width * (static_cast<double>(c) + 0.5);
    out += SvgWrite({.x = x, .y = end + 20, .anchor = "middle"}, map.columns[c]);
  }
  out += SvgWrite({.x = (left + right) / 2, .y = end + 46, .size = 13, .anchor = "middle"}, map.x_label);
  out += SvgWrite({.x = 22, .y = (top + end) / 2, .size = 13, .anchor = "middle", .turn = -90}, map.y_label);
  // The scale.
  constexpr int kSteps = 40;
  const double step = (end - top) / kSteps;
  for (int i = 0; i < kSteps; ++i) {
    out += fmt::format("<rect x='{:.1f}' y='{:.2f}' width='14' height='{:.2f}' fill='{}'/>\n", right + 24,
                       top + step * i, step + 0.4, Hex(RampAt(1 - (i + 0.5) / kSteps)));
  }
  for (const double tick : {0.0, 0.5, 1.0}) {
    out += SvgWrite({.x = right + 44, .y = end - tick * (end - top) + 4}, fmt::format("{:.0f} %", 100 * tick));
  }
  return out + "</svg>\n";
}

}  // namespace cairn
