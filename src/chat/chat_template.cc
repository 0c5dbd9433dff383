#include "chat/chat_template.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/file.h"
#include "io/json.h"

namespace cairn {

namespace {

namespace fs = std::filesystem;

// The largest real ones have some 20 kB.
constexpr size_t kMaxSource = size_t{1} << 20;
constexpr size_t kMaxConfig = size_t{64} << 20;

constexpr const char* kPlainTemplate =
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message.role == 'system' %}{{ message.content ~ '\\n\\n' }}"
    "{% elif message.role == 'user' %}{{ 'User: ' ~ message.content ~ '\\n' }}"
    "{% else %}{{ 'Assistant: ' ~ message.content ~ '\\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}";

bool IsRole(const std::string& role) {
  const auto fits = [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; };
  return !role.empty() && role.size() <= 32 && std::all_of(role.begin(), role.end(), fits);
}

std::string SpellingOf(const Tokenizer& tokenizer, std::optional<int32_t> id) {
  return id ? tokenizer.Piece(*id) : std::string();
}

// A token in tokenizer_config.json: a text, or an object that has it as "content".
std::string TokenIn(const nlohmann::json& config, const char* key, const std::string& otherwise) {
  const auto found = config.find(key);
  if (found == config.end()) return otherwise;
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_object()) return otherwise;
  const auto content = found->find("content");
  return content != found->end() && content->is_string() ? content->get<std::string>() : otherwise;
}

// "chat_template": a text, or a list of {"name", "template"}; empty when there is none.
std::string SourceIn(const nlohmann::json& config, const std::string& name) {
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return "";
  if (found->is_string()) return found->get<std::string>();
  std::string first;
  if (found->is_array()) {
    for (const auto& entry : *found) {
      if (!entry.is_object() || !entry.contains("template") || !entry["template"].is_string()) continue;
      const std::string source = entry["template"].get<std::string>();
      if (entry.contains("name") && entry["name"] == "default") return source;
      if (first.empty()) first = source;
    }
  }
  if (first.empty()) Fail("'{}': \"chat_template\" is neither a text nor a list of named texts", name);
  return first;
}

}  // namespace

ChatTemplate::ChatTemplate(const std::string& source, std::string name, std::string bos, std::string eos, bool is_plain)
    : name_(std::move(name)), bos_(std::move(bos)), eos_(std::move(eos)), is_plain_(is_plain) {
  if (source.size() > kMaxSource) Fail("'{}': a chat template of {} bytes is too large", name_, source.size());
  template_ = std::make_shared<const jinja::Template>(source, name_);
}

ChatTemplate ChatTemplate::FromText(const std::string& source, std::string name, std::string bos, std::string eos) {
  return ChatTemplate(source, std::move(name), std::move(bos), std::move(eos), false);
}

ChatTemplate ChatTemplate::Plain(std::string bos, std::string eos) {
  return ChatTemplate(kPlainTemplate, "plain template", std::move(bos), std::move(eos), true);
}

std::vector<std::string> ChatTemplate::stops() const {
  if (!is_plain_) return {};
  return {"\nUser:"};
}

MarkedText ChatTemplate::Render(const std::vector<ChatMessage>& messages, bool add_generation_prompt,
                                std::optional<std::time_t> now) const {
  using jinja::Value;
  jinja::Heap heap{jinja::Limits()};
  const auto text = [&](const std::string& trusted) { return heap.NewText(MarkedText(trusted)); };
  jinja::List list;
  for (const ChatMessage& message : messages) {
    // Templates put the role into control tokens.
    if (!IsRole(message.role)) Fail("'{}' is no role of a message; use system, user or assistant", message.role);
    list.push_back(heap.NewDict(
        {{text("role"), text(message.role)}, {text("content"), heap.NewText(MarkedText::Untrusted(message.content))}}));
  }
  const jinja::Variables variables = {{"messages", heap.NewList(std::move(list))},
                                      {"add_generation_prompt", Value::Bool(add_generation_prompt)},
                                      {"bos_token", text(bos_)},
                                      {"eos_token", text(eos_)},
                                      {"tools", Value::None()},
                                      {"documents", Value::None()}};
  return template_->Render(heap, variables, now);
}

ChatTemplate LoadChatTemplate(const ModelSource& model, const fs::path& path, const Tokenizer& tokenizer) {
  std::string bos = SpellingOf(tokenizer, tokenizer.bos()), eos = SpellingOf(tokenizer, tokenizer.eos());
  std::string source, name = path.string();
  if (model.format() == ModelFormat::kGguf) {
    if (model.vocabulary()) source = model.vocabulary()->chat_template;
  } else if (model.format() == ModelFormat::kHuggingFace) {
    if (const fs::path file = path / "tokenizer_config.json"; fs::exists(file)) {
      const nlohmann::json config = ParseJson(ReadTextFile(file, kMaxConfig), file.string());
      if (config.is_object()) {
        name = file.string();
        source = SourceIn(config, name);
        bos = TokenIn(config, "bos_token", bos);
        eos = TokenIn(config, "eos_token", eos);
      }
    }
    if (const fs::path file = path / "chat_template.jinja"; fs::exists(file)) {
      name = file.string();
      source = ReadTextFile(file, kMaxSource);
    }
  }
  if (source.empty()) return ChatTemplate::Plain(std::move(bos), std::move(eos));
  return ChatTemplate::FromText(source, std::move(name), std::move(bos), std::move(eos));
}

}  // namespace cairn
