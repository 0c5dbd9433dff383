// Golden files of the kind training_step*: logits, loss, every gradient and every weight after one AdamW step.
#include <cmath>
#include <cstdio>

#include "base/error.h"
#include "eval/golden_kinds.h"
#include "kernels/elementwise.h"
#include "train/engine.h"

namespace cairn {

namespace {

constexpr double kTolerance = 1e-4;

size_t Size(const SafetensorsFile& file, const std::string& key) {
  return static_cast<size_t>(file.MetadataInteger(key, 1, 1 << 24));
}

ModelConfig ReadConfig(const SafetensorsFile& file) {
  ModelConfig config;
  config.hidden_size = Size(file, "hidden");
  config.intermediate_size = Size(file, "intermediate");
  config.num_hidden_layers = Size(file, "layers");
  config.num_attention_heads = Size(file, "heads");
  config.num_key_value_heads =
      file.metadata().count("kv_heads") != 0 ? Size(file, "kv_heads") : config.num_attention_heads;
  config.head_dim = config.hidden_size / config.num_attention_heads;
  config.vocab_size = Size(file, "vocab");
  config.tie_word_embeddings = file.MetadataText("tied") == "True";
  config.rms_norm_eps = std::strtod(file.MetadataText("rms_norm_eps").c_str(), nullptr);
  const std::string& rope = file.MetadataText("rope");
  config.rotary_layout = rope.rfind("half", 0) == 0 ? RotaryLayout::kHalf : RotaryLayout::kInterleaved;
  if (const size_t at = rope.find("base "); at != std::string::npos)
    config.rope_theta = std::strtod(rope.c_str() + at + 5, nullptr);
  config.landmark.attention = AttentionKind::kLandmark;
  config.landmark.block_length = Size(file, "block_length");
  config.landmark.landmark_id = file.MetadataInteger("landmark_id", 0, 1 << 24);
  ValidateModelConfig(config, file.name());
  return config;
}

// "lr 1e-2, betas 0.9 0.95, eps 1e-8, decay 0.1 on every tensor, first step"
AdamW ReadAdamW(const SafetensorsFile& file) {
  const std::string& text = file.MetadataText("adamw");
  AdamW adamw{};
  if (std::sscanf(text.c_str(), "lr %g, betas %g %g, eps %g, decay %g on every tensor, first step",
                  &adamw.learning_rate, &adamw.beta1, &adamw.beta2, &adamw.eps, &adamw.weight_decay) != 5) {
    Fail("'{}': metadata 'adamw' is '{}', which is not understood", file.name(), text);
  }
  adamw.bias1 = 1 - adamw.beta1;
  adamw.bias2 = 1 - adamw.beta2;
  adamw.gradient_scale = 1;
  return adamw;
}

}  // namespace

void RunTrainingStepGolden(const SafetensorsFile& file, GoldenReport& report) {
  const ModelConfig config = ReadConfig(file);
  const ParameterLayout layout(config);
  Parameters weights(layout), gradients(layout), first(layout), second(layout);
  for (const ParameterSlot& slot : layout.slots()) {
    const Tensor tensor = ReadShaped(file, "weight." + slot.name, slot.shape);
    std::copy(tensor.span().begin(), tensor.span().end(), weights.Get(slot).begin());
  }
  const Shape shape = file.Get("input_ids").shape;
  if (shape.size() != 2 || shape[0] == 0 || shape[1] == 0 || file.Get("targets").shape != shape) {
    Fail("'{}': input_ids and targets must be matrices of one shape", file.name());
  }
  const std::vector<int64_t> ids64 = file.ReadIntegers("input_ids");
  const std::vector<int64_t> targets64 = file.ReadIntegers("targets");
  const int64_t ignored = file.MetadataInteger("ignored_target", -1'000'000, -1);
  const int64_t vocab = static_cast<int64_t>(config.vocab_size);
  std::vector<int32_t> ids, targets;
  size_t scored = 0;
  double misplaced = 0;
  for (size_t i = 0; i < ids64.size(); ++i) {
    if (ids64[i] < 0 || ids64[i] >= vocab || (targets64[i] != ignored && (targets64[i] < 0 || targets64[i] >= vocab))) {
      Fail("'{}': a token or target is outside the vocabulary", file.name());
    }
    const bool landmark_place = i % shape[1] % (config.landmark.block_length + 1) == config.landmark.block_length;
    misplaced += (ids64[i] == config.landmark.landmark_id) != landmark_place;
    ids.push_back(static_cast<int32_t>(ids64[i]));
    targets.push_back(targets64[i] == ignored ? -1 : static_cast<int32_t>(targets64[i]));
    scored += targets64[i] != ignored;
  }
  report.checks.push_back({"placement", "input_ids", misplaced, misplaced, 0, misplaced == 0});

  // The authors' model pads with token 0, so its input embedding is never trained.
  Engine engine(config, layout, {.rows = shape[0], .time = shape[1], .padding_id = 0});
  const EngineBatch batch{.rows = shape[0], .time = shape[1], .input_ids = ids.data(), .targets = targets.data()};
  const std::string name = "engine f32";
  const auto check = [&](const std::string& tensor, std::span<const float> actual, const Tensor& expected) {
    report.checks.push_back(Compare<float>(name, tensor, actual, expected.span(), kTolerance));
  };
  Tensor logits({shape[0], shape[1], config.vocab_size});
  engine.Logits(weights, batch, logits.data());
  check("logits", logits.span(), ReadShaped(file, "logits", logits.shape()));

  const double sum = engine.Train(weights, batch, 1.0f / static_cast<float>(scored), gradients);
  const float loss = static_cast<float>(sum / static_cast<double>(scored));
  check("loss", std::span(&loss, 1), ReadShaped(file, "loss", {1}));
  for (const ParameterSlot& slot : layout.slots()) {
    check("grad." + slot.name, gradients.Get(slot), ReadShaped(file, "grad." + slot.name, slot.shape));
  }
  RunAdamW(weights.size(), ReadAdamW(file), gradients.data(), weights.data(), first.data(), second.data());
  for (const ParameterSlot& slot : layout.slots()) {
    check("after_adamw." + slot.name, weights.Get(slot), ReadShaped(file, "after_adamw." + slot.name, slot.shape));
  }
}

}  // namespace cairn
