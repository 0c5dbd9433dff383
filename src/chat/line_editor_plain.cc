// Lines from a terminal as the system's own line discipline gives them; see line_editor_libedit.cc for its twin.
#include "chat/line_editor.h"

namespace cairn {

namespace {

class PlainLines : public TerminalLines {
 public:
  explicit PlainLines(const LineEditorOptions& options) : options_(options) {}

  std::optional<std::string> Read() override {
    std::fputs(options_.prompt.c_str(), options_.output);
    std::fflush(options_.output);
    return ReadPlainLine(options_.input);
  }
  void Remember(const std::string&) override {}

 private:
  const LineEditorOptions options_;
};

}  // namespace

bool HasLineEditing() { return false; }

std::unique_ptr<TerminalLines> MakeTerminalLines(const LineEditorOptions& options) {
  return std::make_unique<PlainLines>(options);
}

}  // namespace cairn
