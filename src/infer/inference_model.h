// A model ready for inference: its weights packed for the products that stream them. Immutable, shared by any number of
// sessions at once.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "formats/model_source.h"
#include "kernels/packed_matrix.h"
#include "model/config.h"

namespace cairn {

class InferenceModel {
 public:
  struct Layer {
    std::vector<float> input_norm, post_norm;
    PackedMatrix qkv, o, gate_up, down;
    std::vector<float> miss_key;  // context-miss token's key before rotation, [kv_head][dim]; empty without the token
  };

  // `kind`: what every matrix is packed as; none: what loses nothing and wastes nothing for each (NaturalKind).
  static std::shared_ptr<const InferenceModel> Load(std::shared_ptr<const ModelSource> source,
                                                    std::optional<WeightKind> kind = std::nullopt);

  const ModelConfig& config() const { return source_->config(); }
  const ModelSource& source() const { return *source_; }
  const std::vector<Layer>& layers() const { return layers_; }
  const std::vector<float>& final_norm() const { return final_norm_; }
  const PackedMatrix& head() const { return head_; }
  void Embed(int32_t id, float* out) const;  // [hidden_size]

  WeightKind kind() const { return layers_.front().qkv.kind(); }  // of the first matrix; others may differ
  size_t weight_bytes() const { return weight_bytes_; }           // that one generated token reads

 private:
  explicit InferenceModel(std::shared_ptr<const ModelSource> source) : source_(std::move(source)) {}
  void FindMissKeys();

  std::shared_ptr<const ModelSource> source_;
  std::vector<Layer> layers_;
  std::vector<float> final_norm_;
  PackedMatrix head_;
  size_t weight_bytes_ = 0;
};

}  // namespace cairn
