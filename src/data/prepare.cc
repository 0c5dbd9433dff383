#include "data/prepare.h"

#include <algorithm>
#include <deque>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/threads.h"
#include "data/text_files.h"
#include "data/token_dataset.h"
#include "data/token_shard.h"
#include "io/file.h"

namespace cairn {

namespace {

using OrderedJson = nlohmann::ordered_json;

// Texts are encoded in parts of about this many bytes.
constexpr size_t kPartBytes = size_t{256} << 10;
// Parts that are held in memory at once, and files that are open at once.
constexpr size_t kWaveParts = 128;

// Collects the tokens of one split and writes a shard whenever there are enough.
class SplitWriter {
 public:
  SplitWriter(const PrepareOptions& options, std::string name)
      : options_(options),
        name_(std::move(name)),
        fingerprint_(std::stoull(options.tokenizer->fingerprint(), nullptr, 16)) {}

  uint64_t total() const { return total_; }

  void BeginDocument() {
    starts_.push_back(tokens_.size());
    ++documents_;
    if (options_.add_bos && options_.tokenizer->bos()) Append(std::vector<int32_t>{*options_.tokenizer->bos()});
  }

  void Append(std::span<const int32_t> ids) {
    while (!ids.empty()) {
      const uint64_t count = std::min<uint64_t>(ids.size(), options_.shard_tokens - tokens_.size());
      tokens_.insert(tokens_.end(), ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count));
      ids = ids.subspan(count);
      total_ += count;
      if (tokens_.size() == options_.shard_tokens) Flush();
    }
  }

  void AddSource(const std::string& file, uint64_t begin) {
    sources_.push_back({{"file", file}, {"begin", begin}, {"end", total_}});
  }

  OrderedJson Finish() {
    Flush();
    return {{"tokens", total_}, {"documents", documents_}, {"shards", shards_}, {"sources", sources_}};
  }
  void Report(PrepareSummary::Split& split) const {
    split.tokens = total_;
    split.documents = documents_;
    split.shards = shards_.size();
  }

 private:
  void Flush() {
    if (tokens_.empty()) return;
    const std::string file = fmt::format("{}-{:05}.tokens", name_, shards_.size());
    const ShardHeader header =
        WriteTokenShard(options_.output / file, {options_.tokenizer->vocab_size(), fingerprint_, tokens_, starts_});
    shards_.push_back({{"file", file},
                       {"tokens", header.token_count},
                       {"documents", header.document_count},
                       {"checksum", fmt::format("{:016x}", header.body_checksum)}});
    tokens_.clear();
    starts_.clear();
  }

  const PrepareOptions& options_;
  const std::string name_;
  const uint64_t fingerprint_;
  std::vector<int32_t> tokens_;
  std::vector<uint64_t> starts_;
  uint64_t total_ = 0, documents_ = 0;
  OrderedJson shards_ = OrderedJson::array(), sources_ = OrderedJson::array();
};

// A piece of a document, small enough to be one thread's work.
struct Part {
  std::string_view text;
  SplitWriter* writer;
  bool begins_document;
  bool ends_source = false;  // the last part of a file in this split
  std::string file;          // when ends_source
  std::vector<int32_t> ids;  // the result
};

class Preparation {
 public:
  Preparation(const PrepareOptions& options, uint64_t bytes)
      : options_(options),
        train_(options, kTrainSplit),
        validation_(options, kValidationSplit),
        progress_("preparing", bytes) {}

  void AddFile(const std::filesystem::path& path, bool all_validation) {
    const MappedFile& file = files_.emplace_back(path);
    const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
    const std::string name = path.string();
    SplitWriter* const main = all_validation ? &validation_ : &train_;
    const double fraction = all_validation ? 0 : options_.validation_fraction;
    std::vector<std::string_view> tails;
    for (const std::string_view document : Documents(text)) {
      const size_t cut = ValidationCut(document, fraction);
      AddDocument(document.substr(0, cut), main);
      if (cut < document.size()) tails.push_back(document.substr(cut));
    }
    EndSource(name, main);
    for (const std::string_view tail : tails) AddDocument(tail, &validation_);
    if (!tails.empty()) EndSource(name, &validation_);
    if (parts_.size() >= kWaveParts || files_.size() >= kWaveParts) RunWave();
  }

