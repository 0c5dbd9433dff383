// The subcommands of cairn eval, one function a file.
#pragma once

#include <CLI/CLI.hpp>

namespace cairn {

void AddRetrievalEvals(CLI::App& verb);  // eval_retrieval.cc: passkey, needle, kv, lines
void AddTableEvals(CLI::App& verb);      // eval_tables.cc: table1, table2, table3

}  // namespace cairn
