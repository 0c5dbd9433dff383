#include "bench/random_model.h"

#include <cstring>

#include "base/aligned.h"
#include "base/error.h"
#include "base/random.h"
#include "base/threads.h"
#include "tensor/convert.h"
#include "tensor/quant_blocks.h"

namespace cairn {

namespace {

struct KnownShape {
  const char* name;
  size_t layers, hidden, heads, kv_heads, inner, vocab, context;
  bool tied;
};

constexpr KnownShape kShapes[] = {
    {"1.1B", 22, 2048, 32, 4, 5632, 32000, 2048, false},
    {"110M", 12, 768, 12, 12, 2048, 32000, 1024, true},
    {"15M", 6, 288, 6, 6, 768, 32000, 256, true},
};

// q8_0 blocks of uniform numbers with deviation 0.02.
void FillQ8(std::span<std::byte> bytes, uint64_t seed) {
  const uint16_t scale = FloatToHalf(0.02f * 1.732f / 127.0f);
  constexpr size_t kSlice = 4096;
  const size_t blocks = bytes.size() / kQ8_0Bytes;
  ParallelFor((blocks + kSlice - 1) / kSlice, [&](size_t slice, int) {
    Random random(seed * 1000003 + slice);
    for (size_t b = slice * kSlice; b < std::min(blocks, (slice + 1) * kSlice); ++b) {
      std::byte* block = bytes.data() + b * kQ8_0Bytes;
      std::memcpy(block, &scale, 2);
      for (size_t i = 0; i < kQ8_0Elements; i += 8) {
        uint64_t word = random.Next();
        word &= ~((word & 0x8080808080808080u) & ~((word << 1 | word << 2) & 0x8080808080808080u));  // never -128
        std::memcpy(block + 2 + i, &word, 8);
      }
    }
  });
}

GgufVocabulary MakeVocabulary(size_t size) {
  GgufVocabulary vocabulary;
  vocabulary.model = "llama";
  for (size_t i = 0; i < size; ++i) {
    std::string piece = fmt::format("\xe2\x96\x81t{}", i);
    int32_t type = kGgufTokenNormal;
    if (i < 3) {
      piece = i == 0 ? "<unk>" : i == 1 ? "<s>" : "</s>";
      type = i == 0 ? kGgufTokenUnknown : kGgufTokenControl;
    } else if (i < 259) {
      piece = fmt::format("<0x{:02X}>", i - 3);
      type = kGgufTokenByte;
    }
    vocabulary.tokens.push_back(piece);
    vocabulary.scores.push_back(-static_cast<float>(i));
    vocabulary.types.push_back(type);
  }
  vocabulary.bos_id = 1;
  vocabulary.eos_id = 2;
  vocabulary.unknown_id = 0;
  return vocabulary;
}

}  // namespace

std::vector<std::string> RandomModelShapes() {
  std::vector<std::string> names;
  for (const KnownShape& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

std::shared_ptr<const ModelSource> MakeRandomModel(const std::string& name) {
  const KnownShape* shape = nullptr;
  for (const KnownShape& known : kShapes) {
    if (name == known.name) shape = &known;
  }
  if (shape == nullptr) Fail("'{}' is no known shape; there are {}", name, fmt::join(RandomModelShapes(), ", "));
  ModelSource::Parts parts;
  parts.name = "random " + name;
  ModelConfig& config = parts.config;
  config.hidden_size = shape->hidden;
  config.intermediate_size = shape->inner;
  config.num_hidden_layers = shape->layers;
  config.num_attention_heads = shape->heads;
  config.num_key_value_heads = shape->kv_heads;
  config.head_dim = shape->hidden / shape->heads;
  config.vocab_size = shape->vocab;
  config.max_position_embeddings = shape->context;
  config.rms_norm_eps = 1e-5;
  config.tie_word_embeddings = shape->tied;
  config.bos_token_id = 1;
  config.eos_token_ids = {2};
  config.rotary_layout = RotaryLayout::kInterleaved;
  parts.vocabulary = MakeVocabulary(shape->vocab);
  uint64_t seed = 1;
  for (const ExpectedTensor& tensor : ExpectedTensors(config)) {
    const StoredType type = tensor.shape.size() == 1 ? StoredType::kF32 : StoredType::kQ8_0;
    auto bytes = std::make_shared<AlignedBuffer<std::byte>>(static_cast<size_t>(*StoredBytes(type, tensor.shape)));
    if (type == StoredType::kQ8_0) {
      FillQ8(bytes->span(), seed++);
    } else {
      const std::vector<float> ones(tensor.shape[0], 1.0f);
      std::memcpy(bytes->data(), ones.data(), bytes->size());
    }
    parts.tensors[tensor.name] = {type, tensor.shape, bytes->span()};
    parts.file_bytes += bytes->size();
    parts.owners.push_back(bytes);
  }
  return std::make_shared<ModelSource>(std::move(parts));
}

std::shared_ptr<const ModelSource> LendLandmark(std::shared_ptr<const ModelSource> source, size_t block_length) {
  if (source->config().has_landmark()) return source;
  ModelSource::Parts parts;
  parts.format = source->format();
  parts.name = source->name();
  parts.config = source->config();
  parts.config.landmark.attention = AttentionKind::kLandmark;
  parts.config.landmark.block_length = block_length;
  parts.config.landmark.landmark_id = static_cast<int64_t>(source->config().vocab_size) - 1;
  parts.tensors = source->tensors();
  parts.vocabulary = source->vocabulary();
  parts.file_bytes = source->file_bytes();
  parts.owners.push_back(source);
  return std::make_shared<ModelSource>(std::move(parts));
}

}  // namespace cairn
