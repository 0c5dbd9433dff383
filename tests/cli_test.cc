// Runs the cairn binary as a user would: every verb that --help lists, and the ways to call it wrongly.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "io/file.h"
#include "test_files.h"

namespace cairn {
namespace {

using Words = std::vector<std::string>;

struct Outcome {
  int code;  // exit code, or -1 when a signal ended the program
  std::string out;
  std::string err;
};

struct Call {
  Words arguments;
  Words variables = {};        // "NAME=value"
  std::string stdout_to = "";  // a file instead of the captured one
};

// Runs the binary in its own process without a shell.
Outcome Cairn(const Call& call) {
  const ScratchDirectory scratch;
  const std::string out = call.stdout_to.empty() ? (scratch / "out").string() : call.stdout_to;
  const std::string err = (scratch / "err").string();
  Words words = {CAIRN_BINARY};
  words.insert(words.end(), call.arguments.begin(), call.arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    for (const char* name : {"CAIRN_THREADS", "CAIRN_ISA", "CAIRN_LOG"}) unsetenv(name);
    for (const std::string& variable : call.variables) putenv(const_cast<char*>(variable.c_str()));
    dup2(open("/dev/null", O_RDONLY), 0);
    dup2(open(out.c_str(), O_WRONLY | O_CREAT, 0600), 1);
    dup2(open(err.c_str(), O_WRONLY | O_CREAT, 0600), 2);
    execv(argv[0], argv.data());
    _exit(127);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, call.stdout_to.empty() ? ReadTextFile(out) : "",
          ReadTextFile(err)};
}

Outcome Cairn(const Words& arguments) { return Cairn(Call{arguments}); }

std::string Join(const Words& words) {
  std::string text = "cairn";
  for (const std::string& word : words) text += " " + word;
  return text;
}

Words With(Words words, const std::string& more) {
  words.push_back(more);
  return words;
}

// Exactly one line on standard error, which begins "cairn: error: ".
void ExpectOneLine(const Outcome& outcome, const std::string& part = "") {
  EXPECT_EQ(outcome.err.rfind("cairn: error: ", 0), 0u) << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_EQ(outcome.err.empty() ? '?' : outcome.err.back(), '\n');
  EXPECT_NE(outcome.err.find(part), std::string::npos) << "'" << outcome.err << "' lacks '" << part << "'";
}

// The same, and nothing on standard output.
void ExpectOneLineError(const Outcome& outcome, int code, const std::string& part = "") {
  EXPECT_EQ(outcome.code, code) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  ExpectOneLine(outcome, part);
}

// The verbs that a help text lists under "Subcommands:".
Words VerbsOf(const std::string& help) {
  Words verbs;
  std::istringstream lines(help);
  bool listing = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("Subcommands:", 0) == 0) {
      listing = true;
    } else if (listing && line.rfind("  ", 0) == 0 && line.size() > 2 && line[2] != ' ') {
      verbs.push_back(line.substr(2, line.find(' ', 2) - 2));
    } else if (listing && (line.empty() || line[0] != ' ')) {
      break;
    }
  }
  return verbs;
}

struct Verb {
  Words words;     // {"bench"}, {"bench", "attention"}
  bool has_verbs;  // of its own
};

// Every verb and verb of a verb below `path`.
std::vector<Verb> FindVerbs(const Words& path) {
  std::vector<Verb> all;
  for (const std::string& name : VerbsOf(Cairn(With(path, "--help")).out)) {
    const auto inner = FindVerbs(With(path, name));
    all.push_back({With(path, name), !inner.empty()});
    all.insert(all.end(), inner.begin(), inner.end());
  }
  return all;
}

const std::vector<Verb>& AllVerbs() {
  static const std::vector<Verb> all = FindVerbs({});
  return all;
}

TEST(Cli, HelpParserFindsVerbs) {
  EXPECT_EQ(VerbsOf("About\nOptions:\n  -h,--help   x\n\nSubcommands:\n  info     Show\n           more\n  bench    "
                    "Run\n\nEnd\n"),
            (Words{"info", "bench"}));
  EXPECT_TRUE(VerbsOf("Options:\n  -h,--help   x\n").empty());
  const Words verbs = VerbsOf(Cairn({"--help"}).out);
  EXPECT_NE(std::find(verbs.begin(), verbs.end(), "info"), verbs.end());
}

