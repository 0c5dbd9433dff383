#include "train/trainer.h"

#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "base/random.h"
#include "base/threads.h"
#include "formats/huggingface.h"
#include "kernels/elementwise.h"
#include "model/initial_weights.h"
#include "train/checkpoint.h"
#include "train/engine.h"
#include "train/lora.h"
#include "train/model_growth.h"
#include "train/optimizer.h"
#include "train/run_log.h"
#include "train/weight_average.h"

namespace cairn {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

uint64_t DrawSeed(uint64_t seed, uint64_t sample, uint64_t purpose) {
  return Random(seed + 0x9e3779b97f4a7c15u * (2 * sample + purpose + 1)).Next();
}

size_t BlockLength(const ModelConfig& model) {
  return model.landmark.attention == AttentionKind::kLandmark ? model.landmark.block_length : 0;
}

// A validation directory may hold both splits, or be a preparation of its own.
std::shared_ptr<const TokenDataset> OpenValidation(const fs::path& directory) {
  const auto splits = TokenDataset::Splits(directory);
  const bool held_out = std::find(splits.begin(), splits.end(), kValidationSplit) != splits.end();
  return TokenDataset::Open(directory, held_out ? kValidationSplit : kTrainSplit);
}

// Names the settings in which two runs differ, "training.seed, model.hidden_size"; the number of steps may change.
std::string Differences(const std::string& a, const std::string& b) {
  nlohmann::json left = nlohmann::json::parse(a), right = nlohmann::json::parse(b);
  std::string result;
  for (const auto& change : nlohmann::json::diff(left, right)) {
    std::string path = change.at("path").get<std::string>().substr(1);
    std::replace(path.begin(), path.end(), '/', '.');
    if (path == "training.steps" || path == "training.warmup_steps") continue;
    result += (result.empty() ? "" : ", ") + path;
  }
  return result;
}

class Trainer {
 public:
  Trainer(TrainJob& job, const TrainerOptions& options, Communicator& communicator);
  TrainResult Run();

 private:
  bool leads() const { return communicator_.rank() == 0; }
  fs::path output() const { return job_.config.output; }
  fs::path checkpoints() const { return output() / "checkpoints"; }
  CheckpointValues values() {
    return {trainable_->tensors(),
            {trainable_->values(), trainable_->size()},
            optimizer_->first(),
            optimizer_->second(),
            average_ ? average_->values() : std::span<float>()};
  }
  std::string weights_name() const { return job_.config.lora ? "adapter.safetensors" : "model.safetensors"; }

  void OpenData();
  void PrepareOutput();
  void Resume();
  void Share();
  double Step(uint64_t step, double& norm);
  EngineBatch Decorate(const Batch& batch, uint64_t index);
  double Validate();
  void Log(uint64_t step, double norm);
  void Save();
  void Export(TrainResult& result);
  void ClearGradients();
  Json FirstRecord() const;

  TrainJob& job_;
  const TrainingConfig& training_;
  const TrainerOptions& options_;
  Communicator& communicator_;
  BatchOptions batch_options_;
  std::unique_ptr<BatchMaker> batches_;
  std::unique_ptr<SequentialBatches> validation_;
  std::unique_ptr<RecallRows> recall_;             // of the training, or null
  std::unique_ptr<RecallRows> recall_validation_;  // every row hides facts, only answers are scored
  std::unique_ptr<Trainable> trainable_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<WeightAverage> average_;  // null: the model is what the last step left
  std::unique_ptr<Parameters> gradients_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<RunLog> log_;
  CheckpointState state_;
  std::string essence_;
  fs::path last_checkpoint_;
  bool stop_ = false;
  std::optional<double> validation_loss_;
  std::optional<double> last_loss_;
  // Since the last record.
  uint64_t interval_tokens_ = 0;
  double interval_seconds_ = 0;
  uint64_t interval_steps_ = 0;
  // Sums over this process's batches that taught the choice.
  double choice_loss_ = 0, choice_found_ = 0, choice_found_by_any_ = 0;
  uint64_t choice_batches_ = 0;

