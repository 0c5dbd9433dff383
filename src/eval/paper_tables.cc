#include "eval/paper_tables.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "eval/xl_perplexity.h"

namespace cairn {

namespace {

using Json = nlohmann::ordered_json;

TableRow Full(size_t chunk, double pg19, double arxiv) {
  TableRow row;
  row.model = "full";
  row.length = 512;
  row.chunk = row.attention_size = chunk;
  row.pg19 = pg19;
  row.arxiv = arxiv;
  return row;
}

TableRow Xl(size_t length, double pg19) {
  TableRow row;
  row.model = "xl";
  row.length = length;
  row.chunk = row.memory_blocks = 256;
  row.attention_size = 512;
  row.pg19 = pg19;
  return row;
}

struct Memory {
  size_t length, chunk, blocks, k, attention_size;
};

TableRow Landmarks(const Memory& memory, double pg19, std::optional<double> arxiv = std::nullopt) {
  TableRow row;
  row.model = "landmark";
  row.length = memory.length;
  row.chunk = memory.chunk;
  row.memory_blocks = memory.blocks;
  row.k = memory.k;
  row.attention_size = memory.attention_size;
  row.pg19 = pg19;
  row.arxiv = arxiv;
  return row;
}

std::vector<TableRow> Lengths() {
  return {Full(512, 16.12, 4.01),
          Full(360, 16.76, 4.31),
          Landmarks({512, 250, 10, 2, 360}, 16.23, 4.01),
          Xl(2048, 14.72),
          Landmarks({2048, 250, 40, 2, 360}, 15.14, 3.43),
          Landmarks({2048, 350, 40, 2, 460}, 15.07, 3.41),
          Landmarks({2048, 300, 40, 3, 460}, 14.97, 3.36),
          Landmarks({2048, 250, 20, 4, 460}, 15.02, 3.37),
          Landmarks({2048, 250, 40, 4, 460}, 14.92, 3.35),
          Xl(4096, 14.55),
          Landmarks({4096, 250, 40, 4, 460}, 14.79, 3.19),
          Landmarks({4096, 250, 80, 2, 370}, 15.00, 3.29),
          Landmarks({4096, 250, 80, 4, 470}, 14.72, 3.18)};
}

std::vector<TableRow> Granularities() {
  const std::pair<Granularity, std::array<double, 3>> figures[] = {{Granularity::kHeadAndToken, {15.14, 14.92, 14.72}},
                                                                   {Granularity::kHead, {15.48, 15.10, 14.95}},
                                                                   {Granularity::kToken, {15.44, 15.04, 14.89}}};
  const Memory settings[] = {{2048, 250, 40, 2, 360}, {2048, 250, 40, 4, 460}, {4096, 250, 80, 4, 470}};
  std::vector<TableRow> rows;
  for (size_t s = 0; s < 3; ++s) {
    for (const auto& [granularity, perplexities] : figures) {
      rows.push_back(Landmarks(settings[s], perplexities[s]));
      rows.back().granularity = granularity;
    }
  }
  return rows;
}

std::vector<TableRow> Cutoffs() {
  // The method page does not name the setting; the figure without the token is that of windows of 512 tokens.
  const Memory memory = {512, 250, 10, 2, 360};
  std::vector<TableRow> rows = {Landmarks(memory, 16.28)};
  const double figures[][3] = {
      {0, 16.38, 0}, {0.1, 16.38, 0.23}, {0.3, 16.43, 0.57}, {0.5, 16.86, 0.84}, {1, 19.49, 1}};
  for (const auto& [cutoff, perplexity, skipped] : figures) {
    rows.push_back(Landmarks(memory, perplexity));
    rows.back().model = "miss";
    rows.back().cutoff = cutoff;
    rows.back().skipped = skipped;
  }
  return rows;
}

std::string Number(const std::optional<double>& value) { return value ? fmt::format("{:.2f}", *value) : "-"; }
std::string Count(size_t value) { return value == 0 ? "-" : std::to_string(value); }
std::string Measured(const std::optional<PerplexityResult>& result) {
  return result ? fmt::format("{:.2f}", result->perplexity()) : "-";
}

std::optional<double> Skipped(const std::optional<PerplexityResult>& result) {
  if (!result || result->blocks_chosen == 0) return std::nullopt;
  return 1 - static_cast<double>(result->blocks_read) / static_cast<double>(result->blocks_chosen);
}
std::string Percent(const std::optional<double>& share) { return share ? fmt::format("{:.0f}%", 100 * *share) : "-"; }

Json ToJson(const MeasuredRow& measured) {
  const TableRow& row = measured.row;
  Json out = {{"model", row.model},
              {"what", WhatOf(row)},
              {"length", row.length},
              {"chunk", row.chunk},
              {"memory", row.memory_blocks},
              {"k", row.k},
              {"attention_size", row.attention_size}};
  if (row.model == "miss") out["cutoff"] = row.cutoff;
  const auto add = [&](const char* name, const std::optional<double>& value) {
    if (value) out[name] = *value;
  };
  add("paper_pg19", row.pg19);
  add("paper_arxiv", row.arxiv);
  add("paper_skipped", row.skipped);
  for (const auto& [name, result] : {std::pair{"books", &measured.books}, {"math", &measured.math}}) {
    if (!*result) continue;
    Json& entry = out[name];
    entry["perplexity"] = (*result)->perplexity();
    entry["loss"] = (*result)->loss;
    entry["tokens"] = (*result)->tokens;
    entry["windows"] = (*result)->windows;
    entry["seconds"] = (*result)->seconds;
    if (const auto skipped = Skipped(*result)) entry["skipped"] = *skipped;
  }
  return out;
}

}  // namespace

std::vector<TableRow> PaperTable(int number) {
  CAIRN_CHECK(number >= 1 && number <= 3);
  return number == 1 ? Lengths() : number == 2 ? Granularities() : Cutoffs();
}

std::string WhatOf(const TableRow& row) {
  if (row.model == "full") return "ordinary attention";
  if (row.model == "xl") return "Transformer-XL";
  if (row.model == "miss") return fmt::format("context-miss token, cutoff {}", row.cutoff);
  if (row.granularity == Granularity::kHeadAndToken) return "landmarks";
  return fmt::format("landmarks, by {}", NameOf(row.granularity));
}

PerplexityResult MeasureRow(const TableRow& row, const std::shared_ptr<const InferenceModel>& model,
                            const PerplexityOptions& options, std::span<const int32_t> text,
                            const std::function<void(size_t tokens)>& progress) {
  PerplexityOptions windows = options;
  windows.length = row.length;
  if (row.model == "xl") {
    return MeasureXlPerplexity(model->source(), row.chunk, row.memory_blocks, windows, text, progress);
  }
  SessionOptions settings;
  settings.chunk_length = row.chunk;
  if (row.model == "full") {
    // Attention to fewer tokens than a window: windows as short as that.
    windows.length = row.chunk;
    settings.attention = AttentionKind::kFull;
  } else {
    settings.top_k = row.k;
    settings.memory_blocks = row.memory_blocks;
    settings.granularity = row.granularity;
    settings.miss_cutoff = row.cutoff;
  }
  return MeasurePerplexity(model, settings, windows, text, progress);
}

std::string WriteTable(int number, std::span<const MeasuredRow> rows, TableFormat format) {
  if (format == TableFormat::kJson) {
    Json out;
    out["table"] = number;
    out["rows"] = Json::array();
    for (const MeasuredRow& row : rows) out["rows"].push_back(ToJson(row));
    return out.dump(2) + "\n";
  }
  bool math = false;
  for (const MeasuredRow& row : rows) math = math || row.math;
  std::vector<std::vector<std::string>> cells;
  cells.push_back({"what", "length", "chunk", "memory", "k", "attention", "books", "PG-19 (paper)"});
  if (math) cells.back().insert(cells.back().end(), {"mathematics", "arXiv (paper)"});
  if (number == 3) cells.back().insert(cells.back().end(), {"skipped", "skipped (paper)"});
  for (const MeasuredRow& measured : rows) {
    const TableRow& row = measured.row;
    const std::string memory =
        row.model == "xl" ? fmt::format("{} tokens", row.memory_blocks) : Count(row.memory_blocks);
    cells.push_back({WhatOf(row), Count(row.length), Count(row.chunk), memory, Count(row.k), Count(row.attention_size),
                     Measured(measured.books), Number(row.pg19)});
    if (math) cells.back().insert(cells.back().end(), {Measured(measured.math), Number(row.arxiv)});
    if (number == 3) {
      cells.back().insert(cells.back().end(), {Percent(Skipped(measured.books)), Percent(row.skipped)});
    }
  }
  std::vector<size_t> widths(cells[0].size());
  for (const auto& line : cells) {
    for (size_t c = 0; c < line.size(); ++c) widths[c] = std::max(widths[c], line[c].size());
  }
  std::string out;
  const bool markdown = format == TableFormat::kMarkdown;
  for (size_t l = 0; l < cells.size(); ++l) {
    for (size_t c = 0; c < cells[l].size(); ++c) {
      const std::string cell =
          c == 0 ? fmt::format("{:<{}}", cells[l][c], widths[c]) : fmt::format("{:>{}}", cells[l][c], widths[c]);
      out += markdown ? fmt::format("| {} ", cell) : fmt::format("{}{}", c == 0 ? "" : "  ", cell);
    }
    out += markdown ? "|\n" : "\n";
    if (markdown && l == 0) {
      out += "|---|";
      for (size_t c = 1; c < widths.size(); ++c) out += "---:|";
      out += "\n";
    }
  }
  return out;
}

}  // namespace cairn
