#include "train/run_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>
#include <set>

#include "base/error.h"
#include "io/file.h"
#include "io/json.h"

namespace cairn {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr uint64_t kMaxSteps = 1'000'000'000'000;
constexpr uint64_t kMaxRows = 1 << 20;
constexpr uint64_t kMaxLayers = 1 << 16;
constexpr uint64_t kMaxContext = 1 << 26;

// Takes settings out of one JSON object and remembers which it took.
class Section {
 public:
  // `prefix` stands before a setting's name in messages: "training.".
  Section(const Json& object, std::string name, std::string prefix)
      : object_(object), name_(std::move(name)), prefix_(std::move(prefix)) {
    if (object.is_object()) return;
    if (prefix_.empty()) Fail("'{}' is not a JSON object; it must describe a run", name_);
    Fail("'{}': {} is not a JSON object", name_, prefix_.substr(0, prefix_.size() - 1));
  }

  const Json* Find(const char* key) {
    taken_.insert(key);
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  const Json& Required(const char* key, const char* what) {
    const Json* value = Find(key);
    if (value == nullptr) Fail("'{}': {}{} is missing: {}", name_, prefix_, key, what);
    return *value;
  }

  template <typename T>
  bool Count(const char* key, T& out) {
    const Json* value = Find(key);
    if (value == nullptr) return false;
    if (!value->is_number_integer()) Fail("'{}': {}{} is not an integer", name_, prefix_, key);
    if (!value->is_number_unsigned()) Fail("'{}': {}{} is negative", name_, prefix_, key);
    out = static_cast<T>(value->get<uint64_t>());
    return true;
  }
  bool Number(const char* key, double& out) {
    const Json* value = Find(key);
    if (value == nullptr) return false;
    if (!value->is_number()) Fail("'{}': {}{} is not a number", name_, prefix_, key);
    out = value->get<double>();
    return true;
  }
  void Bool(const char* key, bool& out) {
    const Json* value = Find(key);
    if (value == nullptr) return;
    if (!value->is_boolean()) Fail("'{}': {}{} is neither true nor false", name_, prefix_, key);
    out = value->get<bool>();
  }
  std::optional<std::string> Text(const char* key) {
    const Json* value = Find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_string() || value->get<std::string>().empty()) Fail("'{}': {}{} is not a text", name_, prefix_, key);
    return value->get<std::string>();
  }

  // A mistyped setting must not be ignored.
  void RefuseOthers() const {
    for (const auto& [key, value] : object_.items()) {
      if (taken_.count(key) == 0) Fail("'{}': {}{} is not a setting that Cairn knows", name_, prefix_, key);
    }
  }

