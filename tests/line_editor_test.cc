// The line editor: plain lines from files, editing and history on a terminal of its own.
#include "chat/line_editor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "io/file.h"
#include "test_files.h"

namespace cairn {
namespace {

// A terminal whose keys the test presses. What is shown is thrown away.
class Terminal {
 public:
  Terminal() {
    if (openpty(&keyboard_, &screen_, nullptr, nullptr, nullptr) != 0) std::abort();
    input_ = fdopen(dup(screen_), "r");
    output_ = fdopen(dup(screen_), "w");
    fcntl(keyboard_, F_SETFL, O_NONBLOCK);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  ~Terminal() {
    std::fclose(input_);
    std::fclose(output_);
    close(screen_);
    close(keyboard_);
  }

  // Reads a line while the keys are pressed by another thread, once the editor waits for them: before, the terminal
  // itself would take some for commands.
  std::optional<std::string> Type(LineEditor& editor, const std::string& keys) const {
    std::thread typist([&] {
      while (HasLineEditing() && !EditorWaits()) std::this_thread::yield();
      if (write(keyboard_, keys.data(), keys.size()) != static_cast<ssize_t>(keys.size())) std::abort();
    });
    auto line = editor.Read();
    typist.join();
    return line;
  }
  LineEditorOptions Options(const std::filesystem::path& history) const {
    return {.prompt = "> ", .history = history, .input = input_, .output = output_};
  }

 private:
  bool EditorWaits() const {
    char shown[4096];
    while (read(keyboard_, shown, sizeof(shown)) > 0) {
    }
    termios modes{};
    return tcgetattr(screen_, &modes) == 0 && (modes.c_lflag & ICANON) == 0;
  }

  int keyboard_ = -1, screen_ = -1;
  FILE* input_ = nullptr;
  FILE* output_ = nullptr;
};

class LineEditorTest : public testing::Test {
 protected:
  void SetUp() override {
    setenv("TERM", "xterm", 1);
    setenv("HOME", scratch_.path().c_str(), 1);  // no ~/.editrc
  }
  ScratchDirectory scratch_{SmallFilesDirectory()};
};

TEST_F(LineEditorTest, PlainLinesFromAFile) {
  WriteFileAtomically(scratch_ / "in", "one\r\n\n two \nlast");
  FILE* input = std::fopen((scratch_ / "in").c_str(), "r");
  LineEditor editor({.prompt = "> ", .history = scratch_ / "history", .input = input});
  EXPECT_FALSE(editor.is_terminal());
  EXPECT_EQ(editor.Read(), "one");
  EXPECT_EQ(editor.Read(), "");
  EXPECT_EQ(editor.Read(), " two ");
  EXPECT_EQ(editor.Read(), "last");
  EXPECT_EQ(editor.Read(), std::nullopt);
  EXPECT_FALSE(std::filesystem::exists(scratch_ / "history"));
  std::fclose(input);
}

TEST_F(LineEditorTest, HistoryPathFollowsTheEnvironment) {
  setenv("XDG_STATE_HOME", "/state", 1);
  EXPECT_EQ(HistoryPath("chat"), "/state/cairn/chat");
  setenv("XDG_STATE_HOME", "relative", 1);
  setenv("HOME", "/home/ann", 1);
  EXPECT_EQ(HistoryPath("chat"), "/home/ann/.local/state/cairn/chat");
  unsetenv("XDG_STATE_HOME");
  unsetenv("HOME");
  EXPECT_EQ(HistoryPath("chat"), "");
}

TEST_F(LineEditorTest, TerminalLinesJoinTheHistory) {
  const auto history = scratch_.path() / "deep" / "down" / "history";
  {
    const Terminal terminal;
    LineEditor editor(terminal.Options(history));
    EXPECT_TRUE(editor.is_terminal());
    for (const std::string line : {"first", "  ", "second", "second", "h\xc3\xa9"}) {
      EXPECT_EQ(terminal.Type(editor, line + "\n"), line);
    }
  }
  EXPECT_EQ(ReadTextFile(history), "first\nsecond\nh\xc3\xa9\n");
  EXPECT_EQ(std::filesystem::status(history.parent_path()).permissions() & std::filesystem::perms::others_all,
            std::filesystem::perms::none);
}

TEST_F(LineEditorTest, ForgetsTheOldest) {
  std::string many;
  for (int i = 0; i < 1500; ++i) many += "line " + std::to_string(i) + "\n";
  WriteFileAtomically(scratch_ / "history", many);
  const Terminal terminal;
  LineEditor editor(terminal.Options(scratch_ / "history"));
  EXPECT_EQ(terminal.Type(editor, "new\n"), "new");
  const std::string kept = ReadTextFile(scratch_ / "history");
  EXPECT_EQ(kept.substr(0, 9), "line 501\n");
  EXPECT_EQ(std::count(kept.begin(), kept.end(), '\n'), 1000);
}

TEST_F(LineEditorTest, AHistoryThatCannotBeWrittenIsNoError) {
  WriteFileAtomically(scratch_ / "file", "x");
  const Terminal terminal;
  LineEditor editor(terminal.Options(scratch_.path() / "file" / "history"));
  EXPECT_EQ(terminal.Type(editor, "a\n"), "a");
  EXPECT_EQ(terminal.Type(editor, "b\n"), "b");
}

TEST_F(LineEditorTest, Editing) {
  if (!HasLineEditing()) GTEST_SKIP() << "built without libedit";
  WriteFileAtomically(scratch_ / "history", "old one\nold two\n");
  const Terminal terminal;
  LineEditor editor(terminal.Options(scratch_ / "history"));
  const std::string left = "\033[D", up = "\033[A", home = "\033[H", end = "\033[F", erase = "\177";
  EXPECT_EQ(terminal.Type(editor, "helo" + left + "l\n"), "hello");
  EXPECT_EQ(terminal.Type(editor, "ab\xc3\xa9" + erase + "c\n"), "abc");
  EXPECT_EQ(terminal.Type(editor, "b" + home + "a" + end + "c\n"), "abc");
  EXPECT_EQ(terminal.Type(editor, up + up + up + "!\n"), "old two!");
  EXPECT_EQ(terminal.Type(editor, "\004"), std::nullopt);  // Ctrl-D
}

}  // namespace
}  // namespace cairn
