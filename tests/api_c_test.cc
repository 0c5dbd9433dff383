// The C interface: called from C99, compared with the C++ one, and out of the shared library.
#include <cairn/cairn.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cairn/cairn.hpp>
#include <regex>
#include <set>
#include <thread>

#include "api_c99.h"
#include "api_models.h"
#include "io/file.h"
#include "test_files.h"

namespace cairn {
namespace {

api::GenerateOptions SameOptions() {
  return {.max_tokens = 12, .temperature = 0.8f, .top_k = 30, .seed = 5, .ignore_end = true};
}

TEST(CApi, ServesC99AsItServesCpp) {
  const ScratchDirectory scratch(SmallFilesDirectory());
  WriteApiModel(scratch / "model");
  char written[1024] = "";
  const char* problem = CheckCInterface((scratch / "model").c_str(), ApiText().c_str(), written, sizeof(written));
  EXPECT_EQ(problem, nullptr) << problem;

  const auto model = api::Model::Load(scratch / "model");
  api::Session session(model);
  session.Append(ApiText());
  EXPECT_EQ(session.Generate(SameOptions()).text, written);
}

TEST(CApi, DefaultsAreThoseOfCpp) {
  const api::SessionOptions session;
  cairn_session_options c_session;
  cairn_session_options_init(&c_session);
  EXPECT_EQ(c_session.size, sizeof(c_session));
  EXPECT_EQ(c_session.k, session.k);
  EXPECT_EQ(c_session.chunk, session.chunk);
  EXPECT_EQ(c_session.block, session.block);
  EXPECT_EQ(c_session.memory_blocks, session.memory_blocks);
  EXPECT_EQ(c_session.cutoff, session.cutoff);
  EXPECT_EQ(c_session.attention, static_cast<int>(session.attention));
  EXPECT_EQ(c_session.granularity, static_cast<int>(session.granularity));
  EXPECT_EQ(c_session.positions, static_cast<int>(session.positions));
  EXPECT_EQ(c_session.reads != 0, session.reads);
  const api::GenerateOptions generate;
  cairn_generate_options c_generate;
  cairn_generate_options_init(&c_generate);
  EXPECT_EQ(c_generate.size, sizeof(c_generate));
  EXPECT_EQ(c_generate.max_tokens, generate.max_tokens);
  EXPECT_EQ(c_generate.temperature, generate.temperature);
  EXPECT_EQ(c_generate.top_k, generate.top_k);
  EXPECT_EQ(c_generate.top_p, generate.top_p);
  EXPECT_EQ(c_generate.min_p, generate.min_p);
  EXPECT_EQ(c_generate.repetition_penalty, generate.repetition_penalty);
  EXPECT_EQ(c_generate.repetition_window, generate.repetition_window);
  EXPECT_EQ(c_generate.seed, generate.seed);
  EXPECT_EQ(c_generate.stop_count, 0u);
  EXPECT_EQ(c_generate.end_token_count, 0u);
  EXPECT_EQ(c_generate.ignore_end != 0, generate.ignore_end);
  EXPECT_STREQ(cairn_version(), std::string(api::Version()).c_str());
}

TEST(CApi, EveryThreadHasItsLastError) {
  cairn_model* model = nullptr;
  EXPECT_EQ(cairn_model_load("/no/such/model/here", nullptr, &model), CAIRN_ERROR);
  std::thread([&] {
    EXPECT_STREQ(cairn_last_error(), "");
    EXPECT_EQ(cairn_model_load("/no/such/model/there", nullptr, &model), CAIRN_ERROR);
    ExpectMessage(cairn_last_error(), "there");
  }).join();
  ExpectMessage(cairn_last_error(), "here");
  EXPECT_EQ(cairn_last_error(), std::string(cairn_last_error())) << "asking does not clear it";
}

// The names of the functions that the header declares.
std::set<std::string> DeclaredFunctions() {
  const std::string header = ReadTextFile(std::filesystem::path(CAIRN_SOURCE_DIR) / "include/cairn/cairn.h");
  static const std::regex pattern(R"(\nCAIRN_API [^;(]*\b(cairn_\w+)\()");
  std::set<std::string> names;
  for (std::sregex_iterator it(header.begin(), header.end(), pattern), end; it != end; ++it) names.insert((*it)[1]);
  return names;
}

TEST(CApi, TestsCallEveryFunction) {
  const std::string calls = ReadTextFile(std::filesystem::path(CAIRN_SOURCE_DIR) / "tests/api_c99.c");
  const auto names = DeclaredFunctions();
  EXPECT_EQ(names.size(), 29u);
  for (const std::string& name : names) EXPECT_NE(calls.find(name + "("), std::string::npos) << name;
}

TEST(CApi, SharedLibraryShowsTheCInterfaceAlone) {
#ifndef CAIRN_SHARED_LIBRARY
  GTEST_SKIP() << "built without CAIRN_SHARED_LIBRARY";
#else
  void* library = dlopen(CAIRN_SHARED_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  for (const std::string& name : DeclaredFunctions()) EXPECT_NE(dlsym(library, name.c_str()), nullptr) << name;
  EXPECT_EQ(dlsym(library, "_ZN5cairn11ThreadCountEv"), nullptr) << "only the C interface may be seen";
  EXPECT_EQ(dlsym(library, "_ZN5cairn3api5ModelD1Ev"), nullptr) << "only the C interface may be seen";
#define CAIRN_FUNCTION(name) const auto name = reinterpret_cast<decltype(&::name)>(dlsym(library, #name))
  CAIRN_FUNCTION(cairn_model_load);
  CAIRN_FUNCTION(cairn_model_free);
  CAIRN_FUNCTION(cairn_last_error);
  CAIRN_FUNCTION(cairn_session_new);
  CAIRN_FUNCTION(cairn_session_free);
  CAIRN_FUNCTION(cairn_session_append_text);
  CAIRN_FUNCTION(cairn_session_generate);
  CAIRN_FUNCTION(cairn_generate_options_init);
  CAIRN_FUNCTION(cairn_generation_free);
#undef CAIRN_FUNCTION
  const ScratchDirectory scratch(SmallFilesDirectory());
  WriteApiModel(scratch / "model");
  cairn_model* model = nullptr;
  ASSERT_EQ(cairn_model_load((scratch / "model").c_str(), nullptr, &model), CAIRN_OK) << cairn_last_error();
  cairn_session* session = nullptr;
  ASSERT_EQ(cairn_session_new(model, nullptr, &session), CAIRN_OK) << cairn_last_error();
  EXPECT_EQ(cairn_session_append_text(session, ApiText().c_str(), CAIRN_TO_ZERO), CAIRN_OK);
  cairn_generate_options options;
  cairn_generate_options_init(&options);
  options.max_tokens = 12;
  options.temperature = 0.8f;
  options.top_k = 30;
  options.seed = 5;
  options.ignore_end = 1;
  cairn_generation* result = nullptr;
  ASSERT_EQ(cairn_session_generate(session, &options, nullptr, nullptr, &result), CAIRN_OK) << cairn_last_error();
  const auto direct = api::Model::Load(scratch / "model");
  api::Session expected(direct);
  expected.Append(ApiText());
  EXPECT_EQ(expected.Generate(SameOptions()).text, result->text);
  cairn_generation_free(result);
  cairn_session_free(session);
  EXPECT_EQ(cairn_model_load("/no/such/model", nullptr, &model), CAIRN_ERROR) << "exceptions stay inside";
  ExpectMessage(cairn_last_error(), "/no/such/model");
  cairn_model_free(model);
  dlclose(library);
#endif
}

}  // namespace
}  // namespace cairn