 private:
  const Json& object_;
  const std::string name_, prefix_;
  std::set<std::string, std::less<>> taken_;
};

RecallConfig ParseRecall(const Json& json, const std::string& name) {
  RecallConfig recall;
  Section section(json, name, "data.recall.");
  section.Required("share", "the part of the rows that hide facts, from 0 to 1");
  section.Number("share", recall.share);
  section.Count("facts", recall.facts);
  section.Number("text_targets", recall.text_targets);
  section.Number("simple", recall.simple);
  section.Number("echo", recall.echo);
  section.Number("noise", recall.noise);
  section.Number("cut", recall.cut);
  section.Number("own_words", recall.own_words);
  section.Number("retold", recall.retold);
  section.Number("mixed", recall.mixed);
  section.Number("repeated_filler", recall.repeated_filler);
  section.RefuseOthers();
  return recall;
}

DataConfig ParseData(const Json& json, const std::string& name, const fs::path& directory) {
  DataConfig data;
  Section section(json, name, "data.");
  section.Required("train", "a directory that 'cairn data prepare' made");
  data.train = directory / *section.Text("train");
  if (const auto path = section.Text("validation"); path) data.validation = directory / *path;
  if (const auto documents = section.Text("documents"); documents) {
    if (*documents != "joined" && *documents != "separate") {
      Fail("'{}': data.documents is \"{}\"; Cairn knows \"joined\" and \"separate\"", name, *documents);
    }
    data.documents = *documents == "joined" ? DocumentHandling::kJoined : DocumentHandling::kSeparate;
  }
  if (const Json* recall = section.Find("recall"); recall != nullptr) data.recall = ParseRecall(*recall, name);
  section.RefuseOthers();
  return data;
}

ChoiceConfig ParseChoice(const Json& json, const std::string& name) {
  ChoiceConfig choice;
  Section section(json, name, "training.choice.");
  section.Required("weight", "how much the choice of blocks counts beside the targets, such as 0.3");
  section.Number("weight", choice.weight);
  section.Count("first_layer", choice.first_layer);
  section.Count("bank", choice.bank);
  section.Number("any", choice.any);
  section.RefuseOthers();
  return choice;
}

TrainingConfig ParseTraining(const Json& json, const std::string& name, const RunOverrides& overrides) {
  TrainingConfig t;
  Section section(json, name, "training.");
  section.Count("context_length", t.context_length);
  section.Count("batch_rows", t.batch_rows);
  section.Count("accumulate", t.accumulate);
  if (!section.Count("steps", t.steps) && !overrides.steps) section.Required("steps", "how long to train");
  if (overrides.steps) t.steps = *overrides.steps;
  section.Required("learning_rate", "the largest one, after the warm-up");
  section.Number("learning_rate", t.learning_rate);
  if (!section.Number("min_learning_rate", t.min_learning_rate)) t.min_learning_rate = t.learning_rate / 10;
  if (!section.Count("warmup_steps", t.warmup_steps)) t.warmup_steps = t.steps / 50;
  section.Number("beta1", t.beta1);
  section.Number("beta2", t.beta2);
  section.Number("eps", t.eps);
  section.Number("weight_decay", t.weight_decay);
  section.Bool("decay_norms", t.decay_norms);
  section.Number("clip_norm", t.clip_norm);
  section.Number("average", t.average);
  section.Count("seed", t.seed);
  section.Count("validate_every", t.validate_every);
  section.Count("validation_batches", t.validation_batches);
  section.Count("checkpoint_every", t.checkpoint_every);
  section.Count("keep_checkpoints", t.keep_checkpoints);
  section.Count("log_every", t.log_every);
  section.Bool("recompute", t.recompute);
  section.Count("threads", t.threads);
  if (const Json* choice = section.Find("choice"); choice != nullptr) t.choice = ParseChoice(*choice, name);
  section.RefuseOthers();
  return t;
}

LoraConfig ParseLora(const Json& json, const std::string& name) {
  LoraConfig lora;
  Section section(json, name, "lora.");
  section.Count("rank", lora.rank);
  lora.alpha = 2 * static_cast<double>(lora.rank);
  section.Number("alpha", lora.alpha);
  if (const Json* targets = section.Find("targets"); targets != nullptr) {
    if (!targets->is_array() || targets->empty() || targets->size() > 7) {
      Fail("'{}': lora.targets is not a list of layers such as [\"q_proj\", \"v_proj\"]", name);
    }
    lora.targets.clear();
    for (const Json& target : *targets) {
      if (!target.is_string()) Fail("'{}': lora.targets holds something that is not a text", name);
      lora.targets.push_back(target.get<std::string>());
    }
  }
  if (const auto save = section.Text("save"); save) {
    if (*save != "adapter" && *save != "merged") {
      Fail("'{}': lora.save is \"{}\"; Cairn knows \"adapter\" and \"merged\"", name, *save);
    }
    lora.save = *save == "adapter" ? LoraSave::kAdapter : LoraSave::kMerged;
  }
  section.RefuseOthers();
  return lora;
}

// The text of the landmark section, with another kind of attention. Options that only landmarks have are dropped then.
void OverrideAttention(Json& landmark, AttentionKind kind) {
  if (landmark.is_null()) landmark = Json::object();
  if (!landmark.is_object()) return;  // ParseLandmark complains
  landmark["attention"] = NameOf(kind);
  if (kind != AttentionKind::kLandmark) {
    for (const char* key : {"positional_jump", "context_miss", "memory_training"}) landmark.erase(key);
  }
  if (kind != AttentionKind::kXl) {
    for (const char* key : {"xl_segment_length", "xl_cache_length"}) landmark.erase(key);
  }
}

class RunChecker {
 public:
  explicit RunChecker(const std::string& name) : name_(name) {}
  void Range(uint64_t value, uint64_t low, uint64_t high, const char* key) const {
    if (value < low || value > high) Fail("'{}': {} is {}, which is not from {} to {}", name_, key, value, low, high);
  }
  // Written so that NaN fails, too.
  void Real(double value, bool fits, const char* key, const char* rule) const {
    if (!fits || !std::isfinite(value)) Fail("'{}': {} is {}, but it must be {}", name_, key, value, rule);
  }

