#include "data/recall_rows.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace cairn {

namespace {

using Tokens = std::vector<int32_t>;
using Sources = RecallRows::Sources;

constexpr Sources kNone = {RecallRows::kNoSource, RecallRows::kNoSource};
constexpr size_t kNoFact = SIZE_MAX;

// Something that is put into the text.
struct Insert {
  size_t cut;    // before this token of the text
  size_t order;  // of those at the same cut
  Tokens tokens;
  size_t answer_begin = 0, answer_end = 0;  // in `tokens`
  size_t fact = kNoFact;                    // that is stated or asked for
  Sources in_statement = kNone;  // of a question about a fact: tokens of the statement that the answer begins at
  size_t quoted = 0;             // of a question about the text: the token of the text that it begins at
  size_t break_at = 0;           // of a statement: a block is to end before this token; 0: wherever it falls
};

// The first two places of one sequence in another.
Sources PlacesOf(const Tokens& part, const Tokens& whole) {
  Sources places = kNone;
  auto at = whole.begin();
  for (int32_t& place : places) {
    at = std::search(at, whole.end(), part.begin(), part.end());
    if (part.empty() || at == whole.end()) break;
    place = static_cast<int32_t>(at - whole.begin());
    ++at;
  }
  return places;
}

void Add(Tokens& to, const Tokens& from) { to.insert(to.end(), from.begin(), from.end()); }

// Words of the text that are asked for by the words before them.
struct Quote {
  size_t begin, asked, end;  // tokens of the text: [begin, asked) are shown, [asked, end) are the answer
};

}  // namespace

RecallRows::RecallRows(const TokenDataset& dataset, std::shared_ptr<const Tokenizer> tokenizer,
                       const BatchOptions& options, const RecallConfig& config)
    : tokenizer_(std::move(tokenizer)),
      options_(options),
      config_(config),
      words_(std::make_shared<WordList>(dataset, *tokenizer_)) {
  begins_word_.resize(tokenizer_->vocab_size());
  asks_.resize(tokenizer_->vocab_size());
  for (size_t id = 0; id < begins_word_.size(); ++id) {
    const std::string bytes = tokenizer_->TokenBytes(static_cast<int32_t>(id));
    if (bytes.empty()) continue;
    begins_word_[id] = bytes[0] == ' ' || bytes[0] == '\n';
    asks_[id] = bytes.back() == '?';
    if (static_cast<int32_t>(id) != options_.landmark_id) ordinary_.push_back(static_cast<int32_t>(id));
  }
}

RecallRows RecallRows::With(const RecallConfig& config, uint64_t seed) const {
  RecallRows other = *this;
  other.config_ = config;
  other.options_.seed = seed;
  return other;
}

// The beginning of a word near a part of the text.
size_t RecallRows::CutAt(std::span<const int32_t> filler, double share) const {
  size_t cut = std::min(static_cast<size_t>(share * static_cast<double>(filler.size() + 1)), filler.size());
  for (size_t i = 0; i < 8 && cut < filler.size() && begins_word_[static_cast<size_t>(filler[cut])] == 0; ++i) ++cut;
  return cut;
}

