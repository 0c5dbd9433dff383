// Tables of shares as coloured fields, as SVG pictures.
#pragma once

#include <string>
#include <vector>

namespace cairn {

struct HeatMap {
  std::string title, x_label, y_label;
  std::vector<std::string> columns, rows;  // labels; the first row stands on top
  std::vector<double> values;              // rows x columns, 0 to 1. Not finite: nothing was measured, an empty field
};

// Each field has its value in per cent written into it.
std::string DrawHeatMap(const HeatMap& map);

}  // namespace cairn
