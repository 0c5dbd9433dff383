// Charts: what they draw, and that odd values draw nothing odd.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "plot/heat_map.h"
#include "plot/line_chart.h"
#include "plot/svg.h"

namespace cairn {
namespace {

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

LineChart SomeChart() {
  LineChart chart;
  chart.title = "Speed & <memory>";
  chart.x_label = "tokens of context";
  chart.y_label = "tokens a second";
  chart.log_x = true;
  chart.series = {{"ingestion", {{1000, 90}, {10000, 80}, {1e6, 70}}, LineStyle::kDots, -1},
                  {"decode", {{1000, 40}, {10000, 35}, {1e6, 20}}, LineStyle::kDashed, -1}};
  return chart;
}

TEST(Ticks, AreRoundNumbers) {
  EXPECT_EQ(AxisTicks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(AxisTicks(-1, 1, 4), (std::vector<double>{-1, -0.5, 0, 0.5, 1}));
  EXPECT_EQ(LogAxisTicks(1, 1e6), (std::vector<double>{1, 10, 100, 1000, 1e4, 1e5, 1e6}));
  EXPECT_EQ(LogAxisTicks(3, 60), (std::vector<double>{5, 10, 20, 50}));
  EXPECT_EQ(ShortNumber(20000), "20k");
  EXPECT_EQ(ShortNumber(1.5e6), "1.5M");
  EXPECT_EQ(ShortNumber(350), "350");
  EXPECT_EQ(ShortNumber(0.1 + 0.2), "0.3");
}

TEST(LineChart, DrawsEverySeriesWithItsName) {
  const std::string svg = DrawLineChart(SomeChart());
  EXPECT_EQ(svg.find("<svg"), 0u);
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
  EXPECT_NE(svg.find(">ingestion</text>"), std::string::npos);
  EXPECT_NE(svg.find("Speed &amp; &lt;memory&gt;"), std::string::npos);
  EXPECT_NE(svg.find("prefers-color-scheme: dark"), std::string::npos);
  EXPECT_EQ(Count(svg, "<circle"), 3 + 3 + 2u);  // the points and the legend
  EXPECT_EQ(Count(svg, "url("), 0u);             // nothing from elsewhere
}

// On a logarithmic axis 1k, 10k and 1M stand at 0, 1/3 and 1 of the width.
TEST(LineChart, SpacesALogarithmicAxisByFactors) {
  const std::string svg = DrawLineChart(SomeChart());
  EXPECT_NE(svg.find("<circle cx='76.0'"), std::string::npos);
  EXPECT_NE(svg.find("<circle cx='361.3'"), std::string::npos);  // 76 + (932 - 76) / 3
  EXPECT_NE(svg.find("<circle cx='932.0'"), std::string::npos);
}

TEST(LineChart, ABrokenValueBreaksTheLine) {
  LineChart chart;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  chart.series = {{"a", {{1, 1}, {2, nan}, {3, 2}, {4, 3}}, LineStyle::kLine, -1}};
  const std::string svg = DrawLineChart(chart);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  const size_t line = svg.find("class='s0' stroke-width='2.2'");  // the legend's comes first
  const size_t path = svg.find("class='s0' stroke-width='2.2'", line + 1);
  ASSERT_NE(path, std::string::npos);
  const size_t begin = svg.rfind("<path d='", path);
  EXPECT_EQ(Count(svg.substr(begin, path - begin), "M"), 2u);
  EXPECT_EQ(Count(svg.substr(begin, path - begin), "L"), 1u);
}

TEST(LineChart, DrawsWithoutPointsOrWithOne) {
  LineChart chart;
  for (const bool log : {false, true}) {
    chart.log_x = chart.log_y = log;
    chart.series.clear();
    EXPECT_EQ(DrawLineChart(chart).find("nan"), std::string::npos);
    chart.series = {{"a", {{3, 5}}, LineStyle::kDots, -1}};
    const std::string svg = DrawLineChart(chart);
    EXPECT_EQ(svg.find("nan"), std::string::npos);
    EXPECT_EQ(Count(svg, "<circle"), 2u);
  }
}

TEST(LineChart, StacksPanels) {
  const std::string svg = DrawLineCharts("Both", {SomeChart(), SomeChart()});
  EXPECT_EQ(Count(svg, "<svg"), 1u);
  EXPECT_EQ(Count(svg, ">ingestion</text>"), 2u);
  EXPECT_NE(svg.find(">Both</text>"), std::string::npos);
}

TEST(HeatMap, WritesEveryValueAndLeavesMissingFieldsEmpty) {
  HeatMap map;
  map.title = "Pass keys";
  map.columns = {"1k", "2k", "4k"};
  map.rows = {"start", "end"};
  map.values = {1, 0.5, std::numeric_limits<double>::quiet_NaN(), 0, 0.25, 0.125};
  const std::string svg = DrawHeatMap(map);
  EXPECT_EQ(Count(svg, "class='grid'/>"), 1u);
  for (const char* text :
       {">100</text>", ">50</text>", ">0</text>", ">25</text>", ">12</text>", ">4k</text>", ">end</text>"})
    EXPECT_EQ(Count(svg, text), 1u) << text;
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

}  // namespace
}  // namespace cairn
