// The verbs of the cairn binary. Each file apps/VERB.cc adds its subcommand to the root; when the verb is chosen its
// callback sets `exit_code` (0 unless it says otherwise) or throws cairn::Error.
#pragma once

#include <CLI/CLI.hpp>

namespace cairn {

void AddDataVerb(CLI::App& root, int& exit_code);
void AddInfoVerb(CLI::App& root, int& exit_code);
void AddTokenizerVerb(CLI::App& root, int& exit_code);

}  // namespace cairn
