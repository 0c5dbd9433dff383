#include "model/parameters.h"

#include "base/checked.h"
#include "base/error.h"

namespace cairn {

namespace {
constexpr size_t kAlignment = 16;  // floats: a cache line
}

ParameterLayout::ParameterLayout(const ModelConfig& config) {
  layers_.resize(config.num_hidden_layers);
  for (const ExpectedTensor& tensor : ExpectedTensors(config)) {
    const std::string& name = tensor.name;
    size_t group = 0;
    std::string part = name;
    if (name.rfind("model.layers.", 0) == 0) {
      const size_t dot = name.find('.', 13);
      group = 1 + std::stoul(name.substr(13, dot - 13));
      part = name.substr(dot + 1);
    } else if (name != "model.embed_tokens.weight") {
      group = 1 + config.num_hidden_layers;
    }
    // Tensors that are one matrix together must touch.
    const bool joined =
        part == "self_attn.k_proj.weight" || part == "self_attn.v_proj.weight" || part == "mlp.up_proj.weight";
    if (!joined) size_ = RoundUp(size_, kAlignment);
    while (group_begin_.size() <= group) group_begin_.push_back(size_);
    const auto count = CheckedProduct(tensor.shape);
    CAIRN_CHECK(count);
    if (group >= 1 && group <= config.num_hidden_layers) {
      Layer& layer = layers_[group - 1];
      if (part == "input_layernorm.weight") layer.input_norm = size_;
      if (part == "self_attn.q_proj.weight") layer.qkv = size_;
      if (part == "self_attn.o_proj.weight") layer.o = size_;
      if (part == "post_attention_layernorm.weight") layer.post_norm = size_;
      if (part == "mlp.gate_proj.weight") layer.gate_up = size_;
      if (part == "mlp.down_proj.weight") layer.down = size_;
    }
    if (name == "model.norm.weight") final_norm_ = size_;
    if (name == "lm_head.weight") head_ = size_;
    slots_.push_back({name, tensor.shape, size_, *count, group});
    size_ += *count;
  }
  size_ = RoundUp(size_, kAlignment);
  group_begin_.push_back(size_);
}

const ParameterSlot& ParameterLayout::Find(const std::string& name) const {
  for (const ParameterSlot& slot : slots_) {
    if (slot.name == name) return slot;
  }
  CAIRN_CHECK(false, "no parameter {}", name);
}

}  // namespace cairn
