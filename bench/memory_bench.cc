#include "bench/memory_bench.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "base/error.h"
#include "bench/timing.h"
#include "data/text_files.h"
#include "infer/ingest.h"
#include "io/file.h"
#include "plot/line_chart.h"

namespace cairn {

namespace {

size_t ResidentBytes() {
  FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  unsigned long all = 0, resident = 0;
  const int found = std::fscanf(file, "%lu %lu", &all, &resident);
  std::fclose(file);
  return found == 2 ? resident * static_cast<size_t>(sysconf(_SC_PAGESIZE)) : 0;
}

// The texts one after the other, a piece at a time; from the beginning again when they end.
class TextStream {
 public:
  explicit TextStream(const std::vector<std::string>& texts) {
    files_ = FindTextFiles({texts.begin(), texts.end()}).files;
  }
  std::string Next(size_t bytes) {
    while (text_.size() - at_ < bytes) {
      text_ = text_.substr(at_) + ReadTextFile(files_[file_++ % files_.size()]);
      at_ = 0;
    }
    at_ += bytes;
    return text_.substr(at_ - bytes, bytes);
  }

 private:
  std::vector<std::filesystem::path> files_;
  size_t file_ = 0;
  std::string text_;
  size_t at_ = 0;
};

constexpr size_t kTurn = 32;  // tokens written before it is the other session's turn

// One token, the most probable; the seconds it takes.
double Write(Session& session) {
  const auto logits = session.Logits();
  const auto best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  const double begin = SecondsNow();
  session.Append({&best, 1});
  return SecondsNow() - begin;
}

}  // namespace

std::vector<MemoryBenchRow> BenchMemory(const std::shared_ptr<const InferenceModel>& model,
                                        const std::shared_ptr<const Tokenizer>& tokenizer,
                                        const MemoryBenchOptions& options,
                                        const std::function<void(const MemoryBenchRow&)>& each) {
  std::error_code ignored;
  if (std::filesystem::exists(options.memory, ignored)) Fail("'{}' exists; name a new file", options.memory.string());
  TextStream stream(options.texts);
  std::vector<MemoryBenchRow> rows;
  std::optional<Session> first;
  size_t in_memory = 0, pieces = 0;
  for (const size_t size : options.sizes) {
    MemoryBenchRow row{};
    {
      Ingest ingest(options.memory, model, tokenizer, options.session, options.ram);
      size_t fresh = 0;
      double seconds = 0;
      while (in_memory < size) {
        const std::string text = stream.Next(std::clamp<size_t>((size - in_memory) * 3, 2000, 400000));
        const double begin = SecondsNow();
        const IngestResult result = ingest.Add(fmt::format("part {}", ++pieces), LongText::OfBytes(text));
        seconds += SecondsNow() - begin;
        in_memory += result.tokens;
        fresh += result.tokens;
      }
      row.ingest_tokens_per_second = static_cast<double>(fresh) / seconds;
    }
    const double open_begin = SecondsNow();
    const auto file = std::make_shared<const MemoryFile>(options.memory);
    Session session(model, OptionsFor(*file, options.session));
    AttachWithin(session, file, options.ram);
    row.open_seconds = SecondsNow() - open_begin;
    // A question out of the text's own words, then the model's own continuation.
    session.Append(std::vector<int32_t>(session.tokens().begin(), session.tokens().begin() + 20));
    session.Logits();
    row.first_token_seconds = SecondsNow() - open_begin;
    // In turn with the first size, for the machine's speed varies: tokens a second are compared within the same moment.
    if (!first) first.emplace(session.Fork());
    Session small = first->Fork();
    const BlockCache::Counters before = session.cache()->counters();
    std::vector<double> latencies, small_latencies;
    double sum = 0, small_sum = 0;
    for (size_t done = 0; done < options.tokens; done += kTurn) {
      const size_t count = std::min(kTurn, options.tokens - done);
      for (size_t i = 0; i < count; ++i) {
        small_latencies.push_back(Write(small));
        small_sum += small_latencies.back();
      }
      for (size_t i = 0; i < count; ++i) {
        latencies.push_back(Write(session));
        sum += latencies.back();
      }
    }
    const BlockCache::Counters after = session.cache()->counters();
    std::sort(latencies.begin(), latencies.end());
    std::sort(small_latencies.begin(), small_latencies.end());
    row.tokens = in_memory;
    row.blocks = file->blocks();
    row.decode_tokens_per_second = static_cast<double>(latencies.size()) / sum;
    row.slower_than_first = sum / small_sum;
    row.median_slower = latencies[latencies.size() / 2] / small_latencies[latencies.size() / 2];
    row.p50_ms = 1e3 * latencies[latencies.size() / 2];
    row.p99_ms = 1e3 * latencies[latencies.size() * 99 / 100];
    row.disk_bytes_per_token =
        static_cast<double>(after.bytes_read - before.bytes_read) / static_cast<double>(options.tokens);
    const auto wanted = static_cast<double>(after.hits + after.misses - before.hits - before.misses);
    row.hit_percent = wanted > 0 ? 100 * static_cast<double>(after.hits - before.hits) / wanted : 100;
    row.resident_bytes = ResidentBytes();
    row.file_bytes = file->file_bytes();
    rows.push_back(row);
    if (each) each(row);
  }
  return rows;
}

std::string DrawMemoryBench(const std::string& title, const std::vector<MemoryBenchRow>& rows) {
  const auto series = [&](const char* name, const std::function<double(const MemoryBenchRow&)>& value) {
    ChartSeries result;
    result.name = name;
    for (const MemoryBenchRow& row : rows) result.points.push_back({static_cast<double>(row.tokens), value(row)});
    return result;
  };
  const auto chart = [](const char* name, const char* unit, std::vector<ChartSeries> lines) {
    LineChart result;
    result.title = name;
    result.x_label = "tokens in the memory";
    result.y_label = unit;
    result.log_x = true;
    result.series = std::move(lines);
    return result;
  };
  // Reading is much faster than writing, and the file larger than RAM: these axes are logarithmic.
  LineChart speed = chart("Speed", "tokens a second",
                          {series("reading (ingest)", [](const auto& row) { return row.ingest_tokens_per_second; }),
                           series("writing (decode)", [](const auto& row) { return row.decode_tokens_per_second; })});
  speed.log_y = true;
  LineChart memory =
      chart("Memory", "megabytes",
            {series("resident", [](const auto& row) { return static_cast<double>(row.resident_bytes) / 1e6; }),
             series("file", [](const auto& row) { return static_cast<double>(row.file_bytes) / 1e6; })});
  memory.log_y = true;
  const LineChart latency = chart("Latency of a written token", "milliseconds",
                                  {series("half of them (p50)", [](const auto& row) { return row.p50_ms; }),
                                   series("99 of 100 (p99)", [](const auto& row) { return row.p99_ms; })});
  return DrawLineCharts(title, {speed, latency, memory});
}

}  // namespace cairn