 private:
  const std::string& name_;
};

}  // namespace

void ValidateRunConfig(const RunConfig& config) {
  const TrainingConfig& t = config.training;
  const RunChecker check(config.name);
  check.Range(t.context_length, 2, kMaxContext, "training.context_length");
  check.Range(t.batch_rows, 1, kMaxRows, "training.batch_rows");
  check.Range(t.accumulate, 1, kMaxRows, "training.accumulate");
  check.Range(t.steps, 1, kMaxSteps, "training.steps");
  check.Range(t.warmup_steps, 0, t.steps, "training.warmup_steps");
  check.Range(t.log_every, 1, kMaxSteps, "training.log_every");
  check.Range(t.keep_checkpoints, 1, 1'000'000, "training.keep_checkpoints");
  check.Range(t.threads, 0, 4096, "training.threads");
  check.Real(t.learning_rate, t.learning_rate > 0 && t.learning_rate <= 10, "training.learning_rate",
             "above 0 and at most 10");
  check.Real(t.min_learning_rate, t.min_learning_rate >= 0 && t.min_learning_rate <= t.learning_rate,
             "training.min_learning_rate", "from 0 to training.learning_rate");
  check.Real(t.beta1, t.beta1 >= 0 && t.beta1 < 1, "training.beta1", "from 0 to below 1");
  check.Real(t.beta2, t.beta2 >= 0 && t.beta2 < 1, "training.beta2", "from 0 to below 1");
  check.Real(t.eps, t.eps > 0 && t.eps <= 1, "training.eps", "above 0 and at most 1");
  check.Real(t.weight_decay, t.weight_decay >= 0 && t.weight_decay <= 100, "training.weight_decay", "from 0 to 100");
  check.Real(t.average, t.average >= 0 && t.average < 1, "training.average", "from 0, for none, to below 1");
  check.Real(t.clip_norm, t.clip_norm >= 0, "training.clip_norm", "above 0, or 0 for none");
  if (!config.data.validation && t.validate_every > 0) {
    Fail("'{}': training.validate_every is {}, but there is no data.validation", config.name, t.validate_every);
  }
  if (config.data.recall) {
    const RecallConfig& recall = *config.data.recall;
    const auto part = [&](double value, const char* what) {
      check.Real(value, value >= 0 && value <= 1, what, "from 0 to 1");
    };
    part(recall.share, "data.recall.share");
    part(recall.text_targets, "data.recall.text_targets");
    part(recall.simple, "data.recall.simple");
    part(recall.echo, "data.recall.echo");
    part(recall.noise, "data.recall.noise");
    part(recall.cut, "data.recall.cut");
    part(recall.own_words, "data.recall.own_words");
    part(recall.retold, "data.recall.retold");
    part(recall.mixed, "data.recall.mixed");
    part(recall.repeated_filler, "data.recall.repeated_filler");
    check.Range(recall.facts, 1, 1000, "data.recall.facts");
    if (t.context_length < 128) {
      Fail("'{}': training.context_length is {}; data.recall needs 128 positions at least", config.name,
           t.context_length);
    }
  }
  if (t.choice) {
    check.Real(t.choice->weight, t.choice->weight > 0 && t.choice->weight <= 100, "training.choice.weight",
               "above 0 and at most 100");
    check.Range(t.choice->first_layer, 1, kMaxLayers, "training.choice.first_layer");
    check.Range(t.choice->bank, 0, 1'000'000, "training.choice.bank");
    check.Real(t.choice->any, t.choice->any >= 0 && t.choice->any <= 1, "training.choice.any", "from 0 to 1");
    if (!config.data.recall) {
      Fail("'{}': training.choice needs data.recall, whose rows know in which block an answer stands", config.name);
    }
  }
  if (config.lora) {
    const LoraConfig& lora = *config.lora;
    if (config.model) Fail("'{}': lora is for 'cairn tune'; a model from scratch has no weights to adapt", config.name);
    check.Range(lora.rank, 1, 65536, "lora.rank");
    check.Real(lora.alpha, lora.alpha > 0, "lora.alpha", "above 0");
    const std::set<std::string> known = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
    std::set<std::string> seen;
    for (const std::string& target : lora.targets) {
      if (known.count(target) == 0) {
        Fail("'{}': lora.targets has \"{}\"; Cairn knows q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj",
             config.name, target);
      }
      if (!seen.insert(target).second) Fail("'{}': lora.targets has \"{}\" twice", config.name, target);
    }
  }
}

