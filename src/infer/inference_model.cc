#include "infer/inference_model.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/elementwise.h"

namespace cairn {

namespace {

// Tensors stacked into one matrix have one kind: that of the most precise of them.
PackedMatrix PackTensors(const ModelSource& source, const std::vector<std::string>& names,
                         std::optional<WeightKind> kind) {
  std::vector<StoredTensor> parts;
  for (const std::string& name : names) parts.push_back(source.Get(name));
  if (!kind) {
    kind = NaturalKind(parts[0].type);
    for (const StoredTensor& part : parts) kind = std::min(*kind, NaturalKind(part.type));
  }
  return PackedMatrix(parts, *kind);
}

std::vector<float> ReadVector(const ModelSource& source, const std::string& name) {
  const Tensor tensor = source.ReadFloats(name);
  return {tensor.span().begin(), tensor.span().end()};
}

}  // namespace

std::shared_ptr<const InferenceModel> InferenceModel::Load(std::shared_ptr<const ModelSource> source,
                                                           std::optional<WeightKind> kind) {
  const ModelConfig& config = source->config();
  std::shared_ptr<InferenceModel> model(new InferenceModel(source));
  for (size_t l = 0; l < config.num_hidden_layers; ++l) {
    const std::string prefix = fmt::format("model.layers.{}.", l);
    const std::string attention = prefix + "self_attn.";
    Layer layer;
    layer.input_norm = ReadVector(*source, prefix + "input_layernorm.weight");
    layer.post_norm = ReadVector(*source, prefix + "post_attention_layernorm.weight");
    layer.qkv = PackTensors(
        *source, {attention + "q_proj.weight", attention + "k_proj.weight", attention + "v_proj.weight"}, kind);
    layer.o = PackTensors(*source, {attention + "o_proj.weight"}, kind);
    layer.gate_up = PackTensors(*source, {prefix + "mlp.gate_proj.weight", prefix + "mlp.up_proj.weight"}, kind);
    layer.down = PackTensors(*source, {prefix + "mlp.down_proj.weight"}, kind);
    for (const PackedMatrix* matrix : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) {
      model->weight_bytes_ += matrix->bytes();
    }
    model->layers_.push_back(std::move(layer));
  }
  model->final_norm_ = ReadVector(*source, "model.norm.weight");
  model->head_ =
      PackTensors(*source, {config.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight"}, kind);
  model->weight_bytes_ += model->head_.bytes();
  if (config.landmark.context_miss.enabled) model->FindMissKeys();
  return model;
}

void InferenceModel::Embed(int32_t id, float* out) const {
  const StoredTensor& table = source_->Get("model.embed_tokens.weight");
  CAIRN_CHECK(id >= 0 && static_cast<uint64_t>(id) < table.shape[0]);
  ConvertStoredToFloat(table.type, table.bytes.subspan(static_cast<size_t>(id) * table.row_bytes(), table.row_bytes()),
                       {out, table.row_elements()});
}

// The context-miss token attends to nothing, so its keys are the same in every text.
void InferenceModel::FindMissKeys() {
  const size_t hidden = config().hidden_size;
  const float eps = static_cast<float>(config().rms_norm_eps);
  std::vector<float> x(hidden), normed(hidden), gate_up(2 * config().intermediate_size),
      act(config().intermediate_size), qkv(config().query_size() + 2 * config().key_size());
  float rstd;
  Embed(static_cast<int32_t>(config().landmark.context_miss.token_id), x.data());
  for (Layer& layer : layers_) {
    RunRmsNorm({1, hidden}, {x.data(), nullptr, layer.input_norm.data(), eps, nullptr, normed.data(), &rstd});
    layer.qkv.Multiply(1, normed.data(), qkv.data());
    const auto key = qkv.begin() + static_cast<ptrdiff_t>(config().query_size());
    layer.miss_key.assign(key, key + static_cast<ptrdiff_t>(config().key_size()));
    RunRmsNorm({1, hidden}, {x.data(), nullptr, layer.post_norm.data(), eps, nullptr, normed.data(), &rstd});
    layer.gate_up.Multiply(1, normed.data(), gate_up.data());
    RunSwiGlu({1, config().intermediate_size}, gate_up.data(), act.data());
    layer.down.Multiply(1, act.data(), x.data(), true);
  }
}

}  // namespace cairn
