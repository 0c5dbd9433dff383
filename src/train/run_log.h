// The log of a run, one JSON object a line, and the line that a person watches.
#pragma once

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace cairn {

// Records have a "type": "run" (the first), "step", "validation", "resume" (where a run was continued). Every record is
// flushed: a killed run loses none.
class RunLog {
 public:
  // Records of steps beyond `steps_done` are dropped: they are computed again. A last line that a killed process left
  // half-written is, too. With 0 the log begins anew.
  RunLog(const std::filesystem::path& path, uint64_t steps_done);

  void Write(const nlohmann::ordered_json& record);

 private:
  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string name_;
  std::unique_ptr<std::FILE, Closer> file_;
};

// Steps, loss, speed and time left on standard error, rewritten in place a few times a second; wiped off at the end.
class RunLine {
 public:
  RunLine(bool shown, uint64_t steps, uint64_t first_step);
  RunLine(const RunLine&) = delete;
  RunLine& operator=(const RunLine&) = delete;
  ~RunLine() { Wipe(); }

  struct Values {
    uint64_t step;
    double loss;
    std::optional<double> validation;
    double tokens_per_second;
    std::optional<double> share_of_peak;  // 0 .. 1
  };
  void Draw(const Values& values);
  void Wipe();  // before other messages

 private:
  const bool shown_;
  const uint64_t steps_, first_step_;
  const std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point drawn_;
};

// "2 h 5 min", "12 min", "40 s".
std::string Duration(double seconds);

}  // namespace cairn