  void Finish(PrepareSummary& summary) {
    RunWave();
    OrderedJson manifest;
    manifest["format"] = "cairn-tokens";
    manifest["version"] = kShardVersion;
    manifest["tokenizer"] = {{"fingerprint", options_.tokenizer->fingerprint()},
                             {"kind", NameOf(options_.tokenizer->kind())},
                             {"vocab_size", options_.tokenizer->vocab_size()}};
    manifest["bytes_per_token"] = BytesPerToken(options_.tokenizer->vocab_size());
    manifest["bos"] = options_.add_bos && options_.tokenizer->bos();
    manifest["splits"][kTrainSplit] = train_.Finish();
    if (validation_.total() > 0) manifest["splits"][kValidationSplit] = validation_.Finish();
    train_.Report(summary.train);
    validation_.Report(summary.validation);
    if (summary.train.tokens == 0) Fail("the text is empty; there is nothing to train on");
    WriteFileAtomically(options_.output / kManifestName,
                        manifest.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  }

 private:
  std::vector<std::string_view> Documents(std::string_view text) const {
    std::vector<std::string_view> documents;
    const std::string& separator = options_.separator;
    while (!separator.empty()) {
      const size_t found = text.find(separator);
      if (found == std::string_view::npos) break;
      documents.push_back(text.substr(0, found));
      text.remove_prefix(found + separator.size());
    }
    documents.push_back(text);
    return documents;
  }

  // Where the validation part of a document begins: after a line end.
  static size_t ValidationCut(std::string_view document, double fraction) {
    if (fraction <= 0) return document.size();
    const auto target = static_cast<size_t>(static_cast<double>(document.size()) * (1 - fraction));
    const size_t line_end = document.find('\n', target);
    return line_end == std::string_view::npos ? document.size() : line_end + 1;
  }

  void AddDocument(std::string_view text, SplitWriter* writer) {
    bool begins = true;
    while (!text.empty()) {
      const size_t cut = PartEnd(text);
      parts_.push_back({text.substr(0, cut), writer, begins, false, {}, {}});
      text.remove_prefix(cut);
      begins = false;
    }
  }

  // The first place after kPartBytes, before or after a line end, where a cut changes no token.
  size_t PartEnd(std::string_view text) const {
    for (size_t at = kPartBytes; at < text.size(); ++at) {
      at = text.find('\n', at);
      if (at == std::string_view::npos) break;
      if (options_.tokenizer->IsSafeCut(text, at)) return at;
      if (options_.tokenizer->IsSafeCut(text, at + 1)) return at + 1;
    }
    return text.size();
  }

  void EndSource(const std::string& file, SplitWriter* writer) {
    parts_.push_back({{}, writer, false, true, file, {}});
  }

  void RunWave() {
    ParallelFor(parts_.size(), [&](size_t i, int) {
      Part& part = parts_[i];
      part.ids =
          part.begins_document ? options_.tokenizer->Encode(part.text) : options_.tokenizer->EncodeMiddle(part.text);
      progress_.Add(part.text.size());
    });
    for (const Part& part : parts_) {
      if (part.ends_source) {
        uint64_t& begin = part.writer == &train_ ? train_source_ : validation_source_;
        part.writer->AddSource(part.file, begin);
        begin = part.writer->total();
        continue;
      }
      if (part.ids.empty()) continue;  // a library's normaliser may leave nothing
      if (part.begins_document) part.writer->BeginDocument();
      part.writer->Append(part.ids);
    }
    parts_.clear();
    files_.clear();
  }

  const PrepareOptions& options_;
  SplitWriter train_, validation_;
  uint64_t train_source_ = 0, validation_source_ = 0;  // where the current file's tokens begin
  Progress progress_;
  std::deque<MappedFile> files_;
  std::vector<Part> parts_;
};

void CheckOptions(const PrepareOptions& options) {
  CAIRN_CHECK(options.tokenizer != nullptr);
  if (!(options.validation_fraction >= 0 && options.validation_fraction < 1)) {
    Fail("a validation fraction of {} is not in [0, 1)", options.validation_fraction);
  }
  if (options.validation_fraction > 0 && !options.validation_files.empty()) {
    Fail("give either a validation fraction or validation files, not both");
  }
  if (options.shard_tokens < 1 || options.shard_tokens > (uint64_t{1} << 32)) {
    Fail("{} tokens a shard is not possible; 1 to 2^32 is", options.shard_tokens);
  }
}

// Shards of an earlier preparation would otherwise lie about.
void ClearOutput(const PrepareOptions& options) {
  std::error_code failure;
  std::filesystem::create_directories(options.output, failure);
  if (failure) Fail("cannot make the directory '{}': {}", options.output.string(), failure.message());
  if (!std::filesystem::exists(options.output / kManifestName)) return;
  if (!options.force) {
    Fail("'{}' holds prepared data already; choose another directory, or give --force to replace it",
         options.output.string());
  }
  std::filesystem::remove(options.output / kManifestName);
  for (const auto& entry : std::filesystem::directory_iterator(options.output)) {
    if (entry.path().extension() == ".tokens") std::filesystem::remove(entry.path());
  }
}

}  // namespace

PrepareSummary PrepareData(const PrepareOptions& options) {
  CheckOptions(options);
  TextFiles train = FindTextFiles(options.inputs);
  TextFiles validation;
  if (!options.validation_files.empty()) validation = FindTextFiles(options.validation_files);
  // What is held out must not be trained on, also when its directory is named whole.
  std::set<std::filesystem::path> held_out;
  for (const auto& file : validation.files) held_out.insert(std::filesystem::weakly_canonical(file));
  std::erase_if(train.files,
                [&](const auto& file) { return held_out.count(std::filesystem::weakly_canonical(file)) != 0; });
  if (train.files.empty()) Fail("every file is a validation file; there is nothing to train on");
  ClearOutput(options);

  PrepareSummary summary;
  summary.skipped_files = train.skipped.size() + validation.skipped.size();
  summary.train.files = train.files.size();
  summary.validation.files = options.validation_fraction > 0 ? train.files.size() : validation.files.size();
  summary.train.bytes = train.bytes;
  summary.validation.bytes = validation.bytes;
  Preparation preparation(options, train.bytes + validation.bytes);
  for (const auto& file : train.files) preparation.AddFile(file, false);
  for (const auto& file : validation.files) preparation.AddFile(file, true);
  preparation.Finish(summary);
  return summary;
}

}  // namespace cairn
