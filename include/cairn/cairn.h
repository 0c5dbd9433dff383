/* Cairn's C interface (C99), for C and for other languages. The C++ interface, cairn.hpp, says more about what the
 * calls mean.
 *
 * Errors: a function of type cairn_status returns CAIRN_OK or says what kind of failure it was; cairn_last_error() has
 * the message. A call that fails sets none of its results, and has changed nothing but for the tokens that a generation
 * had written before. No C++ exception leaves the library.
 *
 * Threads: a model may be used by any number of threads at once. A session belongs to one thread at a time; several
 * sessions, also of one model, may run on several threads at once.
 *
 * Ownership: what `cairn_X_free` takes belongs to the caller. So do texts and tokens returned through `char**` and
 * `int32_t**`: cairn_free. A pointer to const is lent: by a model until it is freed, by a session until the next call
 * with it that is not a callback's, by a callback's argument until the callback returns. Every free function takes
 * NULL. Sessions do not need their model any more: it may be freed before them.
 *
 * Texts are UTF-8. A text that is passed with a size may contain zeros, or the size is CAIRN_TO_ZERO and the text ends
 * at its first zero. Texts that are returned have a zero after their last byte; where a size is returned too, the
 * pointer to it may be NULL.
 */
#ifndef CAIRN_CAIRN_H_
#define CAIRN_CAIRN_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define CAIRN_API __attribute__((visibility("default")))
#else
#define CAIRN_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define CAIRN_TO_ZERO ((size_t)-1)

typedef struct cairn_model cairn_model;
typedef struct cairn_session cairn_session;

typedef enum cairn_status {
  CAIRN_OK = 0,
  CAIRN_ERROR = 1,     /* something outside is wrong; the message says what to do */
  CAIRN_BUG = 2,       /* a bug in Cairn, please report it */
  CAIRN_NO_MEMORY = 3, /* after this a session may only be reset or freed */
} cairn_status;

/* The message of the last call that failed on this thread; "" when none has. Lent until the next one fails. */
CAIRN_API const char* cairn_last_error(void);
CAIRN_API const char* cairn_version(void);
/* Frees texts and tokens that were returned. */
CAIRN_API void cairn_free(void* memory);

/* Threads that each call uses; 0 returns to the default. Not thread-safe: call it while no session works. */
CAIRN_API cairn_status cairn_set_threads(int32_t count);
CAIRN_API cairn_status cairn_get_threads(int32_t* count);

/* Structs of options begin with their size, so that programs go on working when later versions add members. Always fill
 * them with their init function first. */

/* ---- Models ---- */

enum { CAIRN_WEIGHTS_AS_STORED = 0, CAIRN_WEIGHTS_F32, CAIRN_WEIGHTS_F16, CAIRN_WEIGHTS_INT8, CAIRN_WEIGHTS_INT4 };

typedef struct cairn_load_options {
  size_t size;
  const char* tokenizer; /* path; NULL: the model's own */
  int32_t weights;       /* CAIRN_WEIGHTS_... */
} cairn_load_options;

/* Lent by a model. Later versions may add members. */
typedef struct cairn_model_info {
  const char* format; /* "hf", "gguf" or "llama2c" */
  const char* path;
  const char* weights; /* of the first matrix: "f32", "f16", "int8" or "int4" */
  uint64_t parameters;
  size_t weight_bytes; /* that one generated token reads */
  size_t vocab_size;   /* length of the logits */
  size_t layers;
  size_t hidden_size;
  size_t trained_context; /* positions */
  size_t block_length;    /* ordinary tokens of a block; 0: none */
  int32_t landmark;       /* ids of tokens; -1: none */
  int32_t bos;
  int32_t eos;
} cairn_model_info;

CAIRN_API void cairn_load_options_init(cairn_load_options* options);
/* `path` is a Hugging Face directory, a GGUF file or a llama2.c file. `options` may be NULL. */
CAIRN_API cairn_status cairn_model_load(const char* path, const cairn_load_options* options, cairn_model** model);
CAIRN_API void cairn_model_free(cairn_model* model);
CAIRN_API cairn_status cairn_model_get_info(const cairn_model* model, const cairn_model_info** info);

/* `begins`: not 0 for a text that begins here (with the bos token where the model wants one), 0 for one that continues
 * another. */
CAIRN_API cairn_status cairn_model_tokenize(const cairn_model* model, const char* text, size_t text_size, int begins,
                                            int32_t** tokens, size_t* count);
CAIRN_API cairn_status cairn_model_detokenize(const cairn_model* model, const int32_t* tokens, size_t count, int begins,
                                              char** text, size_t* text_size);

/* ---- Sessions ---- */

enum { CAIRN_ATTENTION_AS_TRAINED = 0, CAIRN_ATTENTION_LANDMARK, CAIRN_ATTENTION_FULL };
enum { CAIRN_GRANULARITY_HEAD_AND_TOKEN = 0, CAIRN_GRANULARITY_HEAD, CAIRN_GRANULARITY_TOKEN };
enum { CAIRN_POSITIONS_SLOTS = 0, CAIRN_POSITIONS_EXACT };
enum { CAIRN_BLOCKS_F32 = 0, CAIRN_BLOCKS_F16, CAIRN_BLOCKS_INT8 };
enum { CAIRN_INDEX_AUTO = 0, CAIRN_INDEX_EXACT, CAIRN_INDEX_INT8, CAIRN_INDEX_HIERARCHICAL, CAIRN_INDEX_IVF };