  std::vector<Batch> micro_;
  std::vector<int32_t> positions_;
  std::vector<uint8_t> controlled_;
};

Trainer::Trainer(TrainJob& job, const TrainerOptions& options, Communicator& communicator)
    : job_(job), training_(job.config.training), options_(options), communicator_(communicator) {
  if (training_.threads > 0) SetThreadCount(static_cast<int>(training_.threads));
  const size_t world = communicator.world();
  if (training_.batch_rows % world != 0) {
    Fail("'{}': training.batch_rows is {}, which {} processes cannot share evenly", job.config.name,
         training_.batch_rows, world);
  }
  if (training_.choice) {
    const LandmarkConfig& landmark = job.model.landmark;
    if (landmark.attention != AttentionKind::kLandmark || landmark.positional_jump > 0) {
      Fail("'{}': training.choice needs landmark attention without positional jumps", job.config.name);
    }
    if (training_.choice->first_layer >= job.model.num_hidden_layers) {
      Fail("'{}': training.choice.first_layer is {}, but the model's last layer is {}", job.config.name,
           training_.choice->first_layer, job.model.num_hidden_layers - 1);
    }
  }
  OpenData();
  if (job.config.lora) {
    trainable_ = std::make_unique<LoraTrainable>(*job.weights, *job.config.lora, job.new_tokens, training_.seed);
  } else {
    trainable_ = std::make_unique<FullTrainable>(*job.weights, training_.decay_norms);
  }
  optimizer_ = std::make_unique<Optimizer>(training_, *trainable_);
  if (training_.average > 0) average_ = std::make_unique<WeightAverage>(training_.average, *trainable_);
  gradients_ = std::make_unique<Parameters>(*job.layout);
  EngineOptions engine_options;
  engine_options.rows = training_.batch_rows / world;
  engine_options.time = training_.context_length;
  engine_options.recompute = training_.recompute;
  engine_options.choice = training_.choice;
  engine_ = std::make_unique<Engine>(job.model, *job.layout, engine_options);
}

void Trainer::OpenData() {
  const DataConfig& data = job_.config.data;
  batch_options_.context_length = training_.context_length;
  batch_options_.block_length = BlockLength(job_.model);
  batch_options_.landmark_id =
      batch_options_.block_length > 0 ? static_cast<int32_t>(job_.model.landmark.landmark_id) : -1;
  batch_options_.batch_size = training_.batch_rows / communicator_.world();
  batch_options_.seed = training_.seed;
  batch_options_.documents = data.documents;
  batch_options_.rank = communicator_.rank();
  batch_options_.world = communicator_.world();
  const auto check = [&](const std::shared_ptr<const TokenDataset>& dataset) {
    dataset->CheckTokenizer(*job_.tokenizer);
    return WindowIndex::Datasets{dataset};
  };
  const auto train = TokenDataset::Open(data.train, kTrainSplit);
  batches_ = std::make_unique<BatchMaker>(check(train), batch_options_);
  // A resumed run must see the same tokens and, in tuning, the same base.
  auto essence = nlohmann::json::parse(Essence(job_.config, job_.model));
  essence["data"]["train"] = fmt::format("{} tokens, checksum {}", train->token_count(), train->Checksum());
  if (!job_.base.empty()) essence["base"] = job_.base_checksum;
  essence_ = essence.dump();
  if (data.validation) {
    validation_ = std::make_unique<SequentialBatches>(check(OpenValidation(*data.validation)), batch_options_);
  }
  if (data.recall) {
    recall_ = std::make_unique<RecallRows>(*train, job_.tokenizer, batch_options_, *data.recall);
    RecallConfig answers = *data.recall;
    answers.share = 1;
    answers.echo = 0;
    answers.text_targets = 0;
    recall_validation_ = std::make_unique<RecallRows>(recall_->With(answers, ~batch_options_.seed));
  }
}

void Trainer::PrepareOutput() {
  const fs::path log = output() / "log.jsonl";
  const fs::path parts[] = {log, checkpoints(), output() / "model", output() / "adapter"};
  std::error_code error;
  if (!options_.resume) {
    for (const fs::path& part : parts) {
      if (!fs::exists(part, error)) continue;
      if (!options_.force) {
        Fail("'{}' already holds a run; continue it with --resume, replace it with --force, or choose another output",
             output().string());
      }
      fs::remove_all(part, error);
    }
  }
  fs::create_directories(checkpoints(), error);
  if (error) Fail("cannot create '{}': {}", checkpoints().string(), error.message());
  RemoveUnfinishedCheckpoints(checkpoints());
}

// Rank 0 reads; Share gives it to the others.
void Trainer::Resume() {
  const auto found = LoadNewestCheckpoint(checkpoints(), values(), weights_name(), [&](const CheckpointState& state) {
    const std::string differences = Differences(state.essence, essence_);
    if (!differences.empty()) {
      Fail("the run in '{}' was started with other settings ({}); restore them, or start over with --force",
           output().string(), differences);
    }
    if (state.step > training_.steps) {
      Fail("the run in '{}' has done {} steps, more than the {} asked for", output().string(), state.step,
           training_.steps);
    }
  });
  if (!found) {
    spdlog::info("'{}' has no checkpoint; starting at step 0", output().string());
    return;
  }
  state_ = *found;
  engine_->RestoreBanks(state_.bank);
  if (!state_.bank.empty() && communicator_.world() > 1) {
    spdlog::warn("only the first process's bank of earlier blocks is in a checkpoint; the others begin empty");
  }
  state_.bank = {};
  last_checkpoint_ = ListCheckpoints(checkpoints()).back();
  for (const fs::path& path : ListCheckpoints(checkpoints())) {
    if (path.filename() == fmt::format("step-{:06}", state_.step)) last_checkpoint_ = path;
  }
  if (state_.threads != ThreadCount() || state_.processes != communicator_.world()) {
    spdlog::warn("the run had {} threads and {} processes, now {} and {}: losses may differ in their last digits",
                 state_.threads, state_.processes, ThreadCount(), communicator_.world());
  }
  const auto old = nlohmann::json::parse(state_.essence);
  if (old["training"]["steps"] != training_.steps) {
    spdlog::warn("the run was planned for {} steps, now {}: the learning rate follows the new plan",
                 old["training"]["steps"].get<uint64_t>(), training_.steps);
  }
  spdlog::info("resuming after step {} from '{}'", state_.step, last_checkpoint_.string());
}

void Trainer::Share() {
  if (communicator_.world() == 1) return;
  const auto share = [&](auto values) { communicator_.Broadcast(std::as_writable_bytes(values)); };
  share(std::span(job_.weights->data(), job_.weights->size()));
  share(std::span(trainable_->values(), trainable_->size()));
  share(optimizer_->first());
  share(optimizer_->second());
  if (average_) share(average_->values());
  uint64_t numbers[] = {state_.step, state_.tokens, state_.loss_steps};
  double reals[] = {state_.seconds, state_.loss_sum};
  share(std::span(numbers));
  share(std::span(reals));
  state_.step = numbers[0], state_.tokens = numbers[1], state_.loss_steps = numbers[2];
  state_.seconds = reals[0], state_.loss_sum = reals[1];
}

// `index`: which micro-batch of the run this is. The result points into `batch` and members.
EngineBatch Trainer::Decorate(const Batch& batch, uint64_t index) {
  EngineBatch result;
  result.rows = batch.rows;
  result.time = batch.positions;
  result.input_ids = batch.input_ids.data();
  result.targets = batch.targets.data();
  result.answer_blocks = batch.answer_blocks;
  result.choice_scale = 1.0f / static_cast<float>(training_.accumulate * communicator_.world());
  const uint64_t share = index * communicator_.world() + communicator_.rank();
  result.bank_key = share;
  const auto sample = [&](size_t row) { return share * batch.rows + row; };
  if (BlockLength(job_.model) == 0) return result;
  if (job_.model.landmark.positional_jump > 0) {
    positions_.resize(batch.rows * batch.positions);
    for (size_t row = 0; row < batch.rows; ++row) {
      DrawPositions(job_.model, training_.seed, sample(row),
                    std::span(positions_).subspan(row * batch.positions, batch.positions));
    }
    result.positions = positions_.data();
  }
  if (job_.model.landmark.context_miss.enabled) {
    const size_t blocks = DivideUp(batch.positions, BlockLength(job_.model) + 1);
    controlled_.resize(batch.rows * blocks);
    for (size_t row = 0; row < batch.rows; ++row) {
      DrawControlled(job_.model, training_.seed, sample(row), std::span(controlled_).subspan(row * blocks, blocks));
    }
    result.controlled = controlled_.data();
  }
  return result;
}

void Trainer::ClearGradients() {
  constexpr size_t kPiece = size_t{1} << 18;
  float* data = gradients_->data();
  const size_t size = gradients_->size();
  ParallelFor(DivideUp(size, kPiece), [&](size_t i, int) {
    std::memset(data + i * kPiece, 0, std::min(kPiece, size - i * kPiece) * sizeof(float));
  });
}

// Forward, backward and update; returns the mean loss of the whole batch.
double Trainer::Step(uint64_t step, double& norm) {
  micro_.resize(training_.accumulate);
  double counts[] = {0};
  for (size_t m = 0; m < micro_.size(); ++m) {
    batches_->Fill(step * training_.accumulate + m, micro_[m]);
    if (recall_) recall_->Apply(step * training_.accumulate + m, micro_[m]);
    counts[0] += static_cast<double>(micro_[m].scored);
  }
  communicator_.Sum(counts);
  const double scored = counts[0];
  if (!(scored > 0))
    Fail("step {}: no token of the batch has a target; are the documents of the data too short?", step + 1);

  ClearGradients();
  double sums[] = {0, options_.stop && options_.stop() ? 1.0 : 0.0};
  for (size_t m = 0; m < micro_.size(); ++m) {
    const EngineBatch batch = Decorate(micro_[m], step * training_.accumulate + m);
    const bool last = m + 1 == micro_.size() && communicator_.world() > 1;
    const std::function<void(size_t)> ready = [&](size_t group) {
      const size_t begin = job_.layout->group_begin(group);
      communicator_.StartSum({gradients_->At(begin), job_.layout->group_begin(group + 1) - begin});
    };
    sums[0] +=
        engine_->Train(*job_.weights, batch, static_cast<float>(1 / scored), *gradients_, last ? ready : nullptr);
    if (const ChoiceLoss* choice = engine_->choice(); choice != nullptr && choice->any()) {
      choice_loss_ += choice->loss();
      choice_found_ += choice->found();
      choice_found_by_any_ += choice->found_by_any();
      ++choice_batches_;
    }
  }
  communicator_.FinishSums();
  communicator_.Sum(sums);
  stop_ = sums[1] > 0;
  const double loss = sums[0] / scored;
  const float* gradient = trainable_->Gradient(*gradients_);
  norm = optimizer_->Norm(gradient);
  if (!std::isfinite(loss) || !std::isfinite(norm)) {
    Fail(
        "step {}: the {} is not finite ({}); {}; --resume would come to the same point, so lower "
        "training.learning_rate or training.clip_norm and start over with --force or another output",
        step + 1, std::isfinite(loss) ? "gradient" : "loss", std::isfinite(loss) ? norm : loss,
        last_checkpoint_.empty() ? "there is no checkpoint yet"
                                 : fmt::format("the last good checkpoint is '{}'", last_checkpoint_.string()));
  }
  optimizer_->Step(step, gradient, norm);
  trainable_->Apply();
  if (average_) average_->Add(step);
  state_.tokens += static_cast<uint64_t>(scored);
  interval_tokens_ += static_cast<uint64_t>(scored);
  return loss;
}

double Trainer::Validate() {
  const uint64_t all = validation_->batch_count();
  const uint64_t count = training_.validation_batches == 0 ? all : std::min(all, training_.validation_batches);
  const bool averaged = average_ && state_.step > 0;
  if (averaged) average_->Swap();
  double sums[] = {0, 0, 0, 0};  // loss and targets of the text, and of answers
  Batch batch;
  const auto evaluate = [&](uint64_t i, double& loss, double& targets) {
    EngineBatch plain = Decorate(batch, i);
    plain.positions = nullptr;
    loss += engine_->Evaluate(*job_.weights, plain);
    targets += static_cast<double>(batch.scored);
  };
  for (uint64_t i = 0; i < count; ++i) {
    // Spread over the whole text; true positions.
    validation_->Fill(
        static_cast<uint64_t>(static_cast<double>(i) * static_cast<double>(all) / static_cast<double>(count)), batch);
    evaluate(i, sums[0], sums[1]);
    if (!recall_validation_) continue;
    recall_validation_->Apply(i, batch);
    if (batch.scored > 0) evaluate(i, sums[2], sums[3]);
  }
  if (averaged) average_->Swap();
  communicator_.Sum(sums);
  if (sums[1] == 0) Fail("the validation data has no target at all");
  validation_loss_ = sums[0] / sums[1];
  if (leads()) {
    Json record{{"type", "validation"},      {"step", state_.step},
                {"loss", *validation_loss_}, {"perplexity", std::exp(*validation_loss_)},
                {"tokens", state_.tokens},   {"targets", static_cast<uint64_t>(sums[1])},
                {"seconds", state_.seconds}};
    if (sums[3] > 0) record["answer_loss"] = sums[2] / sums[3];
    log_->Write(record);
  }
  return *validation_loss_;
}

void Trainer::Log(uint64_t step, double norm) {
  last_loss_ = state_.loss_sum / static_cast<double>(state_.loss_steps);
  if (leads()) {
    Json record{{"type", "step"},
                {"step", step},
                {"loss", *last_loss_},
                {"learning_rate", LearningRate(training_, step - 1)},
                {"grad_norm", norm},
                {"tokens", state_.tokens},
                {"tokens_per_s", static_cast<double>(interval_tokens_) / interval_seconds_},
                {"seconds", state_.seconds}};
    if (options_.peak_flops > 0) {
      record["peak_share"] = StepFlops(job_.model, training_) * static_cast<double>(interval_steps_) /
                             interval_seconds_ / options_.peak_flops;
    }
    if (choice_batches_ > 0) {
      record["choice_loss"] = choice_loss_ / static_cast<double>(choice_batches_);
      record["choice_found"] = choice_found_ / static_cast<double>(choice_batches_);
      record["choice_found_by_any"] = choice_found_by_any_ / static_cast<double>(choice_batches_);
    }
    log_->Write(record);
  }
  choice_loss_ = choice_found_ = choice_found_by_any_ = 0;
  choice_batches_ = 0;
  state_.loss_sum = 0;
  state_.loss_steps = 0;
  interval_tokens_ = interval_steps_ = 0;
  interval_seconds_ = 0;
}

void Trainer::Save() {
  if (!leads()) return;
  state_.essence = essence_;
  state_.threads = ThreadCount();
  state_.processes = communicator_.world();
  state_.bank = engine_->BankState();
  SaveCheckpoint(checkpoints(), state_, job_.model, values(), weights_name(), training_.keep_checkpoints);
  last_checkpoint_ = checkpoints() / fmt::format("step-{:06}", state_.step);
}

// The last thing a run does: an average stays in the weights.
void Trainer::Export(TrainResult& result) {
  if (average_) average_->Swap();
  if (job_.config.lora && job_.config.lora->save == LoraSave::kAdapter) {
    result.result = output() / "adapter";
    if (leads()) {
      WriteAdapter(result.result,
                   {*job_.config.lora, job_.model, job_.base, job_.new_tokens, *trainable_, job_.tokenizer.get()});
    }
    return;
  }
  result.result = output() / "model";
  if (!leads()) return;
  WriteHuggingFace(*SourceOf(job_.model, *job_.weights), result.result, {});
  job_.tokenizer->Save(result.result);
}

Json Trainer::FirstRecord() const {
  uint64_t trained = 0;
  for (const TrainableTensor& tensor : trainable_->tensors()) trained += tensor.size;
  Json record{{"type", "run"},
              {"step", 0},
              {"config", job_.config.name},
              {"settings", Json::parse(essence_)},
              {"parameters", ParameterCount(job_.model)},
              {"trained_parameters", trained},
              {"arena_bytes", engine_->ArenaBytes()},
              {"bytes_per_token", engine_->BytesPerToken()},
              {"flops_per_step", StepFlops(job_.model, training_)},
              {"windows_per_epoch", batches_->windows_per_epoch()},
              {"threads", ThreadCount()},
              {"processes", communicator_.world()}};
  if (options_.peak_flops > 0) record["peak_flops"] = options_.peak_flops;
  if (!job_.base.empty()) record["base"] = job_.base;
  return record;
}

TrainResult Trainer::Run() {
  if (leads()) {
    PrepareOutput();
    if (options_.resume) Resume();
    log_ = std::make_unique<RunLog>(output() / "log.jsonl", state_.step);
    if (state_.step == 0) log_->Write(FirstRecord());
    if (state_.step > 0) log_->Write({{"type", "resume"}, {"step", state_.step}, {"threads", ThreadCount()}});
  }
  Share();
  trainable_->Apply();
  if (leads()) {
    spdlog::info("{} parameters, {} of memory a token, {} MB for activations; {} windows an epoch",
                 ParameterCount(job_.model),
                 fmt::format("{:.1f} KB", static_cast<double>(engine_->BytesPerToken()) / 1e3),
                 engine_->ArenaBytes() / 1'000'000, batches_->windows_per_epoch());
  }
  TrainResult result;
  RunLine line(leads() && options_.show_line, training_.steps, state_.step);
  if (validation_ && state_.step == 0 && training_.validate_every > 0) Validate();
  double speed = 0;
  for (uint64_t step = state_.step; step < training_.steps && !result.interrupted; ++step) {
    if (options_.before_step) options_.before_step(step, *job_.weights);
    const auto begin = std::chrono::steady_clock::now();
    double norm = 0;
    const double loss = Step(step, norm);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    state_.step = step + 1;
    state_.seconds += seconds;
    state_.loss_sum += loss;
    ++state_.loss_steps;
    ++interval_steps_;
    interval_seconds_ += seconds;
    const bool finished = state_.step == training_.steps;
    const double now =
        static_cast<double>(training_.batch_rows * training_.accumulate * training_.context_length) / seconds;
    speed = speed == 0 ? now : 0.9 * speed + 0.1 * now;
    line.Draw({state_.step, loss, validation_loss_, speed,
               options_.peak_flops > 0 ? std::optional(StepFlops(job_.model, training_) / seconds / options_.peak_flops)
                                       : std::nullopt});
    if (state_.step % training_.log_every == 0 || finished) Log(state_.step, norm);
    const bool validate =
        validation_ && (finished || (training_.validate_every > 0 && state_.step % training_.validate_every == 0));
    if (validate) {
      const double measured = Validate();
      if (leads()) {
        line.Wipe();
        spdlog::info("step {}: loss {:.4f}, validation loss {:.4f}", state_.step, loss, measured);
      }
    }
    result.interrupted = stop_ && !finished;
    if (result.interrupted || finished ||
        (training_.checkpoint_every > 0 && state_.step % training_.checkpoint_every == 0)) {
      Save();
    }
  }
  line.Wipe();
  result.steps = state_.step;
  result.loss = last_loss_;
  result.validation_loss = validation_loss_;
  result.seconds = state_.seconds;
  result.checkpoint = last_checkpoint_;
  if (!result.interrupted) Export(result);
  return result;
}

}  // namespace

