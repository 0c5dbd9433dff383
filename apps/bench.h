// The subjects of cairn bench that have a file of their own.
#pragma once

#include <CLI/CLI.hpp>

namespace cairn {

void AddTrainBench(CLI::App& bench);

}  // namespace cairn
