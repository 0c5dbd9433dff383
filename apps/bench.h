// The subjects of cairn bench that have a file of their own.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace cairn {

// The beginning of every benchmark's JSON: its name, the processor, the instruction set and the threads.
nlohmann::ordered_json BenchHead(const std::string& benchmark);

void AddAttentionBench(CLI::App& bench);
void AddInferenceBenches(CLI::App& bench);  // decode and prefill
void AddIndexBench(CLI::App& bench);
void AddMatrixBench(CLI::App& bench);
void AddMemoryBench(CLI::App& bench);
void AddTrainBench(CLI::App& bench);

}  // namespace cairn
