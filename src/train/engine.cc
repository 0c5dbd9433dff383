#include "train/engine.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/arena.h"
#include "base/checked.h"
#include "base/error.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"

namespace cairn {

namespace {

// Adds the time of its scope to an operation.
class OperationTimer {
 public:
  OperationTimer(OperationTimes& times, Operation operation)
      : slot_(times[static_cast<size_t>(operation)]), begin_(std::chrono::steady_clock::now()) {}
  OperationTimer(const OperationTimer&) = delete;
  OperationTimer& operator=(const OperationTimer&) = delete;
  ~OperationTimer() { slot_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }

 private:
  double& slot_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace

std::string_view NameOf(Operation operation) {
  constexpr std::string_view kNames[] = {"embedding", "norm",          "linear",   "attention",
                                         "swiglu",    "head and loss", "optimizer"};
  return kNames[static_cast<size_t>(operation)];
}

Engine::Engine(const ModelConfig& config, const ParameterLayout& layout, const EngineOptions& options)
    : config_(config),
      layout_(layout),
      options_(options),
      attention_(MakeAttentionOp(config, options.rows, options.time)),
      max_tokens_(options.rows * options.time + (config.landmark.context_miss.enabled ? 1 : 0)) {
  if (options.choice) choice_ = std::make_unique<ChoiceLoss>(config, *options.choice, options.time);
  // A few megabytes of logits at a time: enough rows for an efficient product, few enough to stay in the caches.
  // All products of the head have this many rows, so the number of scored tokens never asks for a new kernel.
  const size_t limit = std::clamp<size_t>((size_t{4} << 20) / config.vocab_size, 64, 1024);
  const size_t scored = options.rows * options.time;
  head_chunks_ = DivideUp(scored, limit);
  head_rows_ = DivideUp(scored, head_chunks_);
  PlanArena();
}

void Engine::PlanArena() {
  const size_t tokens = max_tokens_;
  const size_t hidden = config_.hidden_size;
  const size_t joined = config_.query_size() + 2 * config_.key_size();
  const size_t inner = config_.intermediate_size;
  const auto plan = [&](float* base) {
    ArenaCursor planner(base);
    saved_.resize(config_.num_hidden_layers);
    for (size_t l = 0; l < saved_.size(); ++l) {
      Saved& s = saved_[l];
      s.input = planner.Take(tokens * hidden);
      if (options_.recompute && l > 0) {
        // All layers share what is computed again.
        float* input = s.input;
        s = saved_[0];
        s.input = input;
        continue;
      }
      s.rstd1 = planner.Take(tokens);
      s.qkv = planner.Take(tokens * joined);
      s.attention = planner.Take(attention_->SavedFloats());
      s.attention_out = planner.Take(tokens * config_.query_size());
      s.middle = planner.Take(tokens * hidden);
      s.rstd2 = planner.Take(tokens);
      s.gate_up = planner.Take(tokens * 2 * inner);
    }
    final_input_ = planner.Take(tokens * hidden);
    final_rstd_ = planner.Take(tokens);
    normed_ = planner.Take(tokens * hidden);
    delta_ = planner.Take(tokens * hidden);
    act_ = planner.Take(tokens * inner);
    dx_ = planner.Take(tokens * hidden);
    dnormed_ = planner.Take(tokens * hidden);
    dgate_up_ = planner.Take(tokens * 2 * inner);
    dact_ = planner.Take(tokens * inner);
    dqkv_ = planner.Take(tokens * joined);
    dattention_ = planner.Take(tokens * config_.query_size());
    head_in_ = planner.Take(head_chunks_ * head_rows_ * hidden);
    logits_ = planner.Take(head_rows_ * config_.vocab_size);
    return planner.used();
  };
  arena_ = AlignedBuffer<float>(plan(nullptr));
  plan(arena_.data());
}

void Engine::Product(size_t n, size_t k, const float* a, const float* weight, float* c) {
  const OperationTimer timer(times_, Operation::kLinear);
  RunMatMul({.m = tokens_, .n = n, .k = k, .transpose_b = true}, a, weight, c);
}

void Engine::ProductBack(size_t n, size_t k, const float* dc, const float* weight, float* da) {
  const OperationTimer timer(times_, Operation::kLinear);
  RunMatMul({.m = tokens_, .n = k, .k = n}, dc, weight, da);
}

void Engine::ProductWeights(size_t n, size_t k, const float* dc, const float* a, float* dweight) {
  const OperationTimer timer(times_, Operation::kLinear);
  RunMatMul({.m = n, .n = k, .k = tokens_, .transpose_a = true, .accumulate = true}, dc, a, dweight);
}

void Engine::Start(const Parameters& parameters, const EngineBatch& batch) {
  CAIRN_CHECK(batch.rows >= 1 && batch.rows <= options_.rows && batch.time >= 1 && batch.time <= options_.time);
  const bool miss = config_.landmark.context_miss.enabled;
  const size_t hidden = config_.hidden_size;
  tokens_ = batch.rows * batch.time + (miss ? 1 : 0);
  attention_->Begin({batch.rows, batch.time, batch.positions, batch.controlled, batch.bank_key, choice_.get()});
  const OperationTimer timer(times_, Operation::kEmbedding);
  const float* table = parameters.At(layout_.embedding());
  for (size_t i = 0; i < tokens_; ++i) {
    const int64_t id = i < batch.rows * batch.time ? batch.input_ids[i] : config_.landmark.context_miss.token_id;
    CAIRN_CHECK(id >= 0 && static_cast<size_t>(id) < config_.vocab_size, "token {}", id);
    std::copy_n(table + static_cast<size_t>(id) * hidden, hidden, saved_[0].input + i * hidden);
  }
}

// `again`: the layer's input is in place already (recomputation).
void Engine::ForwardLayer(const Parameters& parameters, size_t layer, bool again) {
  const ParameterLayout::Layer& w = layout_.layer(layer);
  const Saved& s = saved_[layer];
  const size_t hidden = config_.hidden_size;
  const RowShape shape{tokens_, hidden};
  const float eps = static_cast<float>(config_.rms_norm_eps);
  {
    // The residual stream of this layer is the last one's middle plus what that layer has just computed.
    const OperationTimer timer(times_, Operation::kNorm);
    const bool first = layer == 0 || again;
    RunRmsNorm(shape, {first ? s.input : saved_[layer - 1].middle, first ? nullptr : delta_,
                       parameters.At(w.input_norm), eps, s.input, normed_, s.rstd1});
  }
  Product(config_.query_size() + 2 * config_.key_size(), hidden, normed_, parameters.At(w.qkv), s.qkv);
  {
    const OperationTimer timer(times_, Operation::kAttention);
    attention_->Forward(layer, s.qkv, s.attention_out, s.attention);
  }
  Product(hidden, config_.query_size(), s.attention_out, parameters.At(w.o), delta_);
  {
    const OperationTimer timer(times_, Operation::kNorm);
    RunRmsNorm(shape, {s.input, delta_, parameters.At(w.post_norm), eps, s.middle, normed_, s.rstd2});
  }
  Product(2 * config_.intermediate_size, hidden, normed_, parameters.At(w.gate_up), s.gate_up);
  if (again) return;  // the backward pass needs nothing beyond this
  {
    const OperationTimer timer(times_, Operation::kSwiGlu);
    RunSwiGlu({tokens_, config_.intermediate_size}, s.gate_up, act_);
  }
  Product(hidden, config_.intermediate_size, act_, parameters.At(w.down), delta_);
}

void Engine::ForwardAll(const Parameters& parameters, const EngineBatch& batch) {
  Start(parameters, batch);
  for (size_t l = 0; l < config_.num_hidden_layers; ++l) ForwardLayer(parameters, l, false);
  const OperationTimer timer(times_, Operation::kNorm);
  RunRmsNorm({tokens_, config_.hidden_size},
             {saved_.back().middle, delta_, parameters.At(layout_.final_norm()),
              static_cast<float>(config_.rms_norm_eps), final_input_, normed_, final_rstd_});
}

// Losses of the rows that have a target, a few rows of logits at a time. With gradients: leaves d(final norm's output)
// in dnormed_.
double Engine::Head(const Parameters& parameters, const EngineBatch& batch, float scale, Parameters* gradients) {
  const OperationTimer timer(times_, Operation::kHead);
  const size_t hidden = config_.hidden_size;
  const size_t vocab = config_.vocab_size;
  const float* weight = parameters.At(layout_.head());
  scored_rows_.clear();
  scored_targets_.clear();
  for (size_t i = 0; i < batch.rows * batch.time; ++i) {
    if (batch.targets[i] < 0) continue;
    CAIRN_CHECK(static_cast<size_t>(batch.targets[i]) < vocab, "target {}", batch.targets[i]);
    scored_rows_.push_back(static_cast<int32_t>(i));
    scored_targets_.push_back(batch.targets[i]);
  }
  const size_t count = scored_rows_.size();
  const size_t chunks = DivideUp(count, head_rows_);
  for (size_t i = 0; i < count; ++i) {
    std::copy_n(normed_ + static_cast<size_t>(scored_rows_[i]) * hidden, hidden, head_in_ + i * hidden);
  }
  // The last chunk is filled up with rows of zeros without a target: no loss, no gradient.
  std::fill_n(head_in_ + count * hidden, (chunks * head_rows_ - count) * hidden, 0.0f);
  scored_targets_.resize(chunks * head_rows_, -1);
  losses_.assign(chunks * head_rows_, 0);
  if (gradients != nullptr) std::fill_n(dnormed_, tokens_ * hidden, 0.0f);
  for (size_t begin = 0; begin < count; begin += head_rows_) {
    const size_t rows = head_rows_;
    float* in = head_in_ + begin * hidden;
    RunMatMul({.m = rows, .n = vocab, .k = hidden, .transpose_b = true}, in, weight, logits_);
    RunCrossEntropy({rows, vocab}, logits_, &scored_targets_[begin], gradients != nullptr ? scale : 0.0f,
                    &losses_[begin]);
    if (gradients == nullptr) continue;
    RunMatMul({.m = vocab, .n = hidden, .k = rows, .transpose_a = true, .accumulate = true}, logits_, in,
              gradients->At(layout_.head()));
    RunMatMul({.m = rows, .n = hidden, .k = vocab}, logits_, weight, in);
    for (size_t i = 0; i < std::min(rows, count - begin); ++i) {
      std::copy_n(in + i * hidden, hidden, dnormed_ + static_cast<size_t>(scored_rows_[begin + i]) * hidden);
    }
  }
  double sum = 0;
  for (const double loss : losses_) sum += loss;
  return sum;
}

void Engine::BackwardLayer(const Parameters& parameters, size_t layer, Parameters& gradients) {
  const ParameterLayout::Layer& w = layout_.layer(layer);
  const size_t hidden = config_.hidden_size;
  const size_t inner = config_.intermediate_size;
  const size_t joined = config_.query_size() + 2 * config_.key_size();
  const RowShape shape{tokens_, hidden};
  if (options_.recompute) ForwardLayer(parameters, layer, true);
  const Saved& s = saved_[layer];

  // Feed-forward: dx_ is the gradient of the layer's output and passes through the residual.
  ProductBack(hidden, inner, dx_, parameters.At(w.down), dact_);
  {
    const OperationTimer timer(times_, Operation::kSwiGlu);
    RunSwiGluBackward({tokens_, inner}, s.gate_up, dact_, dgate_up_, act_);
  }
  ProductWeights(hidden, inner, dx_, act_, gradients.At(w.down));
  ProductBack(2 * inner, hidden, dgate_up_, parameters.At(w.gate_up), dnormed_);
  {
    const OperationTimer timer(times_, Operation::kNorm);
    ReapplyRmsNorm(shape, s.middle, s.rstd2, parameters.At(w.post_norm), normed_);
  }
  ProductWeights(2 * inner, hidden, dgate_up_, normed_, gradients.At(w.gate_up));
  {
    const OperationTimer timer(times_, Operation::kNorm);
    RunRmsNormBackward(shape,
                       {s.middle, s.rstd2, parameters.At(w.post_norm), dnormed_, dx_, gradients.At(w.post_norm)});
  }

  // Attention.
  ProductBack(hidden, config_.query_size(), dx_, parameters.At(w.o), dattention_);
  ProductWeights(hidden, config_.query_size(), dx_, s.attention_out, gradients.At(w.o));
  {
    const OperationTimer timer(times_, Operation::kAttention);
    attention_->Backward(layer, s.qkv, s.attention_out, dattention_, s.attention, dqkv_);
  }
  ProductBack(joined, hidden, dqkv_, parameters.At(w.qkv), dnormed_);
  {
    const OperationTimer timer(times_, Operation::kNorm);
    ReapplyRmsNorm(shape, s.input, s.rstd1, parameters.At(w.input_norm), normed_);
  }
  ProductWeights(joined, hidden, dqkv_, normed_, gradients.At(w.qkv));
  const OperationTimer timer(times_, Operation::kNorm);
  RunRmsNormBackward(shape, {s.input, s.rstd1, parameters.At(w.input_norm), dnormed_, dx_, gradients.At(w.input_norm)});
}

double Engine::Train(const Parameters& parameters, const EngineBatch& batch, float scale, Parameters& gradients,
                     const std::function<void(size_t)>& ready) {
  if (choice_) {
    choice_->Begin({batch.rows, batch.time, batch.answer_blocks, batch.bank_key}, batch.choice_scale);
  }
  ForwardAll(parameters, batch);
  const double loss = Head(parameters, batch, scale, &gradients);
  {
    const OperationTimer timer(times_, Operation::kNorm);
    std::fill_n(dx_, tokens_ * config_.hidden_size, 0.0f);
    RunRmsNormBackward({tokens_, config_.hidden_size}, {final_input_, final_rstd_, parameters.At(layout_.final_norm()),
                                                        dnormed_, dx_, gradients.At(layout_.final_norm())});
  }
  if (ready) ready(layout_.groups() - 1);
  for (size_t l = config_.num_hidden_layers; l-- > 0;) {
    BackwardLayer(parameters, l, gradients);
    if (ready) ready(1 + l);
  }
  {
    const OperationTimer timer(times_, Operation::kEmbedding);
    const size_t ordinary = batch.rows * batch.time;
    embedded_ids_.assign(batch.input_ids, batch.input_ids + ordinary);
    std::replace(embedded_ids_.begin(), embedded_ids_.end(), options_.padding_id, int32_t{-1});
    if (tokens_ > ordinary) embedded_ids_.push_back(static_cast<int32_t>(config_.landmark.context_miss.token_id));
    RunAddRows(tokens_, config_.hidden_size, dx_, embedded_ids_.data(), gradients.At(layout_.embedding()));
  }
  if (ready) ready(0);
  return loss;
}

std::vector<float> Engine::BankState() const {
  std::vector<float> state = attention_->State();
  if (choice_) {
    const std::vector<float> landmarks = choice_->State();
    state.insert(state.end(), landmarks.begin(), landmarks.end());
  }
  return state;
}

void Engine::RestoreBanks(std::span<const float> state) {
  if (choice_) {
    const size_t size = std::min(choice_->StateSize(), state.size());
    choice_->Restore(state.last(size));
    state = state.first(state.size() - size);
  }
  attention_->Restore(state);
}

double Engine::Evaluate(const Parameters& parameters, const EngineBatch& batch) {
  ForwardAll(parameters, batch);
  return Head(parameters, batch, 0.0f, nullptr);
}

void Engine::Logits(const Parameters& parameters, const EngineBatch& batch, float* logits) {
  ForwardAll(parameters, batch);
  RunMatMul({.m = batch.rows * batch.time, .n = config_.vocab_size, .k = config_.hidden_size, .transpose_b = true},
            normed_, parameters.At(layout_.head()), logits);
}

}  // namespace cairn
