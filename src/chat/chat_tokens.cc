// Rendered chat templates as tokens: control tokens where the template wrote them, text where a message did.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "chat/chat_template.h"

namespace cairn {

namespace {

struct Marker {
  int32_t id;
  std::string_view spelling;
  bool control;  // else a user-defined piece, which the tokenizer finds in any text by itself
};

// Pieces that steer the model, found by their spelling.
class Markers {
 public:
  explicit Markers(const Tokenizer& tokenizer) {
    const VocabularySpec& spec = tokenizer.spec();
    for (size_t i = 0; i < spec.pieces.size(); ++i) {
      const std::string& piece = spec.pieces[i];
      const auto id = static_cast<int32_t>(i);
      const bool control = spec.types[i] == TokenType::kControl;
      // Of user-defined pieces those in brackets: others are white space and the like.
      const bool bracketed = piece.size() > 2 && ((piece.front() == '<' && piece.back() == '>') ||
                                                  (piece.front() == '[' && piece.back() == ']'));
      const bool user_defined = spec.types[i] == TokenType::kUserDefined && bracketed;
      if (piece.empty() || spec.landmark == id || !(control || user_defined)) continue;
      by_first_[static_cast<uint8_t>(piece[0])].push_back({id, piece, control});
    }
    for (auto& list : by_first_) {
      std::stable_sort(list.begin(), list.end(),
                       [](const Marker& a, const Marker& b) { return a.spelling.size() > b.spelling.size(); });
    }
  }

  // The longest one that stands here, or null. Trusted text gives only those whose bytes are all trusted.
  const Marker* Find(const MarkedText& text, size_t position, bool trusted) const {
    for (const Marker& marker : by_first_[static_cast<uint8_t>(text.bytes[position])]) {
      if (text.bytes.compare(position, marker.spelling.size(), marker.spelling) != 0) continue;
      if (!trusted || IsTrusted(text, position, marker.spelling.size())) return &marker;
    }
    return nullptr;
  }

  static bool IsTrusted(const MarkedText& text, size_t begin, size_t count) {
    return text.marks.empty() || std::string_view(text.marks).substr(begin, count).find('\1') == std::string_view::npos;
  }

 private:
  std::array<std::vector<Marker>, 256> by_first_;
};

}  // namespace

std::vector<int32_t> EncodeRendered(const Tokenizer& tokenizer, const MarkedText& rendered) {
  const Markers markers(tokenizer);
  std::vector<int32_t> ids;
  bool begins = true;  // of the text, or after a control token
  size_t begin = 0;    // of what is not encoded yet
  const auto encode_until = [&](size_t end) {
    if (end == begin) return;
    const std::string_view part = std::string_view(rendered.bytes).substr(begin, end - begin);
    const auto more = begins ? tokenizer.Encode(part) : tokenizer.EncodeMiddle(part);
    ids.insert(ids.end(), more.begin(), more.end());
    begins = false;
    begin = end;
  };
  for (size_t i = 0; i < rendered.size();) {
    const Marker* trusted = markers.Find(rendered, i, true);
    if (trusted != nullptr && trusted->control) {
      encode_until(i);
      ids.push_back(trusted->id);
      i += trusted->spelling.size();
      begin = i;
      begins = true;
      continue;
    }
    // Cut a forged user-defined piece in two, so that the tokenizer does not find it either.
    const Marker* any = markers.Find(rendered, i, false);
    const bool forged = any != nullptr && !Markers::IsTrusted(rendered, i, any->spelling.size());
    ++i;
    if (forged) encode_until(i);
  }
  encode_until(rendered.size());
  return ids;
}

std::vector<int32_t> EndOfMessage(const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  if (tokenizer.eos()) ids.push_back(*tokenizer.eos());
  MarkedText rendered;
  try {
    rendered = chat_template.Render({{"user", "a"}, {"assistant", "b"}}, false);
  } catch (const Error&) {
    return ids;  // a template that wants more than this; eos will have to do
  }
  const size_t last = rendered.marks.rfind('\1');
  if (last == std::string::npos) return ids;
  const size_t next = rendered.bytes.find_first_not_of(" \n", last + 1);
  if (next == std::string::npos) return ids;
  const Marker* marker = Markers(tokenizer).Find(rendered, next, true);
  if (marker != nullptr && std::find(ids.begin(), ids.end(), marker->id) == ids.end()) ids.push_back(marker->id);
  return ids;
}

}  // namespace cairn
