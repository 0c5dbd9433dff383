#include "train/loss_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/file.h"

namespace cairn {

namespace {

constexpr double kWidth = 960, kHeight = 540;
constexpr double kLeft = 72, kRight = 28, kTop = 56, kBottom = 64;
constexpr const char* kColours[] = {"#2563a8", "#c2571a", "#2f855a", "#8a3ffc", "#b83280", "#6b7280"};
constexpr const char* kInk = "#1f2933";
constexpr const char* kFaint = "#e4e7eb";

std::string Escape(const std::string& text) {
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
      default:
        result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return result;
}

// "1.5M", "20k", "350".
std::string ShortNumber(double value) {
  const double size = std::abs(value);
  if (size >= 1e9) return fmt::format("{:g}G", value / 1e9);
  if (size >= 1e6) return fmt::format("{:g}M", value / 1e6);
  if (size >= 1e4) return fmt::format("{:g}k", value / 1e3);
  return fmt::format("{:g}", value);
}

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

class Frame {
 public:
  Frame(double x_high, double y_low, double y_high) : x_high_(x_high), y_low_(y_low), y_high_(y_high) {}
  double X(double x) const { return kLeft + x / x_high_ * (kWidth - kLeft - kRight); }
  double Y(double y) const {
    const double clipped = std::clamp(y, y_low_, y_high_);
    return kHeight - kBottom - (clipped - y_low_) / (y_high_ - y_low_) * (kHeight - kTop - kBottom);
  }

 private:
  double x_high_, y_low_, y_high_;
};

double XOf(const LossPoint& point, bool over_tokens) { return over_tokens ? point.tokens : point.step; }

std::string Path(const std::vector<LossPoint>& points, const Frame& frame, bool over_tokens) {
  std::string path;
  for (const LossPoint& point : points) {
    path +=
        fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", frame.X(XOf(point, over_tokens)), frame.Y(point.loss));
  }
  return path;
}

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

std::string Legend(const std::vector<RunCurves>& runs) {
  std::string out;
  double y = kTop + 16;
  for (size_t i = 0; i < runs.size(); ++i) {
    const char* colour = kColours[i % std::size(kColours)];
    const double x = kWidth - kRight - 16;
    const auto entry = [&](const std::string& text, const std::string& mark) {
      out += fmt::format("<text x='{:.0f}' y='{:.0f}' text-anchor='end' font-size='13' fill='{}'>{}</text>\n", x - 40,
                         y + 4, kInk, Escape(text));
      out += mark;
      y += 20;
    };
    if (!runs[i].training.empty()) {
      entry(runs[i].name + ", training",
            fmt::format("<path d='M{:.0f} {:.0f}h32' stroke='{}' stroke-width='2.2'/>\n", x - 32, y, colour));
    }
    if (!runs[i].validation.empty()) {
      entry(runs[i].name + fmt::format(", validation (last {:.3f})", runs[i].validation.back().loss),
            fmt::format("<path d='M{0:.0f} {1:.0f}h32' stroke='{2}' stroke-width='1.6' stroke-dasharray='5 4'/>"
                        "<circle cx='{3:.0f}' cy='{1:.0f}' r='3.6' fill='#fff' stroke='{2}' stroke-width='1.8'/>\n",
                        x - 32, y, colour, x - 16));
    }
  }
  return out;
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

std::string DrawLossPlot(const std::vector<RunCurves>& runs, const LossPlotOptions& options) {
  CAIRN_CHECK(!runs.empty());
  double x_high = 1;
  for (const RunCurves& run : runs) {
    for (const auto* points : {&run.training, &run.validation}) {
      for (const LossPoint& point : *points) x_high = std::max(x_high, XOf(point, options.over_tokens));
    }
  }
  const auto [y_low, y_high] = LossRange(runs);
  const Frame frame(x_high, y_low, y_high);
  std::string out = fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {0:.0f} {1:.0f}' width='{0:.0f}' height='{1:.0f}' "
      "font-family='Helvetica, Arial, sans-serif' fill='none'>\n<rect width='{0:.0f}' height='{1:.0f}' fill='#fff'/>\n",
      kWidth, kHeight);
  const double bottom = kHeight - kBottom, right = kWidth - kRight;
  for (const double tick : AxisTicks(y_low, y_high, 7)) {
    const double y = frame.Y(tick);
    out += fmt::format("<path d='M{:.0f} {:.1f}H{:.0f}' stroke='{}'/>\n", kLeft, y, right, kFaint);
    out += fmt::format("<text x='{:.0f}' y='{:.1f}' text-anchor='end' font-size='12' fill='{}'>{:g}</text>\n",
                       kLeft - 10, y + 4, kInk, std::round(tick * 1e6) / 1e6);
  }
  for (const double tick : AxisTicks(0, x_high, 8)) {
    const double x = frame.X(tick);
    out += fmt::format("<path d='M{:.1f} {:.0f}v6' stroke='{}'/>\n", x, bottom, kInk);
    out += fmt::format("<text x='{:.1f}' y='{:.0f}' text-anchor='middle' font-size='12' fill='{}'>{}</text>\n", x,
                       bottom + 22, kInk, ShortNumber(tick));
  }
  for (size_t i = 0; i < runs.size(); ++i) {
    const char* colour = kColours[i % std::size(kColours)];
    const RunCurves& run = runs[i];
    if (run.training.size() > 1 && options.smoothing > 0) {
      out += fmt::format("<path d='{}' stroke='{}' stroke-width='1' stroke-opacity='0.22'/>\n",
                         Path(Thinned(run.training), frame, options.over_tokens), colour);
    }
    if (!run.training.empty()) {
      out += fmt::format("<path d='{}' stroke='{}' stroke-width='2.2' stroke-linejoin='round'/>\n",
                         Path(Thinned(Smoothed(run.training, options.smoothing)), frame, options.over_tokens), colour);
    }
    if (!run.validation.empty()) {
      out += fmt::format("<path d='{}' stroke='{}' stroke-width='1.6' stroke-dasharray='5 4'/>\n",
                         Path(run.validation, frame, options.over_tokens), colour);
    }
    for (const LossPoint& point : run.validation) {
      out += fmt::format("<circle cx='{:.1f}' cy='{:.1f}' r='3.6' fill='#fff' stroke='{}' stroke-width='1.8'/>\n",
                         frame.X(XOf(point, options.over_tokens)), frame.Y(point.loss), colour);
    }
  }
  out += fmt::format("<path d='M{:.0f} {:.0f}V{:.0f}H{:.0f}' stroke='{}' stroke-width='1.2'/>\n", kLeft, kTop, bottom,
                     right, kInk);
  out += fmt::format("<text x='{:.0f}' y='32' font-size='18' font-weight='bold' fill='{}'>{}</text>\n", kLeft, kInk,
                     Escape(options.title));
  out += fmt::format("<text x='{:.0f}' y='{:.0f}' text-anchor='middle' font-size='13' fill='{}'>{}</text>\n",
                     (kLeft + right) / 2, kHeight - 18, kInk, options.over_tokens ? "tokens trained on" : "steps");
  out += fmt::format(
      "<text transform='translate(22 {:.0f}) rotate(-90)' text-anchor='middle' font-size='13' fill='{}'>"
      "cross-entropy, nats a token</text>\n",
      (kTop + bottom) / 2, kInk);
  return out + Legend(runs) + "</svg>\n";
}

}  // namespace cairn
