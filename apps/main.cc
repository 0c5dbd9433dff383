// The cairn binary: parses the verb, runs it, and turns every failure into one line on standard error.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <new>
#include <string>

#include "apps/verbs.h"
#include "base/cpu.h"
#include "base/error.h"
#include "base/log.h"
#include "base/threads.h"

namespace {

constexpr int kFailure = 1;  // the work could not be done, or a check failed
constexpr int kUsage = 2;    // the command line was wrong

// The chosen verb's path, "bench attention", for the hint of an error message.
std::string VerbPath(const CLI::App& root) {
  std::string path = "cairn";
  for (const CLI::App* app = &root; !app->get_subcommands().empty();) {
    app = app->get_subcommands().front();
    path += " " + app->get_name();
  }
  return path;
}

std::string OneLine(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return text;
}

int Complain(const std::string& message, int code) {
  std::fflush(stdout);
  fmt::print(stderr, "cairn: error: {}\n", OneLine(message));
  return code;
}

int Run(int argc, char** argv) {
  CLI::App root("Cairn: landmark attention. Transformers that remember without limit, on ordinary CPUs.", "cairn");
  root.require_subcommand(1);
  root.set_version_flag("--version", "cairn " CAIRN_VERSION);
  root.get_formatter()->column_width(34);
  root.footer("Every verb has its own help with an example: cairn VERB --help\n"
              "Environment: CAIRN_THREADS (number of threads), CAIRN_ISA (instruction set, see cairn info),\n"
              "             CAIRN_LOG (trace, debug, info, warn, error, off)");
  int exit_code = 0;
  cairn::AddDataVerb(root, exit_code);
  cairn::AddInfoVerb(root, exit_code);
  cairn::AddTokenizerVerb(root, exit_code);
  try {
    cairn::InitLogging();
    cairn::InitInstructionSet();
    cairn::ThreadCount();  // complains early about CAIRN_THREADS
    root.parse(argc, argv);
    std::fflush(stdout);
    if (std::ferror(stdout) != 0) return Complain("cannot write to standard output; is the disk full?", kFailure);
    return exit_code;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return root.exit(error);  // --help, --version
    // CLI11 calls an unknown verb an unexpected argument.
    if (argc > 1 && root.get_subcommands().empty() && argv[1][0] != '-') {
      return Complain(fmt::format("'{}' is not a verb of cairn; 'cairn --help' lists them", argv[1]), kUsage);
    }
    return Complain(fmt::format("{}; see '{} --help'", OneLine(error.what()), VerbPath(root)), kUsage);
  } catch (const cairn::Error& error) {
    return Complain(error.what(), kFailure);
  } catch (const cairn::BugError& error) {
    return Complain(fmt::format("this is a bug in Cairn, please report it: {}", error.what()), kFailure);
  } catch (const std::bad_alloc&) {
    return Complain("out of memory; free some or ask for less", kFailure);
  } catch (const std::exception& error) {
    return Complain(error.what(), kFailure);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cairn: error: %s\n", error.what());
    return kFailure;
  }
}