double StepFlops(const ModelConfig& model, const TrainingConfig& training) {
  const double rows = static_cast<double>(training.batch_rows * training.accumulate);
  const double time = static_cast<double>(training.context_length);
  // The lookup of embeddings computes nothing; the head does, tied or not.
  const double table = static_cast<double>(model.vocab_size * model.hidden_size);
  const double weights = static_cast<double>(ParameterCount(model)) - (model.tie_word_embeddings ? 0 : table);
  const double attention = 7 * time * time * static_cast<double>(model.query_size() * model.num_hidden_layers);
  return rows * (6 * weights * time + attention);
}

void DrawPositions(const ModelConfig& model, uint64_t seed, uint64_t sample, std::span<int32_t> positions) {
  const size_t stride = model.landmark.block_length + 1;
  Random random(DrawSeed(seed, sample, 0));
  int32_t jumped = 0;
  for (size_t i = 0; i < positions.size(); ++i) {
    if (i > 0 && i % stride == 0) jumped += 1 + static_cast<int32_t>(random.Below(model.landmark.positional_jump));
    positions[i] = static_cast<int32_t>(i) + jumped;
  }
}

void DrawControlled(const ModelConfig& model, uint64_t seed, uint64_t sample, std::span<uint8_t> controlled) {
  Random random(DrawSeed(seed, sample, 1));
  for (uint8_t& flag : controlled) flag = random.Uniform() < model.landmark.context_miss.probability;
}