typedef struct cairn_session_options {
  size_t size;
  size_t k;             /* blocks that each query retrieves from the memory */
  size_t chunk;         /* tokens read at once; 0: what the trained context allows */
  size_t block;         /* tokens of a block; 0: the model's */
  size_t memory_blocks; /* blocks kept, the latest ones; 0: all */
  double cutoff;        /* in [0, 1]: the memory is not read where the context-miss token's share is below */
  int32_t attention;    /* CAIRN_ATTENTION_... */
  int32_t granularity;  /* CAIRN_GRANULARITY_...: who chooses blocks together */
  int32_t positions;    /* CAIRN_POSITIONS_... */
  int32_t reads;        /* not 0: record which blocks are read */
  int32_t block_format; /* CAIRN_BLOCKS_...: how finished blocks are kept */
  int32_t index;        /* CAIRN_INDEX_...: how landmarks are found */
} cairn_session_options;

/* A block that a token read: tokens [block * length, (block + 1) * length) of the text. */
typedef struct cairn_read {
  size_t layer;
  size_t block;
  double weight; /* its part of the attention, mean over the layer's heads */
} cairn_read;

/* Lent by a session. Later versions may add members. */
typedef struct cairn_session_stats {
  size_t tokens;          /* read or written so far */
  size_t blocks;          /* finished so far */
  size_t blocks_kept;     /* of them in the memory */
  size_t memory_bytes;    /* of the memory */
  size_t workspace_bytes; /* of everything else */
  size_t blocks_read;     /* by all queries together */
  size_t chunks;
} cairn_session_stats;

CAIRN_API void cairn_session_options_init(cairn_session_options* options);
/* `options` may be NULL. */
CAIRN_API cairn_status cairn_session_new(const cairn_model* model, const cairn_session_options* options,
                                         cairn_session** session);
CAIRN_API void cairn_session_free(cairn_session* session);
/* Every default resolved. `options` must have been filled by its init function. */
CAIRN_API cairn_status cairn_session_get_options(const cairn_session* session, cairn_session_options* options);

/* Reads a text: the beginning of one when the session has no tokens, else more of it. */
CAIRN_API cairn_status cairn_session_append_text(cairn_session* session, const char* text, size_t text_size);
/* Reads ordinary tokens; landmarks are inserted by rule. */
CAIRN_API cairn_status cairn_session_append_tokens(cairn_session* session, const int32_t* tokens, size_t count);

/* After the last token. Fails when nothing was read since the start, truncate or reset. */
CAIRN_API cairn_status cairn_session_get_logits(const cairn_session* session, const float** logits, size_t* count);
/* All ordinary tokens so far. */
CAIRN_API cairn_status cairn_session_get_tokens(const cairn_session* session, const int32_t** tokens, size_t* count);

/* A copy that goes its own way, on another thread if you like; finished blocks are shared. */
CAIRN_API cairn_status cairn_session_fork(const cairn_session* session, cairn_session** copy);
/* Forgets everything after the first `tokens` tokens. */
CAIRN_API cairn_status cairn_session_truncate(cairn_session* session, size_t tokens);
CAIRN_API cairn_status cairn_session_reset(cairn_session* session);
CAIRN_API cairn_status cairn_session_set_k(cairn_session* session, size_t k);

/* What the last token read; nothing unless the session records it. */
CAIRN_API cairn_status cairn_session_get_reads(cairn_session* session, const cairn_read** reads, size_t* count);
CAIRN_API cairn_status cairn_session_block_text(const cairn_session* session, size_t block, char** text,
                                                size_t* text_size);
CAIRN_API cairn_status cairn_session_get_stats(cairn_session* session, const cairn_session_stats** stats);

/* ---- Generation ---- */

enum { CAIRN_END_LENGTH = 0, CAIRN_END_TOKEN, CAIRN_END_STOP, CAIRN_END_INTERRUPTED };

typedef struct cairn_generate_options {
  size_t size;
  size_t max_tokens;
  size_t top_k; /* draw from the k most probable tokens; 0: all */
  size_t repetition_window;
  uint64_t seed;            /* the same seed draws the same text */
  const char* const* stops; /* texts that end the generation, each ended by a zero; not part of it */
  size_t stop_count;
  const int32_t* end_tokens; /* tokens that end it, besides the model's own */
  size_t end_token_count;
  float temperature;        /* 0: always the most probable token */
  float top_p;              /* draw from the fewest tokens with this share */
  float min_p;              /* leave out tokens less probable than this part of the best */
  float repetition_penalty; /* above 1: repeat less */
  int32_t ignore_end;       /* not 0: the model's own end tokens do not end it */
} cairn_generate_options;

typedef struct cairn_token {
  const char* text; /* may be printed now; often empty, or of several tokens */
  size_t text_size;
  const cairn_read* reads; /* that led to the token; none unless the session records them */
  size_t read_count;
  int32_t id; /* -1: text that was held back, at the very end */
} cairn_token;

/* Returns 0 to end the generation, anything else to go on. May look at the session but not change it, and must not let
 * exceptions of its language out. */
typedef int (*cairn_token_callback)(const cairn_token* token, void* user);

typedef struct cairn_generation {
  const char* text;
  size_t text_size;
  const int32_t* tokens; /* without the one that ended it */
  size_t token_count;
  double seconds;
  int32_t end; /* CAIRN_END_... */
} cairn_generation;

CAIRN_API void cairn_generate_options_init(cairn_generate_options* options);
/* Writes on, and appends what it writes. `options`, `callback` and `result` may be NULL; `user` is passed on. */
CAIRN_API cairn_status cairn_session_generate(cairn_session* session, const cairn_generate_options* options,
                                              cairn_token_callback callback, void* user, cairn_generation** result);
CAIRN_API void cairn_generation_free(cairn_generation* result);

#ifdef __cplusplus
}
#endif

#endif /* CAIRN_CAIRN_H_ */
