#include "apps/reads_view.h"

#include <fmt/color.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tokenizer/utf8.h"

namespace cairn {

namespace {

// One line: control characters become spaces, broken characters a sign.
std::string OneLine(const std::string& text, size_t limit) {
  std::string line;
  size_t characters = 0;
  for (size_t i = 0; i < text.size();) {
    const Utf8Character c = ReadUtf8(text, i);
    if (characters++ == limit) return line + "…";
    if (c.code < 0x20 || c.code == 0x7f) {
      line += ' ';
    } else {
      AppendUtf8(c.code >= kInvalidByte ? 0xfffd : c.code, line);
    }
    i += c.length;
  }
  return line;
}

// From grey over yellow to red.
fmt::text_style Shade(double weight) {
  if (weight >= 0.5) return fmt::fg(fmt::terminal_color::red) | fmt::emphasis::bold;
  if (weight >= 0.2) return fmt::fg(fmt::terminal_color::yellow);
  if (weight >= 0.05) return fmt::fg(fmt::terminal_color::green);
  return fmt::fg(fmt::terminal_color::bright_black);
}

}  // namespace

void ReadsView::Add(const GeneratedToken& token) { tokens_.push_back({token.id, token.reads}); }

std::string ReadsView::BlockText(size_t block) const {
  const size_t length = session_.block_length();
  const std::vector<int32_t>& tokens = session_.tokens();
  std::vector<int32_t> ids;
  for (size_t i = block * length; i < std::min(tokens.size(), (block + 1) * length); ++i) {
    if (static_cast<size_t>(tokens[i]) < tokenizer_.vocab_size()) ids.push_back(tokens[i]);
  }
  return tokenizer_.DecodeMiddle(ids);
}

std::string ReadsView::BlockLine(size_t block, size_t characters) const {
  return OneLine(BlockText(block), characters);
}

std::string ReadsView::TokenLine(int32_t id, size_t characters) const {
  const std::string text = static_cast<size_t>(id) < tokenizer_.vocab_size() ? tokenizer_.TokenBytes(id) : "";
  return fmt::format("'{}'", OneLine(text, characters));
}

const BlockSpan* ReadsView::SpanOf(size_t block) const {
  const auto number = session_.FileBlock(block);
  return number ? &session_.cache()->file()->spans()[*number] : nullptr;
}

std::map<size_t, double> ReadsView::Sum(const Token& token) {
  std::map<size_t, double> sum;
  for (const auto& layer : token.layers) {
    for (const BlockRead& read : layer.blocks) sum[read.block] += read.gate / static_cast<double>(token.layers.size());
  }
  return sum;
}

void ReadsView::Print() const {
  if (session_.block_length() == 0) {
    fmt::print("\nfull attention reads everything; there are no blocks to show\n");
    return;
  }
  const bool colour = isatty(STDOUT_FILENO) != 0;
  const auto shaded = [&](double weight, const std::string& text) {
    return colour ? fmt::format(Shade(weight), "{}", text) : text;
  };
  std::map<size_t, double> total;
  fmt::print("\nblocks read for each token, mean weight over layers and heads (layers with the largest)\n");
  for (const Token& token : tokens_) {
    const auto sum = Sum(token);
    std::vector<std::pair<double, size_t>> order;
    for (const auto& [block, weight] : sum) {
      order.emplace_back(weight, block);
      total[block] += weight;
    }
    std::sort(order.rbegin(), order.rend());
    std::string line;
    for (size_t i = 0; i < std::min<size_t>(4, order.size()); ++i) {
      const auto [weight, block] = order[i];
      size_t strongest = 0;
      double best = -1;
      for (const auto& layer : token.layers) {
        for (const BlockRead& read : layer.blocks) {
          if (read.block != block || read.gate <= best) continue;
          best = read.gate;
          strongest = layer.layer;
        }
      }
      line += shaded(weight, fmt::format("  {:>6} {:.3f} (layer {})", block, weight, strongest));
    }
    fmt::print("{:<16}{}\n", TokenLine(token.id, 12), line.empty() ? "  none" : line);
  }
  std::vector<std::pair<double, size_t>> order;
  for (const auto& [block, weight] : total) order.emplace_back(weight, block);
  std::sort(order.rbegin(), order.rend());
  if (order.empty()) return;
  fmt::print("\nblocks read most\n");
  for (size_t i = 0; i < std::min<size_t>(8, order.size()); ++i) {
    const double mean = order[i].first / static_cast<double>(tokens_.size());
    std::string where;
    if (const BlockSpan* span = SpanOf(order[i].second)) {
      where = fmt::format("  {} [{}, {})\n               ", session_.cache()->file()->sources()[span->source].name,
                          span->first_byte, span->last_byte);
    }
    fmt::print("{}{}  {}\n", shaded(mean, fmt::format("{:>6} {:.3f}", order[i].second, mean)), where,
               BlockLine(order[i].second, 90));
  }
}

void ReadsView::PrintMap() const {
  const size_t blocks = session_.counters().blocks;
  if (session_.block_length() == 0 || blocks == 0 || tokens_.empty()) return;
  constexpr size_t kCells = 72, kRows = 12;
  const size_t cells = std::min(blocks, kCells);
  const bool colour = isatty(STDOUT_FILENO) != 0;
  fmt::print("\nmap of the memory, {} blocks from the first to the last, a row a token: · not read ░ ▒ ▓ █ read most\n",
             blocks);
  for (size_t t = 0; t < std::min(tokens_.size(), kRows); ++t) {
    std::vector<double> weights(cells);
    for (const auto& [block, weight] : Sum(tokens_[t])) weights[std::min(block * cells / blocks, cells - 1)] += weight;
    std::string line;
    for (const double weight : weights) {
      const std::string sign = weight <= 0 ? "·" : weight < 0.02 ? "░" : weight < 0.1 ? "▒" : weight < 0.25 ? "▓" : "█";
      line += colour ? fmt::format(Shade(weight), "{}", sign) : sign;
    }
    fmt::print("{:>10} {}\n", TokenLine(tokens_[t].id, 7), line);
  }
}

nlohmann::ordered_json ReadsView::ToJson() const {
  nlohmann::ordered_json out;
  out["tokens"] = nlohmann::ordered_json::array();
  std::map<size_t, double> all;
  for (const Token& token : tokens_) {
    nlohmann::ordered_json layers = nlohmann::ordered_json::array();
    for (const auto& layer : token.layers) {
      nlohmann::ordered_json blocks = nlohmann::ordered_json::array();
      for (const BlockRead& read : layer.blocks) {
        blocks.push_back({{"block", read.block}, {"weight", read.gate}});
        all[read.block] += read.gate;
      }
      layers.push_back({{"layer", layer.layer}, {"blocks", blocks}});
    }
    out["tokens"].push_back({{"id", token.id}, {"layers", layers}});
  }
  out["blocks"] = nlohmann::ordered_json::array();
  const size_t length = session_.block_length();
  for (const auto& [block, weight] : all) {
    nlohmann::ordered_json entry = {{"block", block},
                                    {"first_token", block * length},
                                    {"last_token", (block + 1) * length - 1},
                                    {"weight", weight},
                                    {"text", BlockText(block)}};
    if (const BlockSpan* span = SpanOf(block)) {
      entry["source"] = session_.cache()->file()->sources()[span->source].name;
      entry["first_byte"] = span->first_byte;
      entry["last_byte"] = span->last_byte;
    }
    out["blocks"].push_back(entry);
  }
  return out;
}

}  // namespace cairn
