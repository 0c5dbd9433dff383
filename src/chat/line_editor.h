// Lines from a person: with editing and history where the input is a terminal, else line by line.
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace cairn {

// $XDG_STATE_HOME/cairn/NAME, or ~/.local/state/cairn/NAME; empty when neither directory is known.
std::filesystem::path HistoryPath(const std::string& name);

struct LineEditorOptions {
  std::string prompt = "> ";      // shown on terminals only
  std::filesystem::path history;  // entered lines are kept here, the oldest first; empty keeps none
  // Whose owner is the caller.
  FILE* input = stdin;
  FILE* output = stderr;  // where the line is shown while it is edited
};

// What a terminal needs; one of two twins: with libedit, or without any editing.
class TerminalLines {
 public:
  virtual ~TerminalLines() = default;
  // Without its line end; nothing at the end of the input.
  virtual std::optional<std::string> Read() = 0;
  // The line can be called back with the arrow keys.
  virtual void Remember(const std::string& line) = 0;
};
std::unique_ptr<TerminalLines> MakeTerminalLines(const LineEditorOptions& options);
// Whether the twin with editing was built.
bool HasLineEditing();

// Not thread-safe.
class LineEditor {
 public:
  explicit LineEditor(const LineEditorOptions& options);
  ~LineEditor();

  // The next line without its line end; nothing at the end of the input (Ctrl-D on an empty line). Lines that are not
  // blank join the history, whose file is written at once; where it cannot be written, a warning says so once.
  std::optional<std::string> Read();

  bool is_terminal() const { return terminal_ != nullptr; }

 private:
  void Load();
  void Remember(const std::string& line);

  LineEditorOptions options_;
  std::unique_ptr<TerminalLines> terminal_;  // null when the input is no terminal
  std::vector<std::string> history_;
};

// The next line of a file without its line end (\n or \r\n); nothing at the end.
std::optional<std::string> ReadPlainLine(FILE* input);

}  // namespace cairn
