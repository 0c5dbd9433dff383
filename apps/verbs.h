// The verbs of the cairn binary. Each file apps/VERB.cc adds its subcommand to the root; when the verb is chosen its
// callback sets `exit_code` (0 unless it says otherwise) or throws cairn::Error.
#pragma once

#include <CLI/CLI.hpp>

namespace cairn {

void AddAskVerb(CLI::App& root, int& exit_code);
void AddBenchVerb(CLI::App& root, int& exit_code);
void AddChatVerb(CLI::App& root, int& exit_code);
void AddConvertVerb(CLI::App& root, int& exit_code);
void AddDataVerb(CLI::App& root, int& exit_code);
void AddEvalVerb(CLI::App& root, int& exit_code);
void AddExampleVerb(CLI::App& root, int& exit_code);
void AddForgetVerb(CLI::App& root, int& exit_code);
void AddGenerateVerb(CLI::App& root, int& exit_code);
void AddGoldenVerb(CLI::App& root, int& exit_code);
void AddInfoVerb(CLI::App& root, int& exit_code);
void AddIngestVerb(CLI::App& root, int& exit_code);
void AddInspectVerb(CLI::App& root, int& exit_code);
void AddModelVerb(CLI::App& root, int& exit_code);
void AddPlotVerb(CLI::App& root, int& exit_code);
void AddQuantizeVerb(CLI::App& root, int& exit_code);
void AddSearchVerb(CLI::App& root, int& exit_code);
void AddTokenizerVerb(CLI::App& root, int& exit_code);
void AddTrainVerb(CLI::App& root, int& exit_code);
void AddTuneVerb(CLI::App& root, int& exit_code);
void AddVerifyVerb(CLI::App& root, int& exit_code);

}  // namespace cairn