RecallRows::Row RecallRows::Make(std::span<const int32_t> text, bool pass_key, Random& random, bool simple) const {
  const size_t size = text.size();
  const bool repeated = random.Uniform() < config_.repeated_filler;
  Tokens filler(text.begin(), text.end());
  if (repeated) {
    const Tokens once = tokenizer_->EncodeMiddle(DrawRepeatedFiller(*words_, random));
    const size_t phase = random.Below(once.size());
    for (size_t i = 0; i < size; ++i) filler[i] = once[(i + phase) % once.size()];
  }

  // Every other row has as many as fit.
  const bool full = simple || random.Uniform() < 0.5;
  const size_t most = full ? config_.facts : 1 + random.Below(config_.facts);
  const WordList words =
      config_.own_words > 0 ? words_->WithWordsOf(tokenizer_->DecodeMiddle(filler), config_.own_words) : *words_;
  const std::vector<RecallFact> facts =
      simple ? DrawSimpleFacts(words, most, random) : DrawFacts(words, most, pass_key, random, config_.retold);
  const size_t asked = simple ? most : most - random.Below(most / 2 + 1);
  const bool lines = random.Uniform() < 0.5;
  std::vector<Insert> statements, questions;
  for (size_t i = 0; i < facts.size(); ++i) {
    Insert statement;
    statement.tokens = tokenizer_->EncodeMiddle((lines ? "\n" : " ") + facts[i].statement + (lines ? "\n" : ""));
    statement.fact = i;
    const Tokens answer = tokenizer_->EncodeMiddle(facts[i].answer);
    if (config_.cut > 0 && random.Uniform() < config_.cut) {
      // Near the value or inside it.
      const int32_t value = std::max(PlacesOf(answer, statement.tokens)[0], 0);
      const int64_t at = value - 4 + static_cast<int64_t>(random.Below(answer.size() + 4));
      statement.break_at = static_cast<size_t>(std::max<int64_t>(at, 1));
    }
    statements.push_back(std::move(statement));
    if (i >= asked) continue;
    Insert question;
    question.fact = i;
    question.tokens = tokenizer_->EncodeMiddle((random.Uniform() < 0.7 ? "\n" : " ") + facts[i].question);
    question.answer_begin = question.tokens.size();
    question.in_statement = PlacesOf(answer, statements.back().tokens);
    // What a question says again after its mark can be known, and read, as the answer is.
    for (int32_t& place = question.in_statement[0]; place > 0 && question.answer_begin > 0; --place) {
      const int32_t token = question.tokens[question.answer_begin - 1];
      if (token != statements.back().tokens[static_cast<size_t>(place) - 1]) break;
      const auto until = question.tokens.begin() + static_cast<ptrdiff_t>(question.answer_begin) - 1;
      if (std::none_of(question.tokens.begin(), until,
                       [&](int32_t id) { return asks_[static_cast<size_t>(id)] != 0; })) {
        break;
      }
      --question.answer_begin;
      if (question.in_statement[1] != kNoSource) --question.in_statement[1];
    }
    Add(question.tokens, answer);
    if (!facts[i].end.empty()) Add(question.tokens, tokenizer_->EncodeMiddle(facts[i].end));
    question.answer_end = question.tokens.size();
    Add(question.tokens, tokenizer_->EncodeMiddle("\n"));
    questions.push_back(std::move(question));
  }
  size_t quotes = repeated || simple ? 0 : random.Below(4);
  constexpr size_t kQuoteTokens = 48;  // at most, question and answer
  const auto used = [&] {
    size_t tokens = quotes * kQuoteTokens + 1;
    for (const Insert& insert : statements) tokens += insert.tokens.size();
    for (const Insert& insert : questions) tokens += insert.tokens.size();
    return tokens;
  };
  // At least a quarter is text. Facts that are not asked for go first.
  while (used() + size / 4 > size && (quotes > 0 || !statements.empty())) {
    if (quotes > 1) {
      --quotes;
    } else if (statements.size() > questions.size() || (statements.size() > 1 && !questions.empty())) {
      if (statements.size() == questions.size()) questions.pop_back();
      statements.pop_back();
    } else if (quotes > 0) {
      --quotes;
    } else {
      statements.clear();
      questions.clear();
    }
  }
  filler.resize(size - std::min(size, used()));

  std::vector<Quote> quoted;
  for (size_t i = 0; i < quotes && filler.size() > 40; ++i) {
    const size_t shown = 6 + random.Below(12), told = 3 + random.Below(10);
    const size_t begin = CutAt(filler, random.Uniform() * 0.9);
    if (begin + shown + told > filler.size()) continue;
    quoted.push_back({begin, begin + shown, begin + shown + told});
  }
  // Nothing is put into a quoted passage.
  const auto outside = [&](size_t cut) {
    for (size_t again = 0; again < quoted.size(); ++again) {
      for (const Quote& quote : quoted) {
        if (cut > quote.begin && cut < quote.end) cut = quote.end;
      }
    }
    return cut;
  };
  const bool at_end = random.Uniform() < 0.7;
  std::vector<Insert> inserts;
  for (size_t i = 0; i < statements.size(); ++i) {
    const double place = random.Uniform();
    statements[i].cut = outside(CutAt(filler, place));
    statements[i].order = random.Below(1000);
    if (i < questions.size()) {
      questions[i].cut = at_end ? filler.size() : outside(CutAt(filler, place + (1 - place) * random.Uniform()));
      questions[i].order = 1000 + random.Below(1000);
    }
  }
  for (const Quote& quote : quoted) {
    Insert question;
    const double place = static_cast<double>(quote.end) / static_cast<double>(filler.size());
    question.cut =
        at_end ? filler.size() : std::max(quote.end, outside(CutAt(filler, place + (1 - place) * random.Uniform())));
    question.order = 1000 + random.Below(1000);
    question.quoted = quote.asked;
    question.tokens = tokenizer_->EncodeMiddle(std::string("\n").append(DrawQuoteIntroduction(random)));
    const auto at = [&](size_t i) { return filler.begin() + static_cast<ptrdiff_t>(i); };
    question.tokens.insert(question.tokens.end(), at(quote.begin), at(quote.asked));
    question.answer_begin = question.tokens.size();
    question.tokens.insert(question.tokens.end(), at(quote.asked), at(quote.end));
    question.answer_end = question.tokens.size();
    Add(question.tokens, tokenizer_->EncodeMiddle("\n"));
    questions.push_back(std::move(question));
  }
  for (Insert& insert : statements) inserts.push_back(std::move(insert));
  for (Insert& insert : questions) inserts.push_back(std::move(insert));
  std::sort(inserts.begin(), inserts.end(),
            [](const Insert& a, const Insert& b) { return std::pair(a.cut, a.order) < std::pair(b.cut, b.order); });

  Row row;
  if (tokenizer_->bos() && random.Uniform() < 0.5) row.tokens.push_back(*tokenizer_->bos());
  row.answer.resize(row.tokens.size());
  std::vector<int32_t> filler_place;  // in the row, by token of the filler
  std::vector<int32_t> fact_place(facts.size(), kNoSource);
  const auto here = [&] { return static_cast<int32_t>(row.tokens.size()); };
  const auto take = [&](size_t end) {
    while (filler_place.size() < end) {
      const int32_t token = filler[filler_place.size()];
      filler_place.push_back(here());
      row.tokens.push_back(token);
    }
    row.answer.resize(row.tokens.size());
  };
  row.sources.assign(size, kNone);
  for (const Insert& insert : inserts) {
    take(insert.cut);
    if (insert.break_at > 0 && options_.block_length > 0) {
      // More of the text goes before it, so that a block ends there.
      const size_t over = (row.tokens.size() + insert.break_at) % options_.block_length;
      const size_t until = filler_place.size() + (options_.block_length - over) % options_.block_length;
      if (until <= filler.size() && outside(until) == until) take(until);
    }
    const bool asks = insert.answer_end > 0;
    if (!asks) fact_place[insert.fact] = here();
    for (size_t i = 0; i < insert.tokens.size(); ++i) {
      const bool answer = i >= insert.answer_begin && i < insert.answer_end;
      const bool after_mark = i > 0 && i < insert.answer_begin && asks_[static_cast<size_t>(insert.tokens[i - 1])] != 0;
      if ((answer || (after_mark && insert.fact != kNoFact)) && row.tokens.size() < size) {
        const size_t n = answer ? i - insert.answer_begin : 0;
        Sources& sources = row.sources[row.tokens.size()];
        if (insert.fact == kNoFact) {
          sources[0] = filler_place[insert.quoted + n];
        } else {
          for (size_t s = 0; s < sources.size(); ++s) {
            if (insert.in_statement[s] == kNoSource) continue;
            const int32_t place = fact_place[insert.fact] + insert.in_statement[s] + static_cast<int32_t>(n);
            // What ends the answer may be written otherwise there.
            const int32_t token = insert.tokens[insert.answer_begin + n];
            if (row.tokens[static_cast<size_t>(place)] == token) sources[s] = place;
          }
        }
      }
      row.tokens.push_back(insert.tokens[i]);
      row.answer.push_back(answer);
    }
  }
  take(filler.size());
  // Rounding left some places; text fills them.
  for (size_t i = 0; row.tokens.size() < size; ++i) row.tokens.push_back(text[i]);
  row.tokens.resize(size);
  row.answer.resize(size);
  return row;
}

