// The C interface: a thin shell around the C++ one that turns exceptions into codes.
#include <cairn/cairn.h>

#include <algorithm>
#include <cairn/cairn.hpp>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

namespace api = cairn::api;

struct cairn_model {
  explicit cairn_model(api::Model loaded) : model(std::move(loaded)) {
    const api::ModelInfo& from = model.info();
    info.format = from.format.c_str();
    info.path = from.path.c_str();
    info.weights = from.weights.c_str();
    info.parameters = from.parameters;
    info.weight_bytes = from.weight_bytes;
    info.vocab_size = from.vocab_size;
    info.layers = from.layers;
    info.hidden_size = from.hidden_size;
    info.trained_context = from.trained_context;
    info.block_length = from.block_length;
    info.landmark = from.landmark;
    info.bos = from.bos;
    info.eos = from.eos;
  }

  api::Model model;
  cairn_model_info info;
};

struct cairn_session {
  explicit cairn_session(api::Session made) : session(std::move(made)) {}

  api::Session session;
  // What the last calls lent.
  std::vector<cairn_read> reads;
  cairn_session_stats stats = {};
};

namespace {

// What a result's pointers point to.
struct OwningGeneration : cairn_generation {
  api::Generation owned;
};

// The enumerations of the two interfaces have the same values.
static_assert(static_cast<int>(api::Weights::kInt4) == CAIRN_WEIGHTS_INT4);
static_assert(static_cast<int>(api::Attention::kFull) == CAIRN_ATTENTION_FULL);
static_assert(static_cast<int>(api::Granularity::kToken) == CAIRN_GRANULARITY_TOKEN);
static_assert(static_cast<int>(api::Positions::kExact) == CAIRN_POSITIONS_EXACT);
static_assert(static_cast<int>(api::BlockFormat::kInt8) == CAIRN_BLOCKS_INT8);
static_assert(static_cast<int>(api::Index::kIvf) == CAIRN_INDEX_IVF);
static_assert(static_cast<int>(api::EndReason::kInterrupted) == CAIRN_END_INTERRUPTED);

// An empty message must cost no memory, and a message that cannot be kept must not throw.
std::string& LastError() {
  thread_local std::string message;
  return message;
}

cairn_status Failed(cairn_status status, const char* message) noexcept {
  try {
    LastError() = message;
  } catch (...) {
    LastError().clear();
  }
  return status;
}

template <typename Action>
cairn_status Guard(Action action) noexcept {
  try {
    action();
    return CAIRN_OK;
  } catch (const cairn::Error& error) {
    return Failed(CAIRN_ERROR, error.what());
  } catch (const std::bad_alloc&) {
    return Failed(CAIRN_NO_MEMORY, "out of memory");
  } catch (const std::exception& error) {
    return Failed(CAIRN_BUG, error.what());
  } catch (...) {
    return Failed(CAIRN_BUG, "an unknown exception");
  }
}

template <typename T>
T& Need(T* pointer, const char* name) {
  if (pointer == nullptr) cairn::Fail("'{}' is NULL", name);
  return *pointer;
}
#define CAIRN_NEED(pointer) Need(pointer, #pointer)

// The caller's options over the defaults; members that the caller's version does not have keep theirs.
template <typename Options>
Options Complete(const Options* given, void (*init)(Options*), const char* name) {
  Options options;
  init(&options);
  if (given == nullptr) return options;
  if (given->size < sizeof(size_t) || given->size > 4096) {
    cairn::Fail("the size of {} is {}; fill it with {}_init first", name, given->size, name);
  }
  std::memcpy(&options, given, std::min(given->size, sizeof(Options)));
  options.size = sizeof(Options);
  return options;
}

std::string_view TextFrom(const char* text, size_t size) {
  if (text == nullptr && size == 0) return {};
  CAIRN_NEED(text);
  return {text, size == CAIRN_TO_ZERO ? std::strlen(text) : size};
}

template <typename T>
std::span<const T> SpanFrom(const T* values, size_t count) {
  if (count != 0) CAIRN_NEED(values);
  return {values, count};
}

// For the caller, with a zero at the end; cairn_free takes it.
template <typename T>
T* NewCopy(const T* values, size_t count) {
  T* copy = static_cast<T*>(std::calloc(count + 1, sizeof(T)));
  if (copy == nullptr) throw std::bad_alloc();
  std::copy(values, values + count, copy);
  return copy;
}

void ReturnText(const std::string& from, char*& text, size_t* size) {
  text = NewCopy(from.data(), from.size());
  if (size != nullptr) *size = from.size();
}

std::vector<cairn_read> ReadsFrom(std::span<const api::Read> from) {
  std::vector<cairn_read> reads;
  for (const api::Read& read : from) reads.push_back({read.layer, read.block, read.weight});
  return reads;
}

}  // namespace

const char* cairn_last_error(void) { return LastError().c_str(); }

const char* cairn_version(void) { return api::Version().data(); }

void cairn_free(void* memory) { std::free(memory); }

