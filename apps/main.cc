// The cairn binary: parses the verb, runs it, and turns every failure into one line on standard error.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
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

constexpr char kCannotPrint[] = "cannot write to standard output; is the disk full?";

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
    // Names out of a hostile file must not steer the terminal.
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return text;
}

// Every verb understands --version, but only the root's help mentions it.
void AddVersionFlag(CLI::App& app) {
  for (CLI::App* verb : app.get_subcommands([](CLI::App*) { return true; })) {
    verb->set_version_flag("--version", "cairn " CAIRN_VERSION)->group("");
    AddVersionFlag(*verb);
  }
}

int Complain(const std::string& message, int code) {
  std::fflush(stdout);
  fmt::print(stderr, "cairn: error: {}\n", OneLine(message));
  return code;
}

void ObeyEnvironment() {
  cairn::InitLogging();
  cairn::InitInstructionSet();
  cairn::ThreadCount();  // complains early about CAIRN_THREADS
}

int Run(int argc, char** argv) {
  CLI::App root("Cairn: landmark attention. Transformers that remember without limit, on ordinary CPUs.", "cairn");
  root.require_subcommand(1);
  root.set_version_flag("--version", "cairn " CAIRN_VERSION);
  root.get_formatter()->column_width(34);
  root.footer(
      "Every verb has its own help with an example: cairn VERB --help\n"
      "Environment: CAIRN_THREADS (number of threads), CAIRN_ISA (instruction set, see cairn info),\n"
      "             CAIRN_LOG (trace, debug, info, warn, error, off)");
  int exit_code = 0;
  cairn::AddAskVerb(root, exit_code);
  cairn::AddBenchVerb(root, exit_code);
  cairn::AddChatVerb(root, exit_code);
  cairn::AddConvertVerb(root, exit_code);
  cairn::AddDataVerb(root, exit_code);
  cairn::AddEvalVerb(root, exit_code);
  cairn::AddExampleVerb(root, exit_code);
  cairn::AddForgetVerb(root, exit_code);
  cairn::AddGenerateVerb(root, exit_code);
  cairn::AddGoldenVerb(root, exit_code);
  cairn::AddInfoVerb(root, exit_code);
  cairn::AddIngestVerb(root, exit_code);
  cairn::AddInspectVerb(root, exit_code);
  cairn::AddModelVerb(root, exit_code);
  cairn::AddPlotVerb(root, exit_code);
  cairn::AddQuantizeVerb(root, exit_code);
  cairn::AddSearchVerb(root, exit_code);
  cairn::AddTokenizerVerb(root, exit_code);
  cairn::AddTrainVerb(root, exit_code);
  cairn::AddTuneVerb(root, exit_code);
  cairn::AddVerifyVerb(root, exit_code);
  try {
    AddVersionFlag(root);
    root.parse_complete_callback(ObeyEnvironment);  // after --help, which must work in any environment
    root.parse(argc, argv);
    std::fflush(stdout);
    if (std::ferror(stdout) != 0) return Complain(kCannotPrint, kFailure);
    return exit_code;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help, --version
      root.exit(error);
      return std::cout.flush() ? 0 : Complain(kCannotPrint, kFailure);
    }
    // CLI11 would only say that a subcommand is required.
    if (argc <= 1) return Complain("no verb given; 'cairn --help' lists them", kUsage);
    if (root.get_subcommands().empty()) {
      return Complain(fmt::format("'{}' is not a {} of cairn; 'cairn --help' lists them", argv[1],
                                  argv[1][0] == '-' ? "flag" : "verb"),
                      kUsage);
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