RunConfig ParseRunConfig(std::string_view text, const std::string& name, const fs::path& directory,
                         const RunOverrides& overrides) {
  const Json root = ParseJson(text, name);
  Section section(root, name, "");
  RunConfig config;
  config.name = name;
  Json model = Json(), landmark = Json();
  if (const Json* found = section.Find("model"); found != nullptr) model = *found;
  if (const Json* found = section.Find("landmark"); found != nullptr) landmark = *found;
  if (!model.is_null() && !landmark.is_null()) {
    Fail("'{}': landmark stands beside model; put it inside model to train from scratch, or leave model out to tune",
         name);
  }
  if (!model.is_null() && !model.is_object()) Fail("'{}': model is not a JSON object", name);
  if (overrides.attention) OverrideAttention(model.is_null() ? landmark : model["landmark"], *overrides.attention);
  if (!model.is_null()) config.model = model.dump();
  if (!landmark.is_null()) {
    ParseLandmark(landmark, name);  // complains early
    config.landmark = landmark.dump();
  }
  if (const auto path = section.Text("tokenizer"); path) config.tokenizer = directory / *path;
  config.data = ParseData(section.Required("data", "where the tokens are"), name, directory);
  if (overrides.output) {
    config.output = *overrides.output;
    section.Find("output");
  } else {
    section.Required("output", "the directory for checkpoints, log and model");
    config.output = directory / *section.Text("output");
  }
  config.training = ParseTraining(section.Required("training", "how to train"), name, overrides);
  if (const Json* lora = section.Find("lora"); lora != nullptr) config.lora = ParseLora(*lora, name);
  section.RefuseOthers();
  ValidateRunConfig(config);
  return config;
}

RunConfig ReadRunConfig(const fs::path& path, const RunOverrides& overrides) {
  return ParseRunConfig(ReadTextFile(path, 1 << 20), path.string(), path.parent_path(), overrides);
}

ModelConfig ResolveModel(const RunConfig& config, const Tokenizer& tokenizer) {
  if (!config.model) {
    Fail("'{}': model is missing; 'cairn train' needs it, and 'cairn tune --from MODEL' is for models that exist",
         config.name);
  }
  Json model = Json::parse(*config.model);
  const auto absent = [](const Json& object, const char* key) {
    return !object.contains(key) || object.at(key).is_null();
  };
  size_t vocab = tokenizer.vocab_size();
  if (Json& landmark = model["landmark"]; landmark.is_object()) {
    const bool blocks = landmark.value("attention", Json("landmark")) == "landmark";
    if (blocks && absent(landmark, "landmark_id")) {
      if (!tokenizer.landmark()) {
        Fail("the tokenizer '{}' has no landmark; add one with 'cairn tokenizer add-landmark'",
             tokenizer.spec().origin);
      }
      landmark["landmark_id"] = *tokenizer.landmark();
    }
    if (landmark.contains("context_miss") && landmark["context_miss"].is_object()) {
      Json& miss = landmark["context_miss"];
      if (miss.value("enabled", Json(true)) == true && absent(miss, "token_id")) miss["token_id"] = vocab++;
    }
  } else if (landmark.is_null()) {
    model.erase("landmark");
  }
  if (absent(model, "model_type") && absent(model, "architectures")) model["model_type"] = "llama";
  if (absent(model, "vocab_size")) model["vocab_size"] = vocab;
  if (absent(model, "max_position_embeddings")) model["max_position_embeddings"] = config.training.context_length;
  if (!model.contains("bos_token_id")) model["bos_token_id"] = tokenizer.bos() ? Json(*tokenizer.bos()) : Json();
  if (!model.contains("eos_token_id")) model["eos_token_id"] = tokenizer.eos() ? Json(*tokenizer.eos()) : Json();
  const std::string name = config.name + ": model";
  const ModelConfig result = ParseModelConfig(model.dump(), name);
  const std::set<std::string> harmless = {"initializer_range", "initializer",    "use_cache",   "transformers_version",
                                          "_name_or_path",     "pretraining_tp", "pad_token_id"};
  const Json others = Json::parse(result.other_keys);
  for (const auto& [key, value] : others.items()) {
    if (harmless.count(key) == 0) Fail("'{}': model.{} is not a setting that Cairn knows", config.name, key);
  }
  if (tokenizer.vocab_size() > result.vocab_size) {
    Fail("'{}': model.vocab_size is {}, but the tokenizer '{}' has {} tokens", config.name, result.vocab_size,
         tokenizer.spec().origin, tokenizer.vocab_size());
  }
  return result;
}

