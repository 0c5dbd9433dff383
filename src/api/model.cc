// The public interface's models, and its settings of the whole process.
#include "api/model_impl.h"

#include <mutex>

#include "base/cpu.h"
#include "base/error.h"
#include "base/threads.h"
#include "formats/model_tokenizer.h"
#include "infer/generate.h"

namespace cairn::api {

namespace {

std::optional<WeightKind> KindOf(Weights weights) {
  switch (weights) {
    case Weights::kAsStored:
      return std::nullopt;
    case Weights::kF32:
      return WeightKind::kF32;
    case Weights::kF16:
      return WeightKind::kF16;
    case Weights::kInt8:
      return WeightKind::kInt8;
    case Weights::kInt4:
      return WeightKind::kInt4;
  }
  Fail("{} is no way to hold weights", static_cast<int>(weights));
}

// What main() does for the binary; the first model does it for a library.
void ObeyEnvironment() {
  static std::once_flag once;
  std::call_once(once, [] {
    InitInstructionSet();
    ThreadCount();  // complains early about CAIRN_THREADS
  });
}

}  // namespace

std::string_view Version() { return CAIRN_VERSION; }

void SetThreads(int count) { SetThreadCount(count); }

int Threads() { return ThreadCount(); }

std::string Model::Impl::TextOf(std::span<const int32_t> tokens, bool begins) const {
  std::vector<int32_t> ids;
  for (const int32_t id : tokens) {
    if (id < 0 || static_cast<size_t>(id) >= info.vocab_size) {
      Fail("token {} is not in the model's vocabulary of {}", id, info.vocab_size);
    }
    if (static_cast<size_t>(id) < tokenizer->vocab_size()) ids.push_back(id);
  }
  return begins ? tokenizer->Decode(ids) : tokenizer->DecodeMiddle(ids);
}

Model::Model(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

Model Model::Load(const std::filesystem::path& path, const LoadOptions& options) {
  ObeyEnvironment();
  const std::optional<WeightKind> kind = KindOf(options.weights);
  const std::shared_ptr<const ModelSource> source = OpenModel(path);
  auto impl = std::make_shared<Impl>();
  const ModelConfig& config = source->config();
  // First, since a missing tokenizer is found faster than weights are packed.
  impl->tokenizer =
      options.tokenizer.empty() ? LoadModelTokenizer(*source, path) : LoadTokenizerOrModel(options.tokenizer);
  if (impl->tokenizer->vocab_size() > config.vocab_size) {
    Fail("the tokenizer has {} tokens and the model {}; give the model's own", impl->tokenizer->vocab_size(),
         config.vocab_size);
  }
  impl->model = InferenceModel::Load(source, kind);

  ModelInfo& info = impl->info;
  info.format = NameOf(source->format());
  info.path = path.string();
  info.weights = NameOf(impl->model->kind());
  info.parameters = ParameterCount(config);
  info.weight_bytes = impl->model->weight_bytes();
  info.vocab_size = config.vocab_size;
  info.layers = config.num_hidden_layers;
  info.hidden_size = config.hidden_size;
  info.trained_context = config.max_position_embeddings;
  info.block_length = config.landmark.block_length;
  info.landmark = static_cast<int32_t>(config.landmark.landmark_id);
  info.bos = impl->tokenizer->bos().value_or(-1);
  info.eos = impl->tokenizer->eos().value_or(-1);
  return Model(std::move(impl));
}

const ModelInfo& Model::info() const { return impl_->info; }

std::vector<int32_t> Model::Tokenize(std::string_view text) const {
  return EncodePrompt(impl_->model->source(), *impl_->tokenizer, text);
}

std::vector<int32_t> Model::TokenizeMiddle(std::string_view text) const { return impl_->tokenizer->EncodeMiddle(text); }

std::string Model::Detokenize(std::span<const int32_t> tokens) const { return impl_->TextOf(tokens, true); }

std::string Model::DetokenizeMiddle(std::span<const int32_t> tokens) const { return impl_->TextOf(tokens, false); }

}  // namespace cairn::api
