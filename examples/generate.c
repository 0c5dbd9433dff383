/* Continues a text: generate MODEL TEXT [TOKENS] */
#include <cairn/cairn.h>
#include <stdio.h>
#include <stdlib.h>

static int Print(const cairn_token* token, void* user) {
  fwrite(token->text, 1, token->text_size, (FILE*)user);
  fflush((FILE*)user);
  return 1; /* 0 ends it */
}

int main(int argc, char** argv) {
  cairn_model* model = NULL;
  cairn_session* session = NULL;
  cairn_generate_options options;
  int failed;
  if (argc < 3) {
    fprintf(stderr, "call me with a model and a text\n");
    return 2;
  }
  cairn_generate_options_init(&options);
  if (argc > 3) options.max_tokens = strtoul(argv[3], NULL, 10);
  failed = cairn_model_load(argv[1], NULL, &model) != CAIRN_OK ||
           cairn_session_new(model, NULL, &session) != CAIRN_OK ||
           cairn_session_append_text(session, argv[2], CAIRN_TO_ZERO) != CAIRN_OK ||
           cairn_session_generate(session, &options, Print, stdout, NULL) != CAIRN_OK;
  if (failed) fprintf(stderr, "error: %s\n", cairn_last_error());
  printf("\n");
  cairn_session_free(session);
  cairn_model_free(model);
  return failed;
}