RecallRows::Row RecallRows::MakeEcho(std::span<const int32_t> text, Random& random) const {
  Tokens noise;
  if (config_.noise > 0 && random.Uniform() < config_.noise) {
    while (noise.size() < text.size()) noise.push_back(ordinary_[random.Below(ordinary_.size())]);
    text = noise;
  }
  Row row;
  bool far = false;  // the first copy is the text itself
  const auto add = [&](size_t begin, size_t end, bool again) {
    for (size_t i = begin; i < end; ++i) {
      const bool answer = again && i >= begin + 2;
      row.tokens.push_back(text[i]);
      row.answer.push_back(answer);
      row.sources.push_back(answer && far ? Sources{static_cast<int32_t>(i), kNoSource} : kNone);
    }
  };
  if (random.Uniform() < 0.5) {
    // Short passages, each repeated at once: the nearest copy is a few tokens away.
    for (size_t begin = 0; row.tokens.size() < text.size();) {
      const auto length = static_cast<size_t>(4 * std::exp2(4 * random.Uniform()));
      const size_t end = std::min(begin + length, text.size());
      add(begin, end, false);
      for (size_t times = 1 + random.Below(2); times > 0; --times) add(begin, end, true);
      begin = end;
    }
  } else {
    far = true;
    const size_t half = text.size() / 2;
    std::vector<std::pair<size_t, size_t>> passages;
    for (size_t begin = 0; begin < half;) {
      const size_t end = std::min(half, begin + 8 + random.Below(56));
      passages.emplace_back(begin, end);
      begin = end;
    }
    for (size_t i = passages.size(); i > 1; --i) std::swap(passages[i - 1], passages[random.Below(i)]);
    add(0, half, false);
    for (const auto& [begin, end] : passages) add(begin, end, true);
    add(row.tokens.size(), text.size(), false);
  }
  row.tokens.resize(text.size());
  row.answer.resize(text.size());
  row.sources.resize(text.size());
  return row;
}

