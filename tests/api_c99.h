/* What api_c99.c does for api_c_test.cc. */
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Calls every function on the model of api_models.h. Returns NULL or what was wrong first; `written` gets what was
 * generated after `text` with seed 5, temperature 0.8, top_k 30 and 12 tokens. */
const char* CheckCInterface(const char* path, const char* text, char* written, size_t written_size);

#ifdef __cplusplus
}
#endif
