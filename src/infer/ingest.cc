#include "infer/ingest.h"

#include <spdlog/spdlog.h>
#include <xxhash.h>

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"
#include "base/threads.h"
#include "infer/generate.h"
#include "tokenizer/piecewise_encoder.h"

namespace cairn {

namespace {

// Blocks of one commit, unless they are so large that they would take too much of the RAM budget.
constexpr size_t kCommitBlocks = 64;
constexpr size_t kCommitShare = 8;  // of the budget: one in so many bytes

size_t BlockBytes(const MemoryIdentity& identity) { return identity.records() * identity.record_bytes(); }

// What stays for blocks of the file when everything that must be in RAM is there. Records are wanted a few at a time
// whatever the budget.
size_t BlockBudget(const Session& session, size_t ram, size_t reserved) {
  const MemoryFile& file = *session.cache()->file();
  const size_t needed = session.fixed_bytes() + file.table_bytes() + reserved;
  return std::max(ram > needed ? ram - needed : 0, 64 * file.identity().kv_heads * file.identity().record_bytes());
}

MemoryIdentity IdentityOf(const InferenceModel& model, const SessionOptions& options) {
  const ModelConfig& config = model.config();
  MemoryIdentity identity;
  identity.fingerprint = FingerprintOf(model.source());
  identity.model = model.source().name();
  identity.layers = config.num_hidden_layers;
  identity.kv_heads = config.num_key_value_heads;
  identity.block = {config.head_dim, options.block_length, true, options.block_format};
  identity.local_layers = config.landmark.local_layers;
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

void AttachWithin(Session& session, std::shared_ptr<const MemoryFile> file, size_t ram, size_t reserved) {
  session.AttachMemory(std::make_shared<BlockCache>(file, 0));
  const size_t needed = session.fixed_bytes() + file->table_bytes() + reserved;
  if (needed > ram) {
    spdlog::warn("'{}': {} blocks need {:.0f} MB for their landmarks and tokens, more than the {:.0f} MB of --ram",
                 file->name(), file->blocks(), static_cast<double>(needed) / 1e6, static_cast<double>(ram) / 1e6);
  }
  session.cache()->SetBudget(BlockBudget(session, ram, reserved));
  session.cache()->Reserve();
}

Ingest::Ingest(const std::filesystem::path& path, std::shared_ptr<const InferenceModel> model,
               std::shared_ptr<const Tokenizer> tokenizer, const SessionOptions& options, size_t ram)
    : model_(std::move(model)),
      tokenizer_(std::move(tokenizer)),
      options_(Session(model_, options).options()),
      writer_(path, IdentityOf(*model_, options_)),
      session_(model_, options_),
      ram_(ram) {
  if (options_.attention != AttentionKind::kLandmark) {
    Fail("only a landmark model can fill a memory; give the model landmarks with cairn tune");
  }
  if (options_.chunk_length % options_.block_length != 0) {
    Fail("a chunk of {} tokens is not a whole number of blocks of {}; choose another --chunk", options_.chunk_length,
         options_.block_length);
  }
  auto file = std::make_shared<const MemoryFile>(path);
  const size_t block = BlockBytes(file->identity());
  commit_blocks_ = std::clamp<size_t>(ram / kCommitShare / block, 1, kCommitBlocks);
  // Chunks are read together where the budget allows it.
  const size_t chunk = options_.chunk_length / options_.block_length;
  piece_blocks_ =
      std::max(chunk, std::min(session_.piece_tokens() / options_.block_length, commit_blocks_) / chunk * chunk);
  // At most: what is not committed yet, and the chunks that come on top.
  unsaved_bytes_ = (commit_blocks_ + piece_blocks_) * block;
  AttachWithin(session_, std::move(file), ram, unsaved_bytes_);
}

// The source's place among the sources; appended when it is new. Throws Error when it is there with another content.
size_t Ingest::FindSource(const std::string& name, const LongText& text, std::vector<MemorySource>& sources) const {
  const uint64_t checksum = text.Checksum();
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i].name != name || sources[i].forgotten) continue;
    if (sources[i].checksum != checksum || sources[i].bytes != text.size()) {
      Fail("'{}' is in the memory with another content; forget it first (cairn forget --source)", name);
    }
    return i;
  }
  sources.push_back({name, text.size(), checksum, false, false});
  return sources.size() - 1;
}

