#include "infer/ingest.h"

#include <xxhash.h>

#include <algorithm>
#include <atomic>

#include "base/error.h"
#include "base/threads.h"
#include "infer/generate.h"

namespace cairn {

namespace {

// Blocks of one commit: a few megabytes.
constexpr size_t kCommitBlocks = 64;

MemoryIdentity IdentityOf(const InferenceModel& model, const SessionOptions& options) {
  const ModelConfig& config = model.config();
  MemoryIdentity identity;
  identity.fingerprint = FingerprintOf(model.source());
  identity.model = model.source().name();
  identity.layers = config.num_hidden_layers;
  identity.kv_heads = config.num_key_value_heads;
  identity.block = {config.head_dim, options.block_length, true, options.block_format};
  return identity;
}

// The token that fills the last block of a text up.
int32_t FillToken(const Tokenizer& tokenizer) {
  if (tokenizer.eos()) return *tokenizer.eos();
  if (tokenizer.bos()) return *tokenizer.bos();
  const std::vector<int32_t> line = tokenizer.EncodeMiddle("\n");
  return line.empty() ? 0 : line.front();
}

}  // namespace

std::string FingerprintOf(const ModelSource& model) {
  ModelConfig config = model.config();
  config.other_keys = "{}";
  std::string text = ToJson(config);
  std::vector<const StoredTensor*> tensors;
  for (const auto& [name, tensor] : model.tensors()) {
    text += fmt::format("{} {} {};", name, NameOf(tensor.type), ToString(tensor.shape));
    tensors.push_back(&tensor);
  }
  std::vector<uint64_t> hashes(tensors.size());
  ParallelFor(tensors.size(),
              [&](size_t i, int) { hashes[i] = XXH3_64bits(tensors[i]->bytes.data(), tensors[i]->bytes.size()); });
  for (const uint64_t hash : hashes) text += fmt::format("{:016x}", hash);
  return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

void CheckSameModel(const MemoryFile& file, const ModelSource& model) {
  if (file.identity().fingerprint == FingerprintOf(model)) return;
  Fail("'{}' was made with another model ('{}') than '{}'; use that one, or ingest the texts again", file.name(),
       file.identity().model, model.name());
}

SessionOptions OptionsFor(const MemoryFile& file, SessionOptions options) {
  options.attention = AttentionKind::kLandmark;
  options.block_length = file.identity().block.tokens;
  options.block_format = file.identity().block.format;
  return options;
}

size_t BlockBudget(const MemoryIdentity& identity, size_t blocks, size_t ram) {
  const size_t each = identity.block.format == BlockFormat::kF32 ? 4 : 2;
  const size_t landmarks = blocks * identity.landmark_floats() * each;
  // Whatever the budget, a few blocks must have room.
  return std::max(ram > landmarks ? ram - landmarks : 0, 64 * identity.layers * identity.record_bytes());
}

Ingest::Ingest(const std::filesystem::path& path, std::shared_ptr<const InferenceModel> model,
               std::shared_ptr<const Tokenizer> tokenizer, const SessionOptions& options, size_t ram)
    : model_(std::move(model)),
      tokenizer_(std::move(tokenizer)),
      options_(Session(model_, options).options()),
      writer_(path, IdentityOf(*model_, options_)),
      session_(model_, options_) {
  if (options_.attention != AttentionKind::kLandmark) {
    Fail("only a landmark model can fill a memory; give the model landmarks with cairn tune");
  }
  if (options_.chunk_length % options_.block_length != 0) {
    Fail("a chunk of {} tokens is not a whole number of blocks of {}; choose another --chunk", options_.chunk_length,
         options_.block_length);
  }
  auto file = std::make_shared<const MemoryFile>(path);
  // Twice the landmarks there are: the memory grows.
  const size_t budget = BlockBudget(file->identity(), 2 * file->blocks(), ram);
  session_.AttachMemory(std::make_shared<BlockCache>(std::move(file), budget));
}

IngestResult Ingest::Add(const std::string& name, std::string_view text,
                         const std::function<bool(const IngestProgress&)>& progress) {
  const uint64_t checksum = XXH3_64bits(text.data(), text.size());
  std::vector<MemorySource> sources = writer_.sources();
  size_t source = sources.size();
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i].name != name || sources[i].forgotten) continue;
    if (sources[i].checksum != checksum || sources[i].bytes != text.size()) {
      Fail("'{}' is in the memory with another content; forget it first (cairn forget --source)", name);
    }
    source = i;
  }
  IngestResult result;
  const size_t length = options_.block_length;
  size_t had = 0;  // blocks of an earlier run
  if (source == sources.size()) {
    sources.push_back({name, text.size(), checksum, false, false});
  } else if (sources[source].complete) {
    result.state = IngestResult::State::kAlreadyThere;
    return result;
  } else {
    result.state = IngestResult::State::kResumed;
    for (const BlockSpan& span : session_.cache()->file()->spans()) had += span.source == source;
  }

  std::vector<int32_t> ids = EncodePrompt(model_->source(), *tokenizer_, text);
  // Where each token ends in the text.
  std::vector<uint64_t> ends;
  ends.reserve(ids.size());
  uint64_t at = 0;
  const bool bos = ids.size() > 0 && tokenizer_->bos() == ids[0] && BeginsWithBos(model_->source(), *tokenizer_);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!(bos && i == 0)) {
      const size_t first = bos ? 1 : 0;
      at += i == first ? tokenizer_->Decode({&ids[i], 1}).size() : tokenizer_->TokenBytes(ids[i]).size();
    }
    ends.push_back(std::min<uint64_t>(at, text.size()));
  }
  const size_t real = ids.size();
  const size_t blocks = (real + length - 1) / length;
  ids.resize(blocks * length, FillToken(*tokenizer_));

  // Chunks begin where they would have without a break: at multiples of the chunk from the source's start.
  const size_t chunk = options_.chunk_length / length;
  CAIRN_CHECK(had % chunk == 0 || had == blocks, "a source stopped inside a chunk");
  std::vector<BlockSpan> spans;
  const auto save = [&](bool complete) {
    sources[source].complete = complete;
    session_.SaveBlocks(writer_, std::move(spans), sources);
    spans.clear();
  };
  for (size_t block = had; block < blocks;) {
    const size_t count = std::min(chunk, blocks - block);
    session_.Append(std::span(ids).subspan(block * length, count * length));
    for (size_t b = block; b < block + count; ++b) {
      const size_t last = std::min(real, (b + 1) * length);
      spans.push_back({static_cast<uint32_t>(source), static_cast<uint32_t>((b + 1) * length - last),
                       b == 0 ? 0 : ends[b * length - 1], ends[last - 1]});
    }
    block += count;
    result.blocks += count;
    result.tokens += std::min(real, block * length) - std::min(real, (block - count) * length);
    const bool stop = progress && !progress({std::min(real, block * length), real});
    const bool end = block == blocks;
    if (spans.size() >= kCommitBlocks || stop || end) save(end);
    if (stop) return result;
  }
  if (had == blocks) save(true);  // an empty text, or one that lacked its last mark
  return result;
}

size_t ForgetSource(const std::filesystem::path& path, const std::string& name) {
  MemoryIdentity identity;
  size_t blocks = 0;
  bool found = false;
  std::vector<MemorySource> sources;
  {
    const MemoryFile file(path);
    identity = file.identity();
    sources = file.sources();
    std::string known;
    for (size_t i = 0; i < sources.size(); ++i) {
      if (!sources[i].forgotten) known += (known.empty() ? "" : ", ") + sources[i].name;
      if (sources[i].name != name || sources[i].forgotten) continue;
      sources[i].forgotten = true;
      found = true;
      for (const BlockSpan& span : file.spans()) blocks += span.source == i;
    }
    if (!found) {
      if (known.size() > 300) known = known.substr(0, 300) + "...";
      Fail("'{}' has no source '{}'; it has: {}", path.string(), name, known.empty() ? "none" : known);
    }
  }
  MemoryWriter writer(path, identity);
  MemorySegment segment;
  segment.sources = sources;
  writer.Commit(segment);
  return blocks;
}

}  // namespace cairn
