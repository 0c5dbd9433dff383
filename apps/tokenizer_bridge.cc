#include "apps/tokenizer_bridge.h"

#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "formats/model_tokenizer.h"
#include "io/file.h"

namespace cairn {

namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxConfig = size_t{16} << 20;

// Tokenizers are saved to directories; this one is removed again.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (fs::temp_directory_path() / "cairn-tokenizer-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) Fail("cannot make the directory '{}'", pattern);
    path_ = pattern;
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// The template that a Hugging Face directory has for chats, where tokenizer_config.json holds it as one text.
std::string ChatTemplateOf(const fs::path& directory) {
  const fs::path path = directory / "tokenizer_config.json";
  if (!fs::is_regular_file(path)) return "";
  const auto config = nlohmann::json::parse(ReadTextFile(path, kMaxConfig), nullptr, false);
  if (!config.is_object()) return "";
  const auto found = config.find("chat_template");
  return found != config.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

std::shared_ptr<const Tokenizer> TokenizerOrWarning(const ModelSource& model, const fs::path& path) {
  try {
    return LoadModelTokenizer(model, path);
  } catch (const Error& error) {
    spdlog::warn("no tokenizer is taken over: {}", error.what());
    return nullptr;
  }
}

std::vector<std::pair<std::string, std::string>> TokenizerFilesFor(const Tokenizer& tokenizer,
                                                                   const std::string& chat_template) {
  const TemporaryDirectory scratch;
  tokenizer.Save(scratch.path());
  std::vector<std::pair<std::string, std::string>> files;
  for (const char* name : {"tokenizer.model", "tokenizer.json", "tokenizer_config.json"}) {
    if (!fs::exists(scratch.path() / name)) continue;
    std::string text = ReadTextFile(scratch.path() / name);
    if (!chat_template.empty() && std::string_view(name) == "tokenizer_config.json") {
      auto config = nlohmann::ordered_json::parse(text);
      config["chat_template"] = chat_template;
      text = config.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    }
    files.emplace_back(name, std::move(text));
  }
  return files;
}

std::vector<std::pair<std::string, std::string>> TokenizerFilesFor(const GgufVocabulary& vocabulary) {
  try {
    const auto tokenizer = MakeTokenizer(SpecFromGguf(vocabulary, "the vocabulary inside the GGUF file"));
    return TokenizerFilesFor(*tokenizer, vocabulary.chat_template);
  } catch (const Error& error) {
    spdlog::warn("no tokenizer is taken over: {}", error.what());
    return {};
  }
}

std::optional<GgufVocabulary> VocabularyFrom(const Tokenizer& tokenizer) {
  try {
    return GgufFromSpec(tokenizer.spec());
  } catch (const Error& error) {
    spdlog::warn("no tokenizer is taken over: {}", error.what());
    return std::nullopt;
  }
}

void AddTokenizer(const ModelSource& model, const std::filesystem::path& path, HuggingFaceWriteOptions& options) {
  if (model.format() == ModelFormat::kHuggingFace) options.files_to_copy = TokenizerFilesOf(path);
  if (model.vocabulary()) options.text_files = TokenizerFilesFor(*model.vocabulary());
  if (model.format() != ModelFormat::kLlama2c) return;
  if (const auto beside = TokenizerOrWarning(model, path)) options.text_files = TokenizerFilesFor(*beside);
}

std::optional<GgufVocabulary> VocabularyFrom(const fs::path& directory) {
  std::shared_ptr<const Tokenizer> tokenizer;
  try {
    tokenizer = LoadTokenizer(directory);
  } catch (const Error& error) {
    spdlog::warn("no tokenizer is taken over: {}", error.what());
    return std::nullopt;
  }
  auto vocabulary = VocabularyFrom(*tokenizer);
  if (vocabulary) vocabulary->chat_template = ChatTemplateOf(directory);
  return vocabulary;
}

}  // namespace cairn
