#include "eval/retrieval_report.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/file.h"
#include "io/json.h"

namespace cairn {

namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

std::string Dump(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Names of what differs, for people.
std::string Differences(const nlohmann::json& a, const nlohmann::json& b) {
  std::string names;
  for (const auto* side : {&a, &b}) {
    for (const auto& [key, value] : side->items()) {
      const bool both = a.contains(key) && b.contains(key);
      if ((both && (side == &b || a[key] == b[key]))) continue;
      if (!names.empty()) names += ", ";
      names += both ? fmt::format("{} was {}", key, Dump(a[key])) : key;
    }
  }
  return names;
}

}  // namespace

Json ToJson(const TrialResult& result) {
  Json out;
  out["length"] = result.key.length;
  out["depth"] = result.key.depth >= 0 ? Json(result.key.depth) : Json("random");
  out["trial"] = result.key.number;
  out["right"] = result.right;
  if (!result.question.empty()) out["question"] = result.question;
  out["expected"] = result.expected;
  out["given"] = result.given;
  out["at"] = result.depth;
  out["tokens"] = result.tokens;
  if (result.landmarks) {
    out["found"] = result.found;
    out["local"] = result.local;
    out["heads"] = result.heads;
    out["cut"] = result.cut;
    out["heads_found"] = result.heads_found;
    out["share_mean"] = result.share_mean;
    out["share_max"] = result.share_max;
  }
  out["attended"] = result.attended;
  out["tokens_read"] = result.tokens_read;
  out["read_seconds"] = result.read_seconds;
  out["answer_seconds"] = result.answer_seconds;
  return out;
}

TrialResult TrialFromJson(const nlohmann::json& json, const std::string& where) {
  try {
    TrialResult result;
    json.at("length").get_to(result.key.length);
    if (json.at("depth").is_number()) json.at("depth").get_to(result.key.depth);
    json.at("trial").get_to(result.key.number);
    json.at("right").get_to(result.right);
    result.question = json.value("question", "");  // older results have none
    json.at("expected").get_to(result.expected);
    json.at("given").get_to(result.given);
    json.at("at").get_to(result.depth);
    json.at("tokens").get_to(result.tokens);
    result.landmarks = json.contains("found");
    if (result.landmarks) {
      json.at("found").get_to(result.found);
      json.at("local").get_to(result.local);
      json.at("heads").get_to(result.heads);
      result.cut = json.value("cut", false);  // older results have none
      json.at("heads_found").get_to(result.heads_found);
      json.at("share_mean").get_to(result.share_mean);
      json.at("share_max").get_to(result.share_max);
    }
    json.at("attended").get_to(result.attended);
    json.at("tokens_read").get_to(result.tokens_read);
    json.at("read_seconds").get_to(result.read_seconds);
    json.at("answer_seconds").get_to(result.answer_seconds);
    return result;
  } catch (const nlohmann::json::exception&) {
    Fail("{} is not the result of a trial; remove the line, or use another --output", where);
  }
}

TrialLog::TrialLog(const fs::path& directory, const Json& settings) : path_(directory / "results.jsonl") {
  std::error_code error;
  fs::create_directories(directory, error);
  if (!fs::is_directory(directory)) Fail("--output '{}': cannot create the folder", directory.string());
  const fs::path settings_path = directory / "settings.json";
  if (fs::exists(settings_path)) {
    const nlohmann::json known = ParseJson(ReadTextFile(settings_path), settings_path.string());
    const nlohmann::json now = nlohmann::json::parse(Dump(settings));
    if (known != now) {
      Fail("--output '{}' holds results of other settings ({}); use another folder, or the same settings",
           directory.string(), Differences(known, now));
    }
  } else if (fs::exists(path_)) {
    Fail("--output '{}' has results but no settings.json; use another folder", directory.string());
  } else {
    WriteFileAtomically(settings_path, Dump(settings, 2) + "\n");
  }
  if (fs::exists(path_)) {
    std::string text = ReadTextFile(path_);
    const size_t whole = text.rfind('\n') + 1;  // 0 without any
    if (whole < text.size()) {
      text.resize(whole);
      WriteFileAtomically(path_, text);
    }
    size_t number = 0;
    for (size_t at = 0; at < text.size();) {
      const size_t end = text.find('\n', at);
      const std::string where = fmt::format("{}, line {}", path_.string(), ++number);
      results_.push_back(TrialFromJson(ParseJson(std::string_view(text).substr(at, end - at), where), where));
      at = end + 1;
    }
  }
  out_.open(path_, std::ios::app | std::ios::binary);
  if (!out_) Fail("'{}' cannot be written", path_.string());
}

const TrialResult* TrialLog::Find(const TrialKey& key) const {
  for (const TrialResult& result : results_) {
    if (result.key == key) return &result;
  }
  return nullptr;
}

void TrialLog::Add(const TrialResult& result) {
  out_ << Dump(ToJson(result)) + "\n" << std::flush;
  if (!out_) Fail("'{}' cannot be written; is the disk full?", path_.string());
  results_.push_back(result);
}

std::vector<TrialSum> SumTrials(std::span<const TrialResult> results, bool by_depth) {
  std::map<std::pair<size_t, double>, TrialSum> sums;
  for (const TrialResult& result : results) {
    double depth = 0;
    if (by_depth) {
      depth = result.key.depth >= 0 ? result.key.depth : (std::min(4.0, std::floor(result.depth * 5)) + 0.5) / 5;
    }
    TrialSum& sum = sums[{result.key.length, depth}];
    sum.length = result.key.length;
    sum.depth = depth;
    ++sum.trials;
    sum.right += result.right;
    if (result.landmarks) {
      ++sum.choices;
      sum.found += result.found;
      sum.local += result.local;
      sum.right_found += result.right && result.found;
      if (!result.local) {
        sum.share_mean += result.share_mean;
        sum.share_max += result.share_max;
      }
    }
    sum.attended += result.attended;
    sum.tokens += static_cast<double>(result.tokens);
    sum.tokens_read += result.tokens_read;
    sum.read_seconds += result.read_seconds;
  }
  std::vector<TrialSum> list;
  for (auto& [key, sum] : sums) {
    const double trials = static_cast<double>(sum.trials);
    const double far = static_cast<double>(std::max<size_t>(1, sum.choices - sum.local));
    sum.share_mean /= far;
    sum.share_max /= far;
    sum.attended /= trials;
    sum.tokens /= trials;
    list.push_back(sum);
  }
  return list;
}

std::string TrialTable(std::span<const TrialSum> sums, const std::string& unit, bool by_depth) {
  std::string table =
      fmt::format("{:>9}{}{:>8}{:>8}{:>16}{:>9}{:>10}{:>8}{:>7}{:>10}{:>10}\n", unit, by_depth ? "  depth" : "",
                  "trials", "right", "95% interval", "found", "if found", "share", "best", "attended", "tokens/s");
  for (const TrialSum& sum : sums) {
    const Interval interval = WilsonInterval(sum.right, sum.trials);
    table += fmt::format("{:>9}{}{:>8}{:>7.1f}%{:>16}", sum.length, by_depth ? fmt::format("{:>7.2f}", sum.depth) : "",
                         sum.trials, 100 * sum.accuracy(),
                         fmt::format("{:.1f} - {:.1f}%", 100 * interval.low, 100 * interval.high));
    if (sum.choices == 0) {
      table += fmt::format("{:>9}{:>10}{:>8}{:>7}", "-", "-", "-", "-");
    } else {
      table += fmt::format("{:>8.1f}%", 100 * static_cast<double>(sum.found) / static_cast<double>(sum.choices));
      table +=
          sum.found == 0
              ? fmt::format("{:>10}", "-")
              : fmt::format("{:>9.1f}%", 100 * static_cast<double>(sum.right_found) / static_cast<double>(sum.found));
      table += sum.choices == sum.local ? fmt::format("{:>8}{:>7}", "-", "-")
                                        : fmt::format("{:>8.3f}{:>7.3f}", sum.share_mean, sum.share_max);
    }
    table += fmt::format("{:>10.0f}{:>10.0f}\n", sum.attended,
                         static_cast<double>(sum.tokens_read) / std::max(1e-9, sum.read_seconds));
  }
  return table;
}

Json ToJson(const TrialSum& sum, bool by_depth) {
  const Interval interval = WilsonInterval(sum.right, sum.trials);
  Json out;
  out["length"] = sum.length;
  if (by_depth) out["depth"] = sum.depth;
  out["trials"] = sum.trials;
  out["right"] = sum.right;
  out["accuracy"] = sum.accuracy();
  out["low"] = interval.low;
  out["high"] = interval.high;
  if (sum.choices > 0) {
    out["found"] = sum.found;
    out["found_local"] = sum.local;
    out["found_rate"] = static_cast<double>(sum.found) / static_cast<double>(sum.choices);
    out["right_and_found"] = sum.right_found;
    out["accuracy_if_found"] =
        sum.found == 0 ? Json() : Json(static_cast<double>(sum.right_found) / static_cast<double>(sum.found));
    out["share_mean"] = sum.share_mean;
    out["share_best_head"] = sum.share_max;
  }
  out["attended_positions"] = sum.attended;
  out["prompt_tokens"] = sum.tokens;
  out["tokens_read"] = sum.tokens_read;
  out["tokens_per_second"] = static_cast<double>(sum.tokens_read) / std::max(1e-9, sum.read_seconds);
  return out;
}

}  // namespace cairn
