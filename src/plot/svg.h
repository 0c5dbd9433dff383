// What every picture shares: the SVG frame with its colours on light and dark paper, text, and the marks of axes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cairn {

// Colours come from a style sheet in the picture, which a viewer's dark mode turns: "ink" and "paper" fill, "axis",
// "grid" and "s0" .. "s5" stroke. No fonts but the viewer's own.
constexpr int kSvgColours = 6;

// The opening tag, the style sheet and the paper. Ends with "</svg>\n", which the caller adds. Sizes in pixels.
std::string SvgBegin(double width, double height);

struct SvgText {
  double x = 0, y = 0;
  int size = 12;
  const char* anchor = "start";  // or "middle", "end"
  bool bold = false;
  double turn = 0;             // degrees, about (x, y)
  const char* fill = nullptr;  // else ink
};
std::string SvgWrite(const SvgText& place, std::string_view text);

// For text and attributes; control characters become blanks.
std::string SvgEscape(std::string_view text);

// About the width of a text in a sans-serif font, in pixels.
double SvgTextWidth(std::string_view text, int size);

// "1.5M", "20k", "350".
std::string ShortNumber(double value);

// About `count` round numbers from low to high, for an axis.
std::vector<double> AxisTicks(double low, double high, int count);

// The same for a logarithmic axis: powers of ten, with their double and fivefold where there are few. 0 < low < high.
std::vector<double> LogAxisTicks(double low, double high);

}  // namespace cairn
