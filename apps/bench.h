// The subjects of cairn bench that have a file of their own.
#pragma once

#include <CLI/CLI.hpp>

namespace cairn {

void AddAttentionBench(CLI::App& bench);
void AddInferenceBenches(CLI::App& bench);  // decode and prefill
void AddMatrixBench(CLI::App& bench);
void AddMemoryBench(CLI::App& bench);
void AddTrainBench(CLI::App& bench);

}  // namespace cairn
