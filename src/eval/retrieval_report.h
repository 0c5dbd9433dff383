// What trials of a retrieval task came to: results kept in a folder so that a run can go on, sums by length and depth,
// tables.
#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "eval/retrieval_run.h"

namespace cairn {

nlohmann::ordered_json ToJson(const TrialResult& result);
// Throws Error, naming `where`, when something is missing.
TrialResult TrialFromJson(const nlohmann::json& json, const std::string& where);

// DIR/settings.json and DIR/results.jsonl, a line a trial. A last line that a killed run did not finish is dropped.
class TrialLog {
 public:
  // Throws Error when the folder holds results of other settings.
  TrialLog(const std::filesystem::path& directory, const nlohmann::ordered_json& settings);

  const std::vector<TrialResult>& results() const { return results_; }  // of earlier runs, then those added
  const TrialResult* Find(const TrialKey& key) const;
  void Add(const TrialResult& result);

 private:
  std::filesystem::path path_;
  std::vector<TrialResult> results_;
  std::ofstream out_;
};

// Trials of one length, or of one length and depth.
struct TrialSum {
  size_t length = 0;
  double depth = 0;
  size_t trials = 0;
  size_t right = 0;
  size_t choices = 0;                    // trials with landmark attention
  size_t found = 0;                      // of them
  size_t local = 0;                      // of those found: the fact was in the last chunk
  size_t right_found = 0;                // right and found
  double share_mean = 0, share_max = 0;  // means over the trials with a choice in which the fact was not local
  double attended = 0;                   // mean
  double tokens = 0;                     // of a prompt, mean
  size_t tokens_read = 0;
  double read_seconds = 0;

  double accuracy() const { return trials == 0 ? 0 : static_cast<double>(right) / static_cast<double>(trials); }
};

// In ascending order of lengths; with `by_depth`, of lengths and depths. Depths that were drawn count as the middle of
// the fifth in which they lie.
std::vector<TrialSum> SumTrials(std::span<const TrialResult> results, bool by_depth);

// The table that people read: one row a sum.
std::string TrialTable(std::span<const TrialSum> sums, const std::string& unit, bool by_depth);
nlohmann::ordered_json ToJson(const TrialSum& sum, bool by_depth);

}  // namespace cairn
