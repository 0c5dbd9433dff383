// Lines from a terminal with libedit; see line_editor_plain.cc for its twin.
#include <histedit.h>
#include <langinfo.h>

#include <clocale>
#include <string_view>

#include "base/error.h"
#include "chat/line_editor.h"

namespace cairn {

namespace {

class EditedLines : public TerminalLines {
 public:
  explicit EditedLines(const LineEditorOptions& options) : prompt_(options.prompt) {
    // libedit reads characters by the locale; a terminal today is UTF-8 even where nobody has said so.
    std::setlocale(LC_CTYPE, "");
    if (std::string_view(nl_langinfo(CODESET)) != "UTF-8") std::setlocale(LC_CTYPE, "C.UTF-8");
    history_ = history_init();
    editor_ = el_init("cairn", options.input, options.output, options.output);
    if (history_ == nullptr || editor_ == nullptr) {
      Close();
      Fail("the terminal cannot be set up for editing; pipe the input instead");
    }
    HistEvent event;
    history(history_, &event, H_SETSIZE, 1000);
    history(history_, &event, H_SETUNIQUE, 1);
    el_set(editor_, EL_CLIENTDATA, this);
    el_set(editor_, EL_PROMPT, &EditedLines::Prompt);
    el_set(editor_, EL_SIGNAL, 1);  // an interrupted program leaves the terminal as it was
    el_set(editor_, EL_EDITOR, "emacs");
    el_set(editor_, EL_HIST, history, history_);
    // Terminals differ in what these keys send.
    for (const char* key : {"\033[H", "\033OH", "\033[1~"}) el_set(editor_, EL_BIND, key, "ed-move-to-beg", nullptr);
    for (const char* key : {"\033[F", "\033OF", "\033[4~"}) el_set(editor_, EL_BIND, key, "ed-move-to-end", nullptr);
    el_set(editor_, EL_BIND, "\033[3~", "ed-delete-next-char", nullptr);
    el_set(editor_, EL_BIND, "\033[1;5C", "em-next-word", nullptr);
    el_set(editor_, EL_BIND, "\033[1;5D", "ed-prev-word", nullptr);
    el_set(editor_, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    el_source(editor_, nullptr);  // ~/.editrc, the user's own keys
  }
  ~EditedLines() override { Close(); }
  EditedLines(const EditedLines&) = delete;
  EditedLines& operator=(const EditedLines&) = delete;

  std::optional<std::string> Read() override {
    int count = 0;
    const char* text = el_gets(editor_, &count);
    if (text == nullptr || count <= 0) return std::nullopt;
    std::string line(text, static_cast<size_t>(count));
    while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
    return line;
  }

  void Remember(const std::string& line) override {
    HistEvent event;
    history(history_, &event, H_ENTER, line.c_str());
  }

 private:
  static char* Prompt(EditLine* editor) {
    void* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    return static_cast<EditedLines*>(self)->prompt_.data();
  }
  void Close() {
    if (editor_ != nullptr) el_end(editor_);
    if (history_ != nullptr) history_end(history_);
  }

  std::string prompt_;
  History* history_ = nullptr;
  EditLine* editor_ = nullptr;
};

}  // namespace

bool HasLineEditing() { return true; }

std::unique_ptr<TerminalLines> MakeTerminalLines(const LineEditorOptions& options) {
  return std::make_unique<EditedLines>(options);
}

}  // namespace cairn
