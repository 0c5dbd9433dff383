// The conversation as the text that a chat model was trained on, by the template that its files carry.
#pragma once

#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chat/jinja.h"
#include "chat/marked_text.h"
#include "formats/model_source.h"
#include "tokenizer/tokenizer.h"

namespace cairn {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant": a word of lower-case letters
  std::string content;
};

// Immutable and thread-safe.
class ChatTemplate {
 public:
  // `source` is Jinja, rendered as Hugging Face does. `name` is for messages; `bos` and `eos` are the spellings of
  // these tokens, which templates print. Throws Error for what is not understood.
  static ChatTemplate FromText(const std::string& source, std::string name, std::string bos, std::string eos);
  // "User: ...\nAssistant:", for models that have no template.
  static ChatTemplate Plain(std::string bos, std::string eos);

  // The messages' contents are marked untrusted. `add_generation_prompt` ends the text where the assistant's next
  // message begins. Throws Error when the template refuses the messages.
  MarkedText Render(const std::vector<ChatMessage>& messages, bool add_generation_prompt,
                    std::optional<std::time_t> now = std::nullopt) const;

  // Whether it is the plain one, because the model has none of its own.
  bool is_plain() const { return is_plain_; }
  // Texts that end the assistant's message where no token does.
  std::vector<std::string> stops() const;
  const std::string& name() const { return name_; }

 private:
  ChatTemplate(const std::string& source, std::string name, std::string bos, std::string eos, bool is_plain);

  std::shared_ptr<const jinja::Template> template_;
  std::string name_, bos_, eos_;
  bool is_plain_;
};

// The template of a GGUF file (tokenizer.chat_template), or of a Hugging Face directory (chat_template.jinja, else
// "chat_template" in tokenizer_config.json, there the one named "default" when it is a list); else the plain one.
// `path` is where the model was opened.
ChatTemplate LoadChatTemplate(const ModelSource& model, const std::filesystem::path& path, const Tokenizer& tokenizer);

// The ids of a rendered text, no bos added. Spellings of control tokens become these tokens where the template wrote
// them, and stay text wherever a byte of them came from a message; the landmark never appears. After a control token
// the tokenizer's space before a text is put as at the beginning, which is what SentencePiece models saw in training.
std::vector<int32_t> EncodeRendered(const Tokenizer& tokenizer, const MarkedText& rendered);

// The tokens that end an assistant's message: eos, and the one that the template writes after it ("<|im_end|>", ...).
std::vector<int32_t> EndOfMessage(const ChatTemplate& chat_template, const Tokenizer& tokenizer);

}  // namespace cairn
