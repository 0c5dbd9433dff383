// The flags that verbs with a session share: which model, how its weights are held, how it attends.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "infer/generate.h"
#include "infer/session.h"
#include "tokenizer/tokenizer.h"

namespace cairn {

struct SessionFlags {
  std::string model;
  std::string tokenizer;  // "" = the model's own
  std::string weights;    // "" = as stored
  std::string attention;  // "" = as trained
  std::string granularity = "head-and-token";
  std::string block_format = "f16";
  std::string positions = "slots";
  std::string index = "auto";
  double audit_min = 0;
  SessionOptions options;
  CLI::Option* k = nullptr;
  CLI::Option* cutoff = nullptr;
  bool k_given = false;  // by other means than the flag
  bool cutoff_given = false;

  void AddModel(CLI::App& verb);
  void AddAttention(CLI::App& verb);
  void AddAudit(CLI::App& verb);
};

// Throws Error when a flag contradicts the model.
std::shared_ptr<const InferenceModel> LoadModel(const SessionFlags& flags);
std::shared_ptr<const Tokenizer> LoadTokenizerOf(const SessionFlags& flags, const InferenceModel& model);
SessionOptions OptionsFrom(const SessionFlags& flags, const InferenceModel& model);

// "recall 0.993, ...", or why there is nothing to say.
std::string Describe(const RetrievalAudit& audit);
// Throws Error when the index missed more than --audit-min allows.
void CheckAudit(const SessionFlags& flags, const RetrievalAudit& audit);

// Warns where the settings go beyond what the model was trained for.
void WarnBeyondTraining(const InferenceModel& model, const SessionOptions& options);

// Flags of sampling and of where a generation ends.
void AddSamplingFlags(CLI::App& verb, GenerationOptions& options);

}  // namespace cairn