TEST(Cli, HelpAndVersionOfTheRoot) {
  const Outcome help = Cairn({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_EQ(help.err, "");
  EXPECT_NE(help.out.find("cairn VERB --help"), std::string::npos) << help.out;
  const Outcome version = Cairn({"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_EQ(version.err, "");
  EXPECT_EQ(version.out.rfind("cairn ", 0), 0u) << version.out;
}

TEST(Cli, EveryVerbHasHelpWithAnExample) {
  ASSERT_FALSE(AllVerbs().empty());
  const std::string root_version = Cairn({"--version"}).out;
  for (const auto& [verb, unused] : AllVerbs()) {
    SCOPED_TRACE(Join(verb));
    for (const char* flag : {"--help", "-h"}) {
      const Outcome help = Cairn(With(verb, flag));
      EXPECT_EQ(help.code, 0);
      EXPECT_EQ(help.err, "");
      const size_t example = help.out.find("Example");
      ASSERT_NE(example, std::string::npos) << help.out;
      EXPECT_NE(help.out.find("cairn " + verb.front(), example), std::string::npos) << help.out;
    }
    const Outcome version = Cairn(With(verb, "--version"));
    EXPECT_EQ(version.code, 0);
    EXPECT_EQ(version.out, root_version);
  }
}

TEST(Cli, BadFlagOfEveryVerbIsAUsageError) {
  for (const auto& [verb, unused] : AllVerbs()) {
    SCOPED_TRACE(Join(verb));
    const Outcome outcome = Cairn(With(verb, "--no-such-flag"));
    ExpectOneLineError(outcome, 2, "--help'");
  }
}

TEST(Cli, UnknownVerbOfAVerbIsAUsageError) {
  for (const auto& [verb, has_verbs] : AllVerbs()) {
    if (!has_verbs) continue;
    SCOPED_TRACE(Join(verb));
    ExpectOneLineError(Cairn(verb), 2, Join(verb) + " --help");
    ExpectOneLineError(Cairn(With(verb, "no-such-verb")), 2, Join(verb) + " --help");
  }
}

TEST(Cli, MissingFileIsAOneLineError) {
  // Verbs that take files must name the missing one; for the others the argument is unexpected. A verb of many files
  // may still print its summary.
  for (const auto& [verb, has_verbs] : AllVerbs()) {
    if (has_verbs) continue;
    SCOPED_TRACE(Join(verb));
    const Outcome outcome = Cairn(With(verb, "/no/such/file"));
    EXPECT_TRUE(outcome.code == 1 || outcome.code == 2) << outcome.code;
    ExpectOneLine(outcome);
  }
}

TEST(Cli, NoVerbAndUnknownVerb) {
  ExpectOneLineError(Cairn(Words{}), 2, "cairn --help");
  ExpectOneLineError(Cairn({"no-such-verb"}), 2, "'no-such-verb' is not a verb");
  ExpectOneLineError(Cairn({"no-such-verb", "--json"}), 2, "'no-such-verb' is not a verb");
  ExpectOneLineError(Cairn({"--no-such-flag"}), 2, "--no-such-flag");
  ExpectOneLineError(Cairn({""}), 2);
  ExpectOneLineError(Cairn({"two\nlines\x1b[31m"}), 2, "two lines [31m");
  ExpectOneLineError(Cairn({"info", "more"}), 2, "more");
}

TEST(Cli, BadEnvironmentIsAnError) {
  ExpectOneLineError(Cairn(Call{{"info"}, {"CAIRN_ISA=abacus"}}), 1, "'abacus'");
  ExpectOneLineError(Cairn(Call{{"info"}, {"CAIRN_THREADS=some"}}), 1, "CAIRN_THREADS");
  ExpectOneLineError(Cairn(Call{{"info"}, {"CAIRN_LOG=loud"}}), 1, "CAIRN_LOG");
  // Help must not depend on it: it is where the variables are explained.
  EXPECT_EQ(Cairn(Call{{"--help"}, {"CAIRN_ISA=abacus"}}).code, 0);
}

TEST(Cli, FullDiskIsAnError) {
  ExpectOneLineError(Cairn(Call{{"info"}, {}, "/dev/full"}), 1);
  ExpectOneLineError(Cairn(Call{{"--help"}, {}, "/dev/full"}), 1);
}

TEST(Cli, InfoObeysTheEnvironment) {
  const Outcome outcome = Cairn(Call{{"info", "--json"}, {"CAIRN_THREADS=3"}});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.err, "");
  EXPECT_NE(outcome.out.find("\"threads\": 3"), std::string::npos) << outcome.out;
}

}  // namespace
}  // namespace cairn
