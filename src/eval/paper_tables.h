// The tables of the paper: their rows with the paper's figures, and how a row is measured with a model at hand.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "eval/perplexity.h"

namespace cairn {

struct TableRow {
  std::string model;          // "full", "xl", "landmark" or "miss": which of the given models it needs
  size_t length = 0;          // tokens of a window
  size_t chunk = 0;           // tokens read at once; of a segment with Transformer-XL
  size_t memory_blocks = 0;   // kept; with Transformer-XL tokens of the cache
  size_t k = 0;               // blocks retrieved
  size_t attention_size = 0;  // as the paper counts it; 0: not given
  Granularity granularity = Granularity::kHeadAndToken;
  double cutoff = 0;
  std::optional<double> pg19, arxiv;  // the paper's perplexities
  std::optional<double> skipped;      // the paper's part of retrievals that the context-miss token prevents, 0 to 1
};

// 1: lengths and memory sizes. 2: who chooses blocks. 3: cutoffs of the context-miss token.
std::vector<TableRow> PaperTable(int number);

// "landmarks, by head", "Transformer-XL".
std::string WhatOf(const TableRow& row);

// With windows of the row's length. `options` gives bos.
PerplexityResult MeasureRow(const TableRow& row, const std::shared_ptr<const InferenceModel>& model,
                            const PerplexityOptions& options, std::span<const int32_t> text,
                            const std::function<void(size_t tokens)>& progress = nullptr);

// A row with what was measured: on books (against PG-19) and on mathematics (against arXiv); none where a model or a
// text was missing.
struct MeasuredRow {
  TableRow row;
  std::optional<PerplexityResult> books, math;
};

enum class TableFormat { kText, kMarkdown, kJson };
std::string WriteTable(int number, std::span<const MeasuredRow> rows, TableFormat format);

}  // namespace cairn