cairn_status cairn_set_threads(int32_t count) {
  return Guard([&] { api::SetThreads(count); });
}

cairn_status cairn_get_threads(int32_t* count) {
  return Guard([&] { CAIRN_NEED(count) = api::Threads(); });
}

void cairn_load_options_init(cairn_load_options* options) {
  if (options != nullptr) *options = {sizeof(*options), nullptr, CAIRN_WEIGHTS_AS_STORED};
}

cairn_status cairn_model_load(const char* path, const cairn_load_options* options, cairn_model** model) {
  return Guard([&] {
    CAIRN_NEED(path);
    CAIRN_NEED(model);
    const cairn_load_options given = Complete(options, cairn_load_options_init, "cairn_load_options");
    api::LoadOptions load;
    load.weights = static_cast<api::Weights>(given.weights);
    if (given.tokenizer != nullptr) load.tokenizer = given.tokenizer;
    *model = new cairn_model(api::Model::Load(path, load));
  });
}

void cairn_model_free(cairn_model* model) { delete model; }

cairn_status cairn_model_get_info(const cairn_model* model, const cairn_model_info** info) {
  return Guard([&] { CAIRN_NEED(info) = &CAIRN_NEED(model).info; });
}

cairn_status cairn_model_tokenize(const cairn_model* model, const char* text, size_t text_size, int begins,
                                  int32_t** tokens, size_t* count) {
  return Guard([&] {
    const api::Model& from = CAIRN_NEED(model).model;
    CAIRN_NEED(tokens);
    CAIRN_NEED(count);
    const std::string_view view = TextFrom(text, text_size);
    const std::vector<int32_t> ids = begins != 0 ? from.Tokenize(view) : from.TokenizeMiddle(view);
    *tokens = NewCopy(ids.data(), ids.size());
    *count = ids.size();
  });
}

cairn_status cairn_model_detokenize(const cairn_model* model, const int32_t* tokens, size_t count, int begins,
                                    char** text, size_t* text_size) {
  return Guard([&] {
    const api::Model& from = CAIRN_NEED(model).model;
    CAIRN_NEED(text);
    const auto ids = SpanFrom(tokens, count);
    ReturnText(begins != 0 ? from.Detokenize(ids) : from.DetokenizeMiddle(ids), *text, text_size);
  });
}

void cairn_session_options_init(cairn_session_options* options) {
  if (options == nullptr) return;
  const api::SessionOptions defaults;
  *options = {};
  options->size = sizeof(*options);
  options->k = defaults.k;
  options->block_format = static_cast<int32_t>(defaults.block_format);
  options->index = static_cast<int32_t>(defaults.index);
}

cairn_status cairn_session_new(const cairn_model* model, const cairn_session_options* options,
                               cairn_session** session) {
  return Guard([&] {
    CAIRN_NEED(model);
    CAIRN_NEED(session);
    const cairn_session_options given = Complete(options, cairn_session_options_init, "cairn_session_options");
    api::SessionOptions wanted;
    wanted.attention = static_cast<api::Attention>(given.attention);
    wanted.k = given.k;
    wanted.chunk = given.chunk;
    wanted.block = given.block;
    wanted.memory_blocks = given.memory_blocks;
    wanted.granularity = static_cast<api::Granularity>(given.granularity);
    wanted.positions = static_cast<api::Positions>(given.positions);
    wanted.cutoff = given.cutoff;
    wanted.reads = given.reads != 0;
    wanted.block_format = static_cast<api::BlockFormat>(given.block_format);
    wanted.index = static_cast<api::Index>(given.index);
    *session = new cairn_session(api::Session(model->model, wanted));
  });
}

void cairn_session_free(cairn_session* session) { delete session; }

cairn_status cairn_session_get_options(const cairn_session* session, cairn_session_options* options) {
  return Guard([&] {
    const api::SessionOptions& from = CAIRN_NEED(session).session.options();
    CAIRN_NEED(options);
    cairn_session_options to = Complete(options, cairn_session_options_init, "cairn_session_options");
    to.k = from.k;
    to.chunk = from.chunk;
    to.block = from.block;
    to.memory_blocks = from.memory_blocks;
    to.cutoff = from.cutoff;
    to.attention = static_cast<int32_t>(from.attention);
    to.granularity = static_cast<int32_t>(from.granularity);
    to.positions = static_cast<int32_t>(from.positions);
    to.reads = from.reads ? 1 : 0;
    to.block_format = static_cast<int32_t>(from.block_format);
    to.index = static_cast<int32_t>(from.index);
    to.size = options->size;
    std::memcpy(options, &to, std::min(options->size, sizeof(to)));
  });
}

cairn_status cairn_session_append_text(cairn_session* session, const char* text, size_t text_size) {
  return Guard([&] { CAIRN_NEED(session).session.Append(TextFrom(text, text_size)); });
}

cairn_status cairn_session_append_tokens(cairn_session* session, const int32_t* tokens, size_t count) {
  return Guard([&] { CAIRN_NEED(session).session.Append(SpanFrom(tokens, count)); });
}