TrainJob PrepareTraining(const RunConfig& config) {
  if (!config.tokenizer) Fail("'{}': tokenizer is missing: the file that the data was prepared with", config.name);
  TrainJob job;
  job.config = config;
  job.tokenizer = LoadTokenizer(*config.tokenizer);
  job.model = ResolveModel(config, *job.tokenizer);
  job.layout = std::make_unique<const ParameterLayout>(job.model);
  job.weights = std::make_unique<Parameters>(*job.layout);
  InitialiseParameters(job.model, config.training.seed, *job.weights);
  return job;
}

TrainJob PrepareTuning(const RunConfig& config, const ModelSource& base, const fs::path& path) {
  if (config.model) {
    Fail("'{}': model is for 'cairn train'; the model of 'cairn tune' is what --from names (landmark is a setting)",
         config.name);
  }
  TrainJob job;
  job.config = config;
  job.base = path.string();
  std::shared_ptr<const Tokenizer> tokenizer;
  if (config.tokenizer) {
    tokenizer = LoadTokenizer(*config.tokenizer);
  } else if (base.format() == ModelFormat::kHuggingFace) {
    tokenizer = LoadTokenizer(path);
  } else {
    Fail("'{}': tokenizer is missing: '{}' has none beside it, so name the model's own", config.name, path.string());
  }
  GrownModel grown = GrowModel(base, tokenizer, config.landmark, config.name);
  job.model = grown.config;
  job.tokenizer = grown.tokenizer;
  job.new_tokens = grown.new_tokens;
  job.layout = std::make_unique<const ParameterLayout>(job.model);
  job.weights = std::make_unique<Parameters>(*job.layout);
  LoadWeights(base, job.model, job.new_tokens, *job.weights);
  job.base_checksum =
      fmt::format("{:016x}", XXH3_64bits(job.weights->data(), job.weights->size() * sizeof(*job.weights->data())));
  return job;
}

TrainResult RunTraining(TrainJob& job, const TrainerOptions& options, Communicator& communicator) {
  return Trainer(job, options, communicator).Run();
}

}  // namespace cairn
