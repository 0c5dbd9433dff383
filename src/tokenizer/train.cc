#include "tokenizer/train.h"

#include <sentencepiece_trainer.h>

#include <iterator>
#include <optional>
#include <unordered_map>

#include "base/error.h"
#include "io/file.h"
#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/utf8.h"

namespace cairn {

namespace {

// unknown, bos, eos, 256 bytes, landmark.
constexpr int kReserved = 3 + 256 + 1;
// SentencePiece holds whole lines; longer ones are fed in parts.
constexpr size_t kMaxLine = 4096;

// Feeds the lines of all files, a sample of them when there is too much text.
class LineFeeder : public sentencepiece::SentenceIterator {
 public:
  explicit LineFeeder(const TokenizerTraining& options) {
    uint64_t total = 0;
    for (const auto& path : options.files) total += files_.emplace_back(path).bytes().size();
    if (total > options.max_bytes) keep_ = static_cast<double>(options.max_bytes) / static_cast<double>(total);
    LineFeeder::Next();
  }

  bool done() const override { return done_; }
  const std::string& value() const override { return line_; }
  sentencepiece::util::Status status() const override { return {}; }

  void Next() override {
    while (file_ < files_.size()) {
      const auto bytes = files_[file_].bytes();
      const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      if (offset_ >= text.size()) {
        ++file_, offset_ = 0;
        continue;
      }
      const bool keep = TakeLine(text);
      if (keep && !line_.empty()) return;
    }
    done_ = true;
  }

 private:
  // Reads one line, or a part of a long one, into line_. False when the sample leaves it out.
  bool TakeLine(std::string_view text) {
    size_t end = std::min(text.find('\n', offset_), text.size());
    const bool cut = end - offset_ > kMaxLine;
    if (cut) {
      end = text.rfind(' ', offset_ + kMaxLine);
      if (end == std::string_view::npos || end <= offset_) end = offset_ + kMaxLine;
    }
    // Spread evenly: a line is taken whenever the share of bytes so far falls behind.
    seen_ += static_cast<double>(end - offset_ + 1);
    const bool keep = taken_ <= seen_ * keep_;
    line_.clear();
    if (keep) {
      taken_ += static_cast<double>(end - offset_ + 1);
      // What never becomes part of a piece is not shown to the trainer: invalid bytes, NUL, and U+2581, which the
      // trainer takes for a space.
      for (size_t i = offset_; i < end;) {
        const Utf8Character c = ReadUtf8(text, i);
        if (c.code != 0 && c.code != '\r' && c.code != 0x2581 && c.code < kInvalidByte) line_.append(text, i, c.length);
        i += c.length;
      }
    }
    offset_ = cut ? end : end + 1;
    return keep;
  }

  std::vector<MappedFile> files_;
  size_t file_ = 0, offset_ = 0;
  double keep_ = 1, seen_ = 0, taken_ = 0;
  std::string line_;
  bool done_ = false;
};

// All strings of 2 to `digits` digits, with commas between them.
std::string Numbers(int digits) {
  std::string list;
  for (int length = 2, count = 100; length <= digits; ++length, count *= 10) {
    for (int number = 0; number < count; ++number) fmt::format_to(std::back_inserter(list), "{:0{}},", number, length);
  }
  if (!list.empty()) list.pop_back();
  return list;
}

}  // namespace

std::shared_ptr<const Tokenizer> TrainTokenizer(const TokenizerTraining& options) {
  if (options.digits < 1 || options.digits > 3) Fail("a token has 1 to 3 digits, not {}", options.digits);
  const int reserved = kReserved + (options.digits > 1 ? 100 : 0) + (options.digits > 2 ? 1000 : 0);
  if (options.vocab_size <= reserved || options.vocab_size > 1 << 20) {
    Fail("a vocabulary of {} is not possible; {} ids are reserved, and at most {} make sense", options.vocab_size,
         reserved, 1 << 20);
  }
  if (!(options.character_coverage > 0 && options.character_coverage <= 1)) {
    Fail("character coverage {} is not in (0, 1]", options.character_coverage);
  }
  LineFeeder feeder(options);
  if (feeder.done()) Fail("there is no text to train a tokenizer on");
  std::unordered_map<std::string, std::string> arguments = {
      {"model_type", "bpe"},
      {"vocab_size", std::to_string(options.vocab_size - 1)},  // the landmark comes after
      {"character_coverage", fmt::format("{}", options.character_coverage)},
      {"byte_fallback", "true"},
      {"normalization_rule_name", "identity"},
      {"remove_extra_whitespaces", "false"},
      {"add_dummy_prefix", "true"},
      {"allow_whitespace_only_pieces", "true"},
      {"split_digits", "true"},
      {"max_sentence_length", std::to_string(2 * kMaxLine)},
      {"unk_id", "0"},
      {"bos_id", "1"},
      {"eos_id", "2"},
      {"pad_id", "-1"},
      {"num_threads", "1"},
      {"minloglevel", "3"},
  };
  if (const std::string numbers = Numbers(options.digits); !numbers.empty())
    arguments["user_defined_symbols"] = numbers;
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(arguments, &feeder, &model);
  if (!status.ok()) {
    Fail("SentencePiece cannot make a vocabulary of {} from this text: {}; give more text or a smaller --vocab",
         options.vocab_size, status.ToString());
  }
  return MakeTokenizer(
      ReadSentencePieceModel(AppendControlPiece(std::move(model), kLandmarkPiece), "trained vocabulary"));
}

}  // namespace cairn