std::string Essence(const RunConfig& config, const ModelConfig& model) {
  const TrainingConfig& t = config.training;
  Json out;
  out["model"] = Json::parse(ToJson(model));
  out["data"] = {{"documents", config.data.documents == DocumentHandling::kJoined ? "joined" : "separate"}};
  if (const auto& recall = config.data.recall; recall) {
    out["data"]["recall"] = {
        {"share", recall->share},   {"facts", recall->facts}, {"text_targets", recall->text_targets},
        {"simple", recall->simple}, {"echo", recall->echo},   {"repeated_filler", recall->repeated_filler}};
    if (recall->mixed > 0) out["data"]["recall"]["mixed"] = recall->mixed;
    if (recall->noise > 0) out["data"]["recall"]["noise"] = recall->noise;
    if (recall->cut > 0) out["data"]["recall"]["cut"] = recall->cut;
    if (recall->own_words > 0) out["data"]["recall"]["own_words"] = recall->own_words;
    if (recall->retold > 0) out["data"]["recall"]["retold"] = recall->retold;
  }
  out["training"] = {{"context_length", t.context_length},
                     {"batch_rows", t.batch_rows},
                     {"accumulate", t.accumulate},
                     {"steps", t.steps},
                     {"learning_rate", t.learning_rate},
                     {"min_learning_rate", t.min_learning_rate},
                     {"warmup_steps", t.warmup_steps},
                     {"beta1", t.beta1},
                     {"beta2", t.beta2},
                     {"eps", t.eps},
                     {"weight_decay", t.weight_decay},
                     {"decay_norms", t.decay_norms},
                     {"clip_norm", t.clip_norm},
                     {"seed", t.seed}};
  if (t.average > 0) out["training"]["average"] = t.average;
  if (t.choice) {
    out["training"]["choice"] = {
        {"weight", t.choice->weight}, {"first_layer", t.choice->first_layer}, {"bank", t.choice->bank}};
    if (t.choice->any > 0) out["training"]["choice"]["any"] = t.choice->any;
  }
  if (config.lora) {
    out["lora"] = {{"rank", config.lora->rank}, {"alpha", config.lora->alpha}, {"targets", config.lora->targets}};
  }
  return out.dump();
}

double LearningRate(const TrainingConfig& config, uint64_t step) {
  if (step < config.warmup_steps) {
    return config.learning_rate * static_cast<double>(step + 1) / static_cast<double>(config.warmup_steps);
  }
  const uint64_t rest = config.steps - config.warmup_steps;
  const double share =
      rest <= 1 ? 1.0 : std::min(1.0, static_cast<double>(step - config.warmup_steps) / static_cast<double>(rest - 1));
  return config.min_learning_rate +
         0.5 * (config.learning_rate - config.min_learning_rate) * (1 + std::cos(std::numbers::pi * share));
}

}  // namespace cairn
