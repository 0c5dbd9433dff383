#include "plot/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace cairn {

namespace {

constexpr const char* kLight[] = {"#2563a8", "#c2571a", "#2f855a", "#8a3ffc", "#b83280", "#6b7280"};
constexpr const char* kDark[] = {"#6ea8e8", "#f0965a", "#6cc492", "#b794ff", "#ee7fb8", "#a3acb9"};
static_assert(std::size(kLight) == kSvgColours && std::size(kDark) == kSvgColours);

std::string Rules(const char* ink, const char* paper, const char* grid, const char* const* colours) {
  std::string rules =
      fmt::format(".ink{{fill:{0}}}.paper{{fill:{1}}}.axis{{stroke:{0}}}.grid{{stroke:{2}}}", ink, paper, grid);
  for (int i = 0; i < kSvgColours; ++i) rules += fmt::format(".s{}{{stroke:{}}}", i, colours[i]);
  return rules;
}

}  // namespace

std::string SvgBegin(double width, double height) {
  return fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {0:.0f} {1:.0f}' width='{0:.0f}' height='{1:.0f}' "
      "font-family='Helvetica, Arial, sans-serif' fill='none'>\n<style>{2}\n@media (prefers-color-scheme: dark) "
      "{{{3}}}</style>\n<rect width='{0:.0f}' height='{1:.0f}' class='paper'/>\n",
      width, height, Rules("#1f2933", "#ffffff", "#e4e7eb", kLight), Rules("#e6edf3", "#0d1117", "#2b323b", kDark));
}

std::string SvgWrite(const SvgText& place, std::string_view text) {
  std::string tag = fmt::format("<text x='{:.1f}' y='{:.1f}' font-size='{}'", place.x, place.y, place.size);
  if (std::string_view(place.anchor) != "start") tag += fmt::format(" text-anchor='{}'", place.anchor);
  if (place.bold) tag += " font-weight='bold'";
  if (place.turn != 0) tag += fmt::format(" transform='rotate({:g} {:.1f} {:.1f})'", place.turn, place.x, place.y);
  tag += place.fill != nullptr ? fmt::format(" fill='{}'", place.fill) : " class='ink'";
  return fmt::format("{}>{}</text>\n", tag, SvgEscape(text));
}

std::string SvgEscape(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return result;
}

double SvgTextWidth(std::string_view text, int size) {
  const auto characters = std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
  return 0.56 * size * static_cast<double>(characters);
}

std::string ShortNumber(double value) {
  const double size = std::abs(value);
  if (size >= 1e9) return fmt::format("{:g}G", value / 1e9);
  if (size >= 1e6) return fmt::format("{:g}M", value / 1e6);
  if (size >= 1e4) return fmt::format("{:g}k", value / 1e3);
  return fmt::format("{:g}", std::round(value * 1e6) / 1e6);
}

std::vector<double> AxisTicks(double low, double high, int count) {
  const double raw = (high - low) / std::max(count, 1);
  const double magnitude = std::pow(10.0, std::floor(std::log10(raw)));
  double step = 10 * magnitude;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * magnitude >= raw * 0.999) {
      step = factor * magnitude;
      break;
    }
  }
  std::vector<double> ticks;
  for (double i = std::ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; ++i)
    ticks.push_back(i * step + 0.0);  // + 0.0: no -0
  return ticks;
}

std::vector<double> LogAxisTicks(double low, double high) {
  const double decades = std::log10(high / low);
  std::vector<double> ticks;
  for (double power = std::floor(std::log10(low)); power <= std::ceil(std::log10(high)); ++power) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (factor != 1 && decades > 3.5) continue;
      const double tick = factor * std::pow(10.0, power);
      if (tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9)) ticks.push_back(tick);
    }
  }
  return ticks;
}

}  // namespace cairn