cairn_status cairn_session_get_logits(const cairn_session* session, const float** logits, size_t* count) {
  return Guard([&] {
    CAIRN_NEED(logits);
    const std::span<const float> from = CAIRN_NEED(session).session.Logits();
    *logits = from.data();
    if (count != nullptr) *count = from.size();
  });
}

cairn_status cairn_session_get_tokens(const cairn_session* session, const int32_t** tokens, size_t* count) {
  return Guard([&] {
    CAIRN_NEED(tokens);
    const std::span<const int32_t> from = CAIRN_NEED(session).session.Tokens();
    CAIRN_NEED(count) = from.size();
    *tokens = from.data();
  });
}

cairn_status cairn_session_fork(const cairn_session* session, cairn_session** copy) {
  return Guard([&] {
    CAIRN_NEED(copy);
    *copy = new cairn_session(CAIRN_NEED(session).session.Fork());
  });
}

cairn_status cairn_session_truncate(cairn_session* session, size_t tokens) {
  return Guard([&] { CAIRN_NEED(session).session.Truncate(tokens); });
}

cairn_status cairn_session_reset(cairn_session* session) {
  return Guard([&] { CAIRN_NEED(session).session.Reset(); });
}

cairn_status cairn_session_set_k(cairn_session* session, size_t k) {
  return Guard([&] { CAIRN_NEED(session).session.SetK(k); });
}

cairn_status cairn_session_get_reads(cairn_session* session, const cairn_read** reads, size_t* count) {
  return Guard([&] {
    CAIRN_NEED(session);
    CAIRN_NEED(reads);
    CAIRN_NEED(count);
    session->reads = ReadsFrom(session->session.Reads());
    *reads = session->reads.data();
    *count = session->reads.size();
  });
}

cairn_status cairn_session_block_text(const cairn_session* session, size_t block, char** text, size_t* text_size) {
  return Guard([&] {
    CAIRN_NEED(text);
    ReturnText(CAIRN_NEED(session).session.BlockText(block), *text, text_size);
  });
}

cairn_status cairn_session_get_stats(cairn_session* session, const cairn_session_stats** stats) {
  return Guard([&] {
    CAIRN_NEED(session);
    CAIRN_NEED(stats);
    const api::SessionStats from = session->session.stats();
    session->stats = {from.tokens,          from.blocks,      from.blocks_kept, from.memory_bytes,
                      from.workspace_bytes, from.blocks_read, from.chunks};
    *stats = &session->stats;
  });
}

void cairn_generate_options_init(cairn_generate_options* options) {
  if (options == nullptr) return;
  const api::GenerateOptions defaults;
  *options = {};
  options->size = sizeof(*options);
  options->max_tokens = defaults.max_tokens;
  options->repetition_window = defaults.repetition_window;
  options->top_p = defaults.top_p;
  options->repetition_penalty = defaults.repetition_penalty;
}

cairn_status cairn_session_generate(cairn_session* session, const cairn_generate_options* options,
                                    cairn_token_callback callback, void* user, cairn_generation** result) {
  return Guard([&] {
    CAIRN_NEED(session);
    const cairn_generate_options given = Complete(options, cairn_generate_options_init, "cairn_generate_options");
    api::GenerateOptions wanted;
    wanted.max_tokens = given.max_tokens;
    wanted.temperature = given.temperature;
    wanted.top_k = given.top_k;
    wanted.top_p = given.top_p;
    wanted.min_p = given.min_p;
    wanted.repetition_penalty = given.repetition_penalty;
    wanted.repetition_window = given.repetition_window;
    wanted.seed = given.seed;
    for (const char* stop : SpanFrom(given.stops, given.stop_count)) {
      wanted.stops.emplace_back(TextFrom(stop, CAIRN_TO_ZERO));
    }
    const auto ends = SpanFrom(given.end_tokens, given.end_token_count);
    wanted.end_tokens.assign(ends.begin(), ends.end());
    wanted.ignore_end = given.ignore_end != 0;
    std::function<bool(const api::Token&)> each;
    if (callback != nullptr) {
      each = [&](const api::Token& token) {
        const std::string text(token.text);
        const std::vector<cairn_read> reads = ReadsFrom(token.reads);
        const cairn_token shown = {text.c_str(), text.size(), reads.data(), reads.size(), token.id};
        return callback(&shown, user) != 0;
      };
    }
    auto made = std::make_unique<OwningGeneration>();
    made->owned = session->session.Generate(wanted, each);
    if (result == nullptr) return;
    made->text = made->owned.text.c_str();
    made->text_size = made->owned.text.size();
    made->tokens = made->owned.tokens.data();
    made->token_count = made->owned.tokens.size();
    made->seconds = made->owned.seconds;
    made->end = static_cast<int32_t>(made->owned.end);
    *result = made.release();
  });
}

void cairn_generation_free(cairn_generation* result) { delete static_cast<OwningGeneration*>(result); }
