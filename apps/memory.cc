// cairn ingest, inspect, verify and forget: memories on disk.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/session_flags.h"
#include "apps/verbs.h"
#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "data/text_files.h"
#include "infer/ingest.h"
#include "io/long_text.h"
#include "memory/memory_check.h"

namespace cairn {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

volatile std::sig_atomic_t interrupted = 0;

struct IngestFlags {
  SessionFlags session;
  std::string output;
  std::vector<std::string> texts;
  uint64_t ram = uint64_t{512} << 20;
  bool json = false;
};

void RunIngest(const IngestFlags& flags) {
  const bool from_input = std::count(flags.texts.begin(), flags.texts.end(), "-") > 0;
  std::vector<fs::path> files;
  {
    std::vector<fs::path> named;
    for (const std::string& text : flags.texts) {
      if (text != "-") named.emplace_back(text);
    }
    if (!named.empty()) files = FindTextFiles(named).files;
  }
  const auto model = LoadModel(flags.session);
  const auto tokenizer = LoadTokenizerOf(flags.session, *model);
  Ingest ingest(flags.output, model, tokenizer, OptionsFrom(flags.session, *model), flags.ram);
  WarnBeyondTraining(*model, ingest.session().options());
  std::signal(SIGINT, [](int) { interrupted = 1; });
  std::signal(SIGTERM, [](int) { interrupted = 1; });
  const auto begin = std::chrono::steady_clock::now();
  size_t tokens = 0;
  Json added = Json::array();
  const auto add = [&](const std::string& name, const LongText& text) {
    std::optional<Progress> bar;
    uint64_t shown = 0;
    const IngestResult result = ingest.Add(name, text, [&](const IngestProgress& progress) {
      if (!bar) bar.emplace(fs::path(name).filename().string(), progress.total);
      bar->Add(progress.done - shown);
      shown = progress.done;
      return interrupted == 0;
    });
    tokens += result.tokens;
    const char* state = result.state == IngestResult::State::kAlreadyThere ? "already there"
                        : result.state == IngestResult::State::kResumed    ? "continued"
                                                                           : "added";
    added.push_back({{"source", name}, {"state", state}, {"tokens", result.tokens}, {"blocks", result.blocks}});
    if (!flags.json) {
      bar.reset();
      fmt::print("{:<14} {}  {} tokens, {} blocks\n", state, name, result.tokens, result.blocks);
    }
  };
  for (const fs::path& file : files) {
    if (interrupted != 0) break;
    add(file.string(), LongText::OfFile(file));
  }
  if (from_input && interrupted == 0) {
    add("-", LongText::OfStream(STDIN_FILENO, "standard input"));
  }
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const Session::Counters counters = ingest.session().counters();
  if (flags.json) {
    Json out;
    out["memory"] = flags.output;
    out["sources"] = added;
    out["tokens"] = tokens;
    out["tokens_per_second"] = static_cast<double>(tokens) / std::max(seconds, 1e-9);
    out["blocks"] = ingest.blocks();
    out["file_bytes"] = ingest.session().cache()->file()->file_bytes();
    out["ram_bytes"] = counters.memory_bytes;
    out["interrupted"] = interrupted != 0;
    fmt::print("{}\n", out.dump(2));
    return;
  }
  fmt::print("{}: {} blocks, {:.1f} MB on disk, {:.1f} MB of them and their landmarks in RAM; {:.0f} tokens/s\n",
             flags.output, ingest.blocks(), static_cast<double>(ingest.session().cache()->file()->file_bytes()) / 1e6,
             static_cast<double>(counters.memory_bytes) / 1e6, static_cast<double>(tokens) / std::max(seconds, 1e-9));
  if (interrupted != 0) fmt::print("stopped; the same command goes on from here\n");
}

void RunInspect(const std::string& path, bool json) {
  const MemoryFile file(path);
  const MemoryIdentity& identity = file.identity();
  std::vector<size_t> blocks(file.sources().size());
  for (const BlockSpan& span : file.spans()) ++blocks[span.source];
  Json out;
  out["memory"] = path;
  out["model"] = identity.model;
  out["fingerprint"] = identity.fingerprint;
  out["layers"] = identity.layers;
  out["kv_heads"] = identity.kv_heads;
  out["dim"] = identity.block.dim;
  out["block_length"] = identity.block.tokens;
  out["format"] = NameOf(identity.block.format);
  out["blocks"] = file.blocks();
  out["tokens"] = file.blocks() * identity.block.tokens;
  out["commits"] = file.commits();
  out["file_bytes"] = file.file_bytes();
  out["sources"] = Json::array();
  for (size_t i = 0; i < blocks.size(); ++i) {
    const MemorySource& source = file.sources()[i];
    out["sources"].push_back({{"name", source.name},
                              {"bytes", source.bytes},
                              {"blocks", blocks[i]},
                              {"complete", source.complete},
                              {"forgotten", source.forgotten}});
  }
  if (json) {
    fmt::print("{}\n", out.dump(2));
    return;
  }
  fmt::print("model          {} ({})\nshape          {} layers, {} KV heads of {}, blocks of {} tokens, {}\n",
             identity.model, identity.fingerprint, identity.layers, identity.kv_heads, identity.block.dim,
             identity.block.tokens, NameOf(identity.block.format));
  fmt::print("size           {} blocks, {} tokens, {} commits, {:.1f} MB\n\n", file.blocks(),
             file.blocks() * identity.block.tokens, file.commits(), static_cast<double>(file.file_bytes()) / 1e6);
  for (size_t i = 0; i < blocks.size(); ++i) {
    const MemorySource& source = file.sources()[i];
    fmt::print("{:>8} blocks  {:>10} bytes  {}{}\n", blocks[i], source.bytes, source.name,
               source.forgotten  ? "  (forgotten)"
               : source.complete ? ""
                                 : "  (incomplete: ingest it again to go on)");
  }
}

void RunVerify(const std::string& path, const std::string& repair, bool json, int& exit_code) {
  const MemoryCheck check = MemoryCheck::Run(path);
  size_t lost = 0;
  if (!repair.empty()) lost = RepairMemory(path, repair);
  Json out;
  out["memory"] = path;
  out["good_blocks"] = check.good_blocks;
  out["uncommitted_bytes"] = check.uncommitted_bytes;
  out["damages"] = Json::array();
  for (const MemoryDamage& damage : check.damages) {
    out["damages"].push_back({{"part", damage.part}, {"first_block", damage.first_block}, {"blocks", damage.blocks}});
  }
  if (!repair.empty()) {
    out["repaired"] = repair;
    out["lost_blocks"] = lost;
  }
  if (json) {
    fmt::print("{}\n", out.dump(2));
  } else {
    for (const MemoryDamage& damage : check.damages) {
      fmt::print("damaged: {}{}\n", damage.part,
                 damage.blocks > 0 ? fmt::format(" ({} blocks from {})", damage.blocks, damage.first_block) : "");
    }
    fmt::print("{}: {} good blocks, {}\n", path, check.good_blocks,
               check.damages.empty() ? "nothing damaged" : fmt::format("{} damaged parts", check.damages.size()));
    if (check.uncommitted_bytes > 0) {
      fmt::print("{} bytes were never committed; the next ingest cuts them off\n", check.uncommitted_bytes);
    }
    if (!repair.empty()) fmt::print("wrote {} with what is good; {} blocks are lost\n", repair, lost);
  }
  if (!check.damages.empty() && repair.empty()) exit_code = 1;
}

}  // namespace

