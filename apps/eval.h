// The subcommands of cairn eval, one function a file.
#pragma once

#include <CLI/CLI.hpp>

namespace cairn {

void AddRetrievalEvals(CLI::App& verb);  // eval_retrieval.cc: passkey, needle, kv, lines

}  // namespace cairn
