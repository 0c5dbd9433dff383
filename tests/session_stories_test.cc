// The stories models in a session write, greedily, what llama2.c's own program prints for them: from its files, and
// from GGUF files.
#include <gtest/gtest.h>

#include "base/threads.h"
#include "formats/gguf_model.h"
#include "formats/model_tokenizer.h"
#include "infer/generate.h"
#include "io/xz.h"
#include "test_files.h"

namespace cairn {
namespace {

// What `run MODEL -t 0 -i "Once upon a time"` goes on with, 196 tokens.
constexpr std::string_view kStory15M =
    R"STORY(Once upon a time, there was a little girl named Lily. She loved to play outside in the sunshine. One day, she saw a big, red ball in the sky. It was the sun! She thought it was so pretty.
Lily wanted to play with the ball, but it was too high up in the sky. She tried to jump and reach it, but she couldn't. Then, she had an idea. She would use a stick to knock the ball down.
Lily found a stick and tried to hit the ball. But the stick was too short. She tried again and again, but she couldn't reach it. She felt sad.
Suddenly, a kind man came by and saw Lily. He asked her what was wrong. Lily told him about the ball. The man smiled and said, "I have a useful idea!" He took out a long stick and used it to knock the ball down.)STORY";
constexpr std::string_view kStory260K =
    R"STORY(Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw a big, red ball. She wanted to play with it, but it was too high.
Lily's mom said, "Lily, let's go to the park." Lily was sad and didn't know what to do. She said, "I want to play with your ball, but I can't find it."
Lily was sad and didn't know what to do. She said, "I'm sorry, Lily. I didn't know what to do."
Lily didn't want to help her mom, so she)STORY";

std::string Continue(std::shared_ptr<const ModelSource> source, const Tokenizer& tokenizer, size_t piece) {
  SetThreadCount(1);  // so small that threads, on a busy machine, wait for each other most of the time
  SessionOptions options;
  options.attention = AttentionKind::kFull;
  Session session(InferenceModel::Load(source, WeightKind::kF32), options);
  const std::vector<int32_t> ids = EncodePrompt(*source, tokenizer, "Once upon a time");
  for (size_t done = 0; done < ids.size(); done += piece) {
    session.Append(std::span(ids).subspan(done, std::min(piece, ids.size() - done)));
  }
  GenerationOptions generation;
  generation.max_tokens = 196;
  generation.sampling.temperature = 0;
  generation.end_tokens = EndTokens(source->config(), tokenizer);
  const Generation result = Generate(session, tokenizer, generation);
  EXPECT_EQ(result.end, EndReason::kLength);
  return "Once upon a time" + result.text;
}

TEST(SessionStories, Stories260KWritesWhatLlama2cDoes) {
  CAIRN_NEED_SHARED(shared);
  const auto tokenizer = LoadTokenizer(shared / "assets/tok512.bin");
  const auto model = OpenModel(shared / "assets/stories260K.bin");
  EXPECT_EQ(Continue(model, *tokenizer, 100), kStory260K);
  EXPECT_EQ(Continue(model, *tokenizer, 1), kStory260K);
  const auto gguf = OpenModel(shared / "assets/stories260K-f32.gguf");
  EXPECT_EQ(Continue(gguf, *LoadModelTokenizer(shared / "assets/stories260K-f32.gguf"), 100), kStory260K);
}

TEST(SessionStories, Stories15MWritesWhatLlama2cDoes) {
  CAIRN_NEED_SHARED(shared);
  const ScratchDirectory scratch;
  UnpackXz(shared / "assets/stories15M.bin.xz", scratch / "stories15M.bin");
  const auto tokenizer = LoadTokenizer(shared / "assets/tokenizer.bin");
  const auto model = OpenModel(scratch / "stories15M.bin");
  EXPECT_EQ(Continue(model, *tokenizer, 100), kStory15M);
  WriteGguf(*model, scratch / "stories15M.gguf", {.type = StoredType::kF32});
  EXPECT_EQ(Continue(OpenModel(scratch / "stories15M.gguf"), *tokenizer, 100), kStory15M);
}

}  // namespace
}  // namespace cairn
