/* Every function of the C interface, called from C99; api_c_test.cc runs this and compares. */
#include "api_c99.h"

#include <cairn/cairn.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static char message[512];

/* Says where and why a check failed. */
static const char* Complain(int line, const char* condition) {
  snprintf(message, sizeof(message), "api_c99.c:%d: %s; last error: %s", line, condition, cairn_last_error());
  return message;
}
#define CHECK(condition) \
  if (!(condition)) return Complain(__LINE__, #condition)
#define OK(call) CHECK((call) == CAIRN_OK)
#define FAILS(call, part) CHECK((call) == CAIRN_ERROR && strstr(cairn_last_error(), part) != NULL)

/* What the callback saw. */
typedef struct Seen {
  cairn_session* session;
  char text[4096];
  size_t size;
  size_t tokens;
  size_t reads;
  size_t limit; /* tokens after which it ends */
  int touched;  /* whether the session could be changed */
} Seen;

static int See(const cairn_token* token, void* user) {
  Seen* seen = (Seen*)user;
  if (seen->size + token->text_size < sizeof(seen->text)) {
    memcpy(seen->text + seen->size, token->text, token->text_size + 1);
    seen->size += token->text_size;
  }
  if (token->id < 0) return 1;
  seen->tokens += 1;
  seen->reads += token->read_count;
  if (cairn_session_reset(seen->session) != CAIRN_ERROR) seen->touched = 1;
  return seen->tokens < seen->limit;
}

static const char* CheckModel(const char* path, cairn_model** out) {
  cairn_load_options options;
  const cairn_model_info* info = NULL;
  cairn_model* model = NULL;
  int32_t* tokens = NULL;
  int32_t threads = 0;
  size_t count = 0, size = 0;
  char* text = NULL;
  CHECK(strcmp(cairn_version(), "") != 0);
  OK(cairn_set_threads(2));
  OK(cairn_get_threads(&threads));
  CHECK(threads == 2);
  FAILS(cairn_set_threads(-1), "-1 threads");
  OK(cairn_set_threads(0));

  FAILS(cairn_model_load("/no/such/model", NULL, &model), "/no/such/model");
  FAILS(cairn_model_load(NULL, NULL, &model), "'path' is NULL");
  FAILS(cairn_model_load(path, NULL, NULL), "'model' is NULL");
  memset(&options, 0, sizeof(options));
  FAILS(cairn_model_load(path, &options, &model), "cairn_load_options_init");
  cairn_load_options_init(&options);
  options.weights = 99;
  FAILS(cairn_model_load(path, &options, &model), "99 is no way");
  CHECK(model == NULL);
  options.weights = CAIRN_WEIGHTS_F32;
  options.tokenizer = path;
  OK(cairn_model_load(path, &options, &model));
  *out = model;

  OK(cairn_model_get_info(model, &info));
  CHECK(strcmp(info->format, "hf") == 0 && strcmp(info->path, path) == 0 && strcmp(info->weights, "f32") == 0);
  CHECK(info->vocab_size == 272 && info->layers == 2 && info->hidden_size == 64 && info->trained_context == 64);
  CHECK(info->block_length == 7 && info->landmark == 267 && info->bos == 1 && info->eos == 2);
  CHECK(info->parameters > 0 && info->weight_bytes > 0);
  FAILS(cairn_model_get_info(NULL, &info), "'model' is NULL");

  OK(cairn_model_tokenize(model, "the bath", CAIRN_TO_ZERO, 1, &tokens, &count));
  CHECK(count > 1 && tokens[0] == 1);
  OK(cairn_model_detokenize(model, tokens, count, 1, &text, &size));
  CHECK(size == 8 && strcmp(text, "the bath") == 0);
  cairn_free(text);
  OK(cairn_model_detokenize(model, tokens, count, 0, &text, NULL));
  CHECK(strcmp(text, " the bath") == 0);
  cairn_free(text);
  cairn_free(tokens);
  OK(cairn_model_tokenize(model, "a\0b", 3, 0, &tokens, &count));
  OK(cairn_model_detokenize(model, tokens, count, 0, &text, &size));
  CHECK(size == 3 && memcmp(text, "a\0b", 4) == 0);
  cairn_free(text);
  cairn_free(tokens);
  OK(cairn_model_tokenize(model, NULL, 0, 0, &tokens, &count));
  CHECK(count == 0);
  cairn_free(tokens);
  FAILS(cairn_model_tokenize(model, NULL, 3, 0, &tokens, &count), "'text' is NULL");
  FAILS(cairn_model_detokenize(model, NULL, 3, 0, &text, &size), "'values' is NULL");
  return NULL;
}

static const char* CheckSession(const cairn_model* model, const char* text) {
  cairn_session_options options;
  cairn_session_options resolved;
  const cairn_session_stats* stats = NULL;
  cairn_session* session = NULL;
  cairn_session* copy = NULL;
  const cairn_read* reads = NULL;
  const int32_t* tokens = NULL;
  const float* logits = NULL;
  size_t count = 0, before = 0, size = 0;
  char* block = NULL;
  const int32_t more[] = {5, 9};
  const int32_t wrong[] = {5, 272};

  cairn_session_options_init(&options);
  options.cutoff = 7;
  FAILS(cairn_session_new(model, &options, &session), "the cutoff must be");
  options.cutoff = 0;
  options.attention = 42;
  FAILS(cairn_session_new(model, &options, &session), "42 is no kind of attention");
  options.attention = CAIRN_ATTENTION_AS_TRAINED;
  options.k = 2;
  options.reads = 1;
  OK(cairn_session_new(model, &options, &session));
  cairn_session_options_init(&resolved);
  OK(cairn_session_get_options(session, &resolved));
  CHECK(resolved.attention == CAIRN_ATTENTION_LANDMARK && resolved.k == 2 && resolved.block == 7);
  CHECK(resolved.chunk > 0 && resolved.reads == 1);
  memset(&resolved, 0, sizeof(resolved));
  FAILS(cairn_session_get_options(session, &resolved), "cairn_session_options_init");
  /* A caller of an older version, whose struct ended after k. */
  resolved.size = offsetof(cairn_session_options, chunk);
  OK(cairn_session_get_options(session, &resolved));
  CHECK(resolved.k == 2 && resolved.chunk == 0 && resolved.size == offsetof(cairn_session_options, chunk));

  FAILS(cairn_session_get_logits(session, &logits, &count), "there is nothing to continue");
  OK(cairn_session_append_text(session, text, CAIRN_TO_ZERO));
  FAILS(cairn_session_append_tokens(session, wrong, 2), "token 272 is not in");
  OK(cairn_session_get_tokens(session, &tokens, &before));
  CHECK(before > 40 && tokens[0] == 1);
  OK(cairn_session_append_tokens(session, more, 2));
  OK(cairn_session_get_tokens(session, &tokens, &count));
  CHECK(count == before + 2 && tokens[count - 1] == 9);
  OK(cairn_session_get_logits(session, &logits, &count));
  CHECK(count == 272 && isfinite(logits[0]) && isinf(logits[267]));

  OK(cairn_session_get_reads(session, &reads, &count));
  CHECK(count > 0 && reads[0].layer == 0 && reads[0].weight >= 0 && reads[0].weight <= 1);
  OK(cairn_session_block_text(session, reads[0].block, &block, &size));
  CHECK(size > 0 && strlen(block) == size && strstr(text, block) != NULL);
  cairn_free(block);
  FAILS(cairn_session_block_text(session, 99999, &block, &size), "block 99999 is not finished");
  OK(cairn_session_get_stats(session, &stats));
  CHECK(stats->tokens == before + 2 && stats->blocks == stats->tokens / 7 && stats->blocks_kept == stats->blocks);
  CHECK(stats->memory_bytes > 0 && stats->workspace_bytes > 0 && stats->blocks_read > 0 && stats->chunks > 0);

  OK(cairn_session_fork(session, &copy));
  OK(cairn_session_truncate(copy, before));
  OK(cairn_session_get_tokens(copy, &tokens, &count));
  CHECK(count == before);
  FAILS(cairn_session_truncate(copy, before + 1), "cannot truncate");
  OK(cairn_session_set_k(copy, 3));
  cairn_session_options_init(&resolved);
  OK(cairn_session_get_options(copy, &resolved));
  CHECK(resolved.k == 3);
  OK(cairn_session_reset(copy));
  OK(cairn_session_get_tokens(copy, &tokens, &count));
  CHECK(count == 0);
  cairn_session_free(copy);
  OK(cairn_session_get_tokens(session, &tokens, &count));
  CHECK(count == before + 2);
  cairn_session_free(session);
  return NULL;
}

static const char* CheckGeneration(cairn_model* model, const char* text, char* written, size_t written_size) {
  cairn_generate_options options;
  cairn_session_options recording;
  cairn_generation* result = NULL;
  cairn_session* session = NULL;
  const char* stops[1];
  char first[8] = {0};
  static Seen seen;
  cairn_session_options_init(&recording);
  recording.reads = 1;
  OK(cairn_session_new(model, &recording, &session));
  cairn_model_free(model); /* the session has what it needs */
  OK(cairn_session_append_text(session, text, strlen(text)));

  cairn_generate_options_init(&options);
  options.max_tokens = 12;
  options.temperature = 0.8f;
  options.top_k = 30;
  options.seed = 5;
  options.ignore_end = 1;
  memset(&seen, 0, sizeof(seen));
  seen.session = session;
  seen.limit = 100;
  OK(cairn_session_generate(session, &options, See, &seen, &result));
  CHECK(result->end == CAIRN_END_LENGTH && result->token_count == 12 && result->seconds > 0);
  CHECK(seen.tokens == 12 && seen.reads > 0 && seen.touched == 0);
  CHECK(strlen(result->text) == result->text_size && strcmp(result->text, seen.text) == 0);
  CHECK(result->text_size > 0 && result->text_size < written_size);
  memcpy(written, result->text, result->text_size + 1);

  OK(cairn_session_reset(session));
  OK(cairn_session_append_text(session, text, CAIRN_TO_ZERO));
  options.end_tokens = result->tokens;
  options.end_token_count = 1;
  cairn_generation_free(NULL);
  {
    cairn_generation* ended = NULL;
    OK(cairn_session_generate(session, &options, NULL, NULL, &ended));
    CHECK(ended->end == CAIRN_END_TOKEN && ended->token_count == 0 && ended->text_size == 0);
    cairn_generation_free(ended);
  }
  cairn_generation_free(result);
  options.end_token_count = 0;
  options.end_tokens = NULL;

  first[0] = written[0];
  stops[0] = first;
  options.stops = stops;
  options.stop_count = 1;
  if ((unsigned char)first[0] < 0x80) {
    OK(cairn_session_generate(session, &options, NULL, NULL, &result));
    CHECK(result->end == CAIRN_END_STOP && result->text_size == 0);
    cairn_generation_free(result);
  }
  options.stop_count = 0;

  seen.tokens = 0;
  seen.limit = 2;
  OK(cairn_session_generate(session, &options, See, &seen, &result));
  CHECK(result->end == CAIRN_END_INTERRUPTED && result->token_count == 2);
  cairn_generation_free(result);
  OK(cairn_session_generate(session, &options, NULL, NULL, NULL));

  options.temperature = -1;
  FAILS(cairn_session_generate(session, &options, NULL, NULL, NULL), "temperature");
  options.size = 0;
  FAILS(cairn_session_generate(session, &options, NULL, NULL, NULL), "cairn_generate_options_init");
  FAILS(cairn_session_generate(NULL, NULL, NULL, NULL, NULL), "'session' is NULL");
  cairn_session_free(session);
  cairn_session_free(NULL);
  cairn_model_free(NULL);
  cairn_free(NULL);
  return NULL;
}

const char* CheckCInterface(const char* path, const char* text, char* written, size_t written_size) {
  cairn_model* model = NULL;
  const char* problem = CheckModel(path, &model);
  if (problem == NULL) problem = CheckSession(model, text);
  if (problem == NULL) problem = CheckGeneration(model, text, written, written_size);
  return problem;
}
