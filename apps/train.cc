// cairn train and cairn tune: a training run from its config file.
#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "apps/target.h"
#include "apps/verbs.h"
#include "base/error.h"
#include "base/log.h"
#include "base/threads.h"
#include "bench/machine.h"
#include "formats/huggingface.h"
#include "kernels/subnormals.h"
#include "train/lora.h"
#include "train/run_log.h"
#include "train/trainer.h"

namespace cairn {

namespace {

namespace fs = std::filesystem;

volatile std::sig_atomic_t stop_requested = 0;

// The first signal asks the run to save and end; the handler is gone then, so the second one kills.
void AskToStop(int) { stop_requested = 1; }

void HandleSignals() {
  struct sigaction action {};
  action.sa_handler = AskToStop;
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

struct Options {
  fs::path config;
  fs::path from;    // tune
  fs::path merge;   // tune: adapter
  fs::path merged;  // tune: where the merged model goes
  fs::path output;
  std::string attention;
  uint64_t steps = 0;
  bool resume = false, force = false, json = false;
};

RunOverrides OverridesOf(const Options& options) {
  RunOverrides overrides;
  if (options.steps > 0) overrides.steps = options.steps;
  if (!options.output.empty()) overrides.output = options.output;
  if (options.attention == "landmark") overrides.attention = AttentionKind::kLandmark;
  if (options.attention == "full") overrides.attention = AttentionKind::kFull;
  if (options.attention == "xl") overrides.attention = AttentionKind::kXl;
  return overrides;
}

void Report(const TrainResult& result, bool json) {
  if (json) {
    nlohmann::ordered_json out{{"steps", result.steps}, {"interrupted", result.interrupted}};
    if (result.loss) out["loss"] = *result.loss;
    if (result.validation_loss) out["validation_loss"] = *result.validation_loss;
    out["seconds"] = result.seconds;
    out["checkpoint"] = result.checkpoint.string();
    if (!result.interrupted) out["result"] = result.result.string();
    fmt::print("{}\n", out.dump(2));
    return;
  }
  if (result.interrupted) {
    fmt::print("interrupted after step {}; saved in {}\ncontinue with --resume\n", result.steps,
               result.checkpoint.string());
    return;
  }
  fmt::print("steps       {} in {}\n", result.steps, Duration(result.seconds));
  if (result.loss) fmt::print("loss        {:.4f}\n", *result.loss);
  if (result.validation_loss) fmt::print("validation  {:.4f}\n", *result.validation_loss);
  fmt::print("result      {}\n", result.result.string());
}

void Train(const Options& options) {
  FlushSubnormals();
  const auto communicator = MakeCommunicator();
  try {
    const RunConfig config = ReadRunConfig(options.config, OverridesOf(options));
    if (config.training.threads > 0) SetThreadCount(static_cast<int>(config.training.threads));
    TrainJob job =
        options.from.empty() ? PrepareTraining(config) : PrepareTuning(config, *OpenModel(options.from), options.from);
    TrainerOptions trainer;
    trainer.resume = options.resume;
    trainer.force = options.force;
    trainer.show_line = isatty(STDERR_FILENO) == 1;
    trainer.stop = [] { return stop_requested != 0; };
    if (communicator->world() == 1) trainer.peak_flops = MeasureF32Gflops() * 1e9;
    HandleSignals();
    const TrainResult result = RunTraining(job, trainer, *communicator);
    if (communicator->rank() == 0) Report(result, options.json);
  } catch (const std::exception& error) {
    // The others would wait for this one for ever.
    if (communicator->world() > 1) {
      fmt::print(stderr, "cairn: error: rank {} of {}: {}\n", communicator->rank(), communicator->world(),
                 error.what());
      communicator->Abort(1);
    }
    throw;
  }
}

void Merge(const Options& options) {
  if (options.merged.empty()) Fail("--merge needs -o DIR for the merged model");
  RefuseExisting(options.merged, options.force);
  std::error_code ignored;
  const auto merged = MergeAdapter(*OpenModel(options.from), options.merge);
  HuggingFaceWriteOptions write;
  write.files_to_copy = TokenizerFilesOf(options.merge);
  if (write.files_to_copy.empty() && fs::is_directory(options.from, ignored)) {
    write.files_to_copy = TokenizerFilesOf(options.from);
  }
  WriteHuggingFace(*merged, options.merged, write);
  fmt::print("wrote {}\n", options.merged.string());
}

void AddRunOptions(CLI::App& verb, Options& options) {
  verb.add_flag("--resume", options.resume, "Go on from the newest checkpoint in the output directory");
  verb.add_flag("--force", options.force, "Replace an earlier run in the output directory")->excludes("--resume");
  verb.add_option("--steps", options.steps, "Steps, in place of training.steps")->check(CLI::PositiveNumber);
  verb.add_option("--output", options.output, "Output directory, in place of output");
  verb.add_option("--attention", options.attention, "Kind of attention, in place of the landmark section's")
      ->check(CLI::IsMember({"landmark", "full", "xl"}));
  verb.add_flag("--json", options.json, "Print the result as JSON");
}

}  // namespace

void AddTrainVerb(CLI::App& root, int&) {
  CLI::App* verb = root.add_subcommand("train", "Train a model from scratch");
  auto options = std::make_shared<Options>();
  verb->add_option("CONFIG", options->config, "Description of the run, JSON")->required();
  AddRunOptions(*verb, *options);
  verb->footer(
      "Ctrl-C saves a checkpoint and ends; --resume goes on with exactly the same losses.\n"
      "Examples:\n  cairn train configs/books-landmark.json\n  cairn train configs/books-landmark.json --resume\n"
      "  mpirun -n 2 cairn train configs/books-landmark.json");
  verb->callback([options] { Train(*options); });
}

void AddTuneVerb(CLI::App& root, int&) {
  CLI::App* verb = root.add_subcommand("tune", "Tune a pretrained model, or turn it into a landmark model");
  auto options = std::make_shared<Options>();
  CLI::Option* config = verb->add_option("CONFIG", options->config, "Description of the run, JSON");
  verb->add_option("--from", options->from, "Hugging Face directory, GGUF file or llama2.c file")->required();
  AddRunOptions(*verb, *options);
  CLI::Option* merge =
      verb->add_option("--merge", options->merge, "Adapter to put into the weights, in place of a run");
  merge->excludes(config);
  verb->add_option("-o", options->merged, "Directory for the merged model")->needs(merge);
  verb->footer(
      "Examples:\n  cairn tune --from stories15M.bin configs/tune-stories.json\n"
      "  cairn tune --from stories15M.bin --merge runs/stories/adapter -o stories-landmark");
  verb->callback([options] {
    if (!options->merge.empty()) return Merge(*options);
    if (options->config.empty()) Fail("no CONFIG given; see 'cairn tune --help'");
    Train(*options);
  });
}

}  // namespace cairn
