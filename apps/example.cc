// cairn example: the worked example of landmark attention, computed by the kernel.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/verbs.h"
#include "attention/fused.h"

namespace cairn {

namespace {

// Final weights of every query, computed by the fused kernel: with one-hot values the output is the weights.
std::vector<float> KernelWeights(const AttentionShape& shape) {
  const size_t time = shape.time;
  std::vector<float> zeros(time * time, 0.0f);  // all scores equal
  std::vector<float> values(time * time, 0.0f);
  std::vector<float> out(time * time);
  for (size_t i = 0; i < time; ++i) values[i * time + i] = 1.0f;
  const auto view = [&](auto* data) { return DenseHeads(data, 1, time, time); };
  FusedForward(
      shape,
      {view(std::as_const(zeros).data()), view(std::as_const(zeros).data()), view(std::as_const(values).data()), {}},
      view(out.data()), nullptr);
  return out;
}

// 0.1666.. as "1/6": the weights of the example are fractions with small denominators.
std::string Fraction(float x) {
  if (x == 0.0f) return "";
  for (int denominator = 1; denominator <= 24; ++denominator) {
    const float numerator = x * static_cast<float>(denominator);
    const float rounded = static_cast<float>(static_cast<int>(numerator + 0.5f));
    if (rounded > 0 && std::abs(numerator - rounded) < 1e-4f) {
      return denominator == 1 ? "1" : fmt::format("{}/{}", static_cast<int>(rounded), denominator);
    }
  }
  return fmt::format("{:.3f}", x);
}

}  // namespace

void AddExampleVerb(CLI::App& root, int&) {
  CLI::App* verb =
      root.add_subcommand("example", "Show the worked example of landmark attention, computed by the kernel");
  auto json = std::make_shared<bool>(false);
  verb->add_flag("--json", *json, "Print JSON");
  verb->footer("Example:\n  cairn example");
  verb->callback([json] {
    AttentionShape shape;
    shape.time = 9;
    shape.dim = 9;
    shape.block_length = 2;
    const std::vector<float> weights = KernelWeights(shape);
    if (*json) {
      nlohmann::ordered_json out{{"block_length", 2}, {"time", 9}};
      for (size_t i = 0; i < 9; ++i)
        out["weights"].push_back(std::vector<float>(weights.begin() + i * 9, weights.begin() + (i + 1) * 9));
      fmt::print("{}\n", out.dump(2));
      return;
    }
    fmt::print(
        "Blocks of 2 tokens, each followed by its landmark (*); all scores equal.\n"
        "Row: the query. Column: how much of that token's value it reads.\n\n");
    fmt::print("{:>9} ", "");
    for (size_t j = 0; j < 9; ++j) fmt::print("{:>6}{}", j, j % 3 == 2 ? "* |" : "");
    fmt::print("\n");
    for (size_t i = 0; i < 9; ++i) {
      fmt::print("query {:>2}{} ", i, i % 3 == 2 ? "*" : " ");
      float sum = 0;
      for (size_t j = 0; j < 9; ++j) {
        sum += weights[i * 9 + j];
        fmt::print("{:>6}{}", j <= i && j % 3 != 2 ? Fraction(weights[i * 9 + j]) : ".", j % 3 == 2 ? "  |" : "");
      }
      fmt::print("  sum {:.3f}\n", sum);
    }
    fmt::print(
        "\nQuery 6: its home group is its own token 6 and the landmarks 2 and 5, a third each. A landmark's third is "
        "the\n"
        "gate of its block: tokens 0, 1, 3 and 4 read 1/2 * 1/3 = 1/6. The landmarks' own values are never read.\n");
  });
}

}  // namespace cairn