// The ordinary tokens of each row and the one after them.
std::vector<std::vector<int32_t>> RecallRows::Texts(uint64_t step, const Batch& batch) const {
  std::vector<Tokens> texts(batch.rows);
  size_t shortest = SIZE_MAX;
  for (size_t row = 0; row < batch.rows; ++row) {
    int32_t last = kIgnoredTarget;
    for (size_t i = row * batch.positions; i < (row + 1) * batch.positions; ++i) {
      if (options_.block_length > 0 && batch.input_ids[i] == options_.landmark_id) continue;
      if (batch.targets[i] == kIgnoredTarget) break;  // padding
      texts[row].push_back(batch.input_ids[i]);
      last = batch.targets[i];
    }
    if (last != kIgnoredTarget) texts[row].push_back(last);
    shortest = std::min(shortest, texts[row].size());
  }
  Random random(Random(options_.seed * 0x9e3779b97f4a7c15u + 7 * (step * options_.world + options_.rank) + 5).Next());
  if (config_.mixed == 0 || random.Uniform() >= config_.mixed) return texts;
  for (size_t begin = 0; begin < shortest;) {
    const size_t end = std::min(shortest, begin + 16 + random.Below(48));
    for (size_t row = batch.rows; row > 1; --row) {
      const size_t other = random.Below(row);
      if (other == row - 1) continue;
      std::swap_ranges(texts[row - 1].begin() + static_cast<ptrdiff_t>(begin),
                       texts[row - 1].begin() + static_cast<ptrdiff_t>(end),
                       texts[other].begin() + static_cast<ptrdiff_t>(begin));
    }
    begin = end;
  }
  return texts;
}

void RecallRows::Apply(uint64_t step, Batch& batch) const {
  const std::vector<Tokens> texts = Texts(step, batch);
  batch.scored = 0;
  batch.answer_blocks.assign(batch.rows * batch.positions, {kNoBlock, kNoBlock});
  for (size_t row = 0; row < batch.rows; ++row) {
    const uint64_t sample = (step * options_.world + options_.rank) * batch.rows + row;
    Random random(Random(options_.seed * 0x9e3779b97f4a7c15u + 3 * sample + 2).Next());
    int32_t* ids = &batch.input_ids[row * batch.positions];
    int32_t* targets = &batch.targets[row * batch.positions];
    const auto landmark = [&](size_t i) { return options_.block_length > 0 && ids[i] == options_.landmark_id; };
    Row made;
    if (random.Uniform() < config_.share) {
      const Tokens& tokens = texts[row];
      if (!tokens.empty()) {
        const double kind = random.Uniform();
        made = kind < config_.echo                    ? MakeEcho(tokens, random)
               : kind < config_.echo + config_.simple ? Make(tokens, false, random, true)
                                                      : Make(tokens, row == 0 && random.Uniform() < 0.6, random);
        FillRow(made.tokens, options_, {ids, batch.positions}, {targets, batch.positions});
      }
    }
    size_t next = 1;  // the token that the position's target is
    for (size_t i = 0; i < batch.positions; ++i) {
      if (landmark(i)) continue;
      const bool answer = next < made.answer.size() && made.answer[next] != 0;
      if (next < made.sources.size() && options_.block_length > 0) {
        const auto block = [&](size_t token) { return static_cast<int32_t>(token / options_.block_length); };
        for (size_t s = 0; s < made.sources[next].size(); ++s) {
          const int32_t source = made.sources[next][s];
          // Queries see the landmarks of blocks before their own.
          if (source == kNoSource || block(static_cast<size_t>(source)) >= block(next - 1)) continue;
          batch.answer_blocks[row * batch.positions + i][s] = block(static_cast<size_t>(source));
        }
      }
      ++next;
      if (targets[i] == kIgnoredTarget) continue;
      if (!answer && random.Uniform() >= config_.text_targets) targets[i] = kIgnoredTarget;
      batch.scored += targets[i] != kIgnoredTarget;
    }
  }
}

}  // namespace cairn