IngestResult Ingest::Add(const std::string& name, const LongText& text,
                         const std::function<bool(const IngestProgress&)>& progress) {
  std::vector<MemorySource> sources = writer_.sources();
  const size_t source = FindSource(name, text, sources);
  IngestResult result;
  if (sources[source].complete) {
    result.state = IngestResult::State::kAlreadyThere;
    return result;
  }
  size_t had = 0;  // blocks of an earlier run
  if (source < writer_.sources().size()) {
    result.state = IngestResult::State::kResumed;
    for (const BlockSpan& span : session_.cache()->file()->spans()) had += span.source == source;
  }

  const size_t length = options_.block_length;
  const size_t chunk = options_.chunk_length / length;
  PiecewiseEncoder encoder(*tokenizer_, text);
  // Tokens that are encoded but not read yet, from `next` on, and where each ends in the text.
  std::vector<int32_t> ids;
  std::vector<uint64_t> ends;
  size_t next = 0;
  bool more = true;
  if (BeginsWithBos(model_->source(), *tokenizer_)) {
    ids.push_back(*tokenizer_->bos());
    ends.push_back(0);
  }
  // Up to `blocks` blocks; fewer only at the end.
  const auto encode = [&](size_t blocks) {
    while (more && ids.size() - next < blocks * length) {
      ids.erase(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(next));
      ends.erase(ends.begin(), ends.begin() + static_cast<ptrdiff_t>(next));
      next = 0;
      more = encoder.Next(ids, ends);
    }
    return std::min(blocks, DivideUp(ids.size() - next, length));
  };
  uint64_t at = 0;  // where the next block begins in the text
  for (size_t block = 0; block < had; ++block) {
    if (encode(1) == 0) Fail("'{}' has fewer blocks than the memory has of it; forget it first", name);
    next = std::min(ids.size(), next + length);
    at = ends[next - 1];
  }
  std::vector<BlockSpan> spans;
  const auto save = [&](bool complete) {
    sources[source].complete = complete;
    session_.SaveBlocks(writer_, std::move(spans), sources);
    spans.clear();
    session_.cache()->SetBudget(BlockBudget(session_, ram_, unsaved_bytes_));
  };
  // Chunks begin where they would have without a break: at multiples of the chunk from the source's start.
  if (had % chunk != 0 && encode(1) > 0) {
    Fail("'{}' was begun with another --chunk; go on with that one, or forget it first (cairn forget --source)", name);
  }
  for (;;) {
    const size_t count = encode(piece_blocks_);
    if (count == 0) break;
    const size_t real = std::min(count * length, ids.size() - next);
    ids.resize(std::max(ids.size(), next + count * length), FillToken(*tokenizer_));
    session_.Read(std::span(ids).subspan(next, count * length));
    for (size_t b = 0; b < count; ++b) {
      const size_t last = std::min(real, (b + 1) * length);
      const uint64_t end = ends[next + last - 1];
      spans.push_back({static_cast<uint32_t>(source), static_cast<uint32_t>((b + 1) * length - last), at, end});
      at = end;
    }
    next += real;
    ids.resize(ends.size());  // without what filled the last block up
    result.blocks += count;
    result.tokens += real;
    const bool stop = progress && !progress({at, text.size()});
    if (stop && encode(1) > 0) {
      save(false);
      return result;
    }
    if (spans.size() >= commit_blocks_ && encode(1) > 0) save(false);
  }
  if (text.Checksum() != sources[source].checksum) {
    Fail("'{}' changed while it was being read; forget it (cairn forget --source) and read it again", name);
  }
  save(true);
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