void AddIngestVerb(CLI::App& root, int&) {
  CLI::App* verb = root.add_subcommand("ingest", "Read texts into a memory on disk");
  auto flags = std::make_shared<IngestFlags>();
  flags->session.AddModel(*verb);
  verb->add_option("-o,--output", flags->output, "The memory; made, or appended to")->required();
  verb->add_option("TEXT", flags->texts, "Text files or folders; - for standard input")->required();
  verb->add_option("--ram", flags->ram, "RAM for blocks and landmarks, e.g. 512M")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  flags->session.AddAttention(*verb);
  verb->add_flag("--json", flags->json, "Print JSON");
  verb->footer(
      "Running it again appends; a text that is there already is left out, one that was interrupted goes on.\n\n"
      "Example:\n  cairn ingest -m model -o books.cairn books/ --ram 512M\n  cairn ask -m model books.cairn -p \"Who "
      "was\"");
  verb->callback([flags] { RunIngest(*flags); });
}

void AddInspectVerb(CLI::App& root, int&) {
  CLI::App* verb = root.add_subcommand("inspect", "Show what a memory holds");
  auto path = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  verb->add_option("MEMORY", *path, "The memory")->required();
  verb->add_flag("--json", *json, "Print JSON");
  verb->footer("Example:\n  cairn inspect books.cairn");
  verb->callback([path, json] { RunInspect(*path, *json); });
}

void AddVerifyVerb(CLI::App& root, int& exit_code) {
  CLI::App* verb =
      root.add_subcommand("verify", "Check every byte of a memory, and save what is good of a damaged one");
  auto path = std::make_shared<std::string>();
  auto repair = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  verb->add_option("MEMORY", *path, "The memory")->required();
  verb->add_option("--repair", *repair, "Write what is good to this new file");
  verb->add_flag("--json", *json, "Print JSON");
  verb->footer(
      "Exit code 1 when something is damaged.\n\nExample:\n  cairn verify books.cairn --repair books-good.cairn");
  verb->callback([path, repair, json, &exit_code] { RunVerify(*path, *repair, *json, exit_code); });
}

void AddForgetVerb(CLI::App& root, int&) {
  CLI::App* verb = root.add_subcommand("forget", "Remove a source from a memory");
  auto path = std::make_shared<std::string>();
  auto source = std::make_shared<std::string>();
  verb->add_option("MEMORY", *path, "The memory")->required();
  verb->add_option("--source", *source, "Name of the source, as cairn inspect shows it")->required();
  verb->footer("Example:\n  cairn forget books.cairn --source books/emma.txt");
  verb->callback([path, source] {
    const size_t blocks = ForgetSource(*path, *source);
    fmt::print("forgot {}  {} blocks are not read any more\n", *source, blocks);
  });
}

}  // namespace cairn
