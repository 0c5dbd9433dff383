#include "chat/line_editor.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "base/log.h"
#include "io/file.h"

namespace cairn {

namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxLines = 1000;
constexpr size_t kMaxBytes = size_t{16} << 20;

bool IsBlank(const std::string& line) { return line.find_first_not_of(" \t\r\n") == std::string::npos; }

}  // namespace

fs::path HistoryPath(const std::string& name) {
  // Relative paths in the environment are to be ignored, says the XDG specification.
  if (const char* state = std::getenv("XDG_STATE_HOME"); state != nullptr && fs::path(state).is_absolute()) {
    return fs::path(state) / "cairn" / name;
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && fs::path(home).is_absolute()) {
    return fs::path(home) / ".local" / "state" / "cairn" / name;
  }
  return {};
}

std::optional<std::string> ReadPlainLine(FILE* input) {
  std::string line;
  for (;;) {
    const int c = std::getc(input);
    if (c == EOF) {
      if (line.empty()) return std::nullopt;
      return line;
    }
    if (c == '\n') break;
    line.push_back(static_cast<char>(c));
  }
  if (!line.empty() && line.back() == '\r') line.pop_back();
  return line;
}

LineEditor::LineEditor(const LineEditorOptions& options) : options_(options) {
  if (isatty(fileno(options_.input)) != 1) return;
  terminal_ = MakeTerminalLines(options_);
  Load();
}

LineEditor::~LineEditor() = default;

void LineEditor::Load() {
  std::error_code ignored;
  if (options_.history.empty() || !fs::is_regular_file(options_.history, ignored)) return;
  try {
    const std::string text = ReadTextFile(options_.history, kMaxBytes);
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      std::string line = text.substr(begin, end - begin);
      begin = end + 1;
      if (!IsBlank(line)) history_.push_back(std::move(line));
    }
  } catch (const Error& error) {
    spdlog::warn("the history is not used: {}", error.what());
    options_.history.clear();
  }
  if (history_.size() > kMaxLines) history_.erase(history_.begin(), history_.end() - kMaxLines);
  for (const std::string& line : history_) terminal_->Remember(line);
}

std::optional<std::string> LineEditor::Read() {
  if (terminal_ == nullptr) return ReadPlainLine(options_.input);
  std::optional<std::string> line = terminal_->Read();
  if (line && !IsBlank(*line)) Remember(*line);
  return line;
}

void LineEditor::Remember(const std::string& line) {
  if (!history_.empty() && history_.back() == line) return;
  if (history_.size() == kMaxLines) history_.erase(history_.begin());
  history_.push_back(line);
  terminal_->Remember(line);
  if (options_.history.empty()) return;
  try {
    // What was said to a model is nobody else's business.
    const fs::path directory = options_.history.parent_path();
    if (!fs::exists(directory)) {
      fs::create_directories(directory);
      fs::permissions(directory, fs::perms::owner_all);
    }
    std::string text;
    for (const std::string& known : history_) text.append(known).append(1, '\n');
    WriteFileAtomically(options_.history, text);
  } catch (const std::exception& error) {  // Error, or of the file system
    spdlog::warn("the history is not kept: {}", error.what());
    options_.history.clear();
  }
}

}  // namespace cairn
