#include "train/run_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/file.h"

namespace cairn {

namespace {

// The records of a log up to a step.
std::string KeptPart(const std::string& text, uint64_t steps_done) {
  std::string kept;
  size_t begin = 0;
  for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string line = text.substr(begin, end - begin);
    const auto record = nlohmann::json::parse(line, nullptr, false);
    if (!record.is_object()) continue;
    const auto step = record.find("step");
    if (step != record.end() && step->is_number_unsigned() && step->get<uint64_t>() > steps_done) continue;
    kept += line + "\n";
  }
  return kept;
}

}  // namespace

RunLog::RunLog(const std::filesystem::path& path, uint64_t steps_done) : name_(path.string()) {
  std::error_code ignored;
  const bool old = steps_done > 0 && std::filesystem::exists(path, ignored);
  WriteFileAtomically(path, old ? KeptPart(ReadTextFile(path), steps_done) : std::string());
  file_.reset(std::fopen(name_.c_str(), "a"));
  if (!file_) Fail("cannot write '{}': {}", name_, std::strerror(errno));
}

void RunLog::Write(const nlohmann::ordered_json& record) {
  const std::string line = record.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (std::fwrite(line.data(), 1, line.size(), file_.get()) != line.size() || std::fflush(file_.get()) != 0) {
    Fail("cannot write '{}': {}", name_, std::strerror(errno));
  }
}

RunLine::RunLine(bool shown, uint64_t steps, uint64_t first_step)
    : shown_(shown), steps_(steps), first_step_(first_step), start_(std::chrono::steady_clock::now()), drawn_(start_) {}

void RunLine::Draw(const Values& values) {
  const auto now = std::chrono::steady_clock::now();
  if (!shown_ || now - drawn_ < std::chrono::milliseconds(200)) return;
  drawn_ = now;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const uint64_t done = std::max<uint64_t>(values.step - first_step_, 1);
  const double left = elapsed / static_cast<double>(done) * static_cast<double>(steps_ - values.step);
  std::string line = fmt::format("step {}/{}  loss {:.4f}", values.step, steps_, values.loss);
  if (values.validation) line += fmt::format("  validation {:.4f}", *values.validation);
  line += fmt::format("  {:.0f} tokens/s", values.tokens_per_second);
  if (values.share_of_peak) line += fmt::format("  {:.0f}% of peak", 100 * *values.share_of_peak);
  fmt::print(stderr, "\r{}  {} left\x1b[K", line, Duration(left));
  std::fflush(stderr);
}

void RunLine::Wipe() {
  if (!shown_) return;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
}

std::string Duration(double seconds) {
  const auto total = static_cast<uint64_t>(std::max(0.0, seconds));
  if (total >= 3600) return fmt::format("{} h {} min", total / 3600, total / 60 % 60);
  if (total >= 120) return fmt::format("{} min", total / 60);
  return fmt::format("{} s", total);
}

}  // namespace cairn
