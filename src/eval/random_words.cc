#include "eval/random_words.h"

#include <fmt/format.h>

#include <array>
#include <map>
#include <span>
#include <string_view>

namespace cairn {

namespace {

constexpr std::string_view kFirstNames[] = {
    "Agnes",  "Albert", "Amelia", "Anna",   "Arthur",  "Barbara", "Bertha", "Bruno",  "Clara",  "Conrad", "Cyril",
    "David",  "Dora",   "Edgar",  "Edith",  "Edward",  "Eleanor", "Emma",   "Ernest", "Esther", "Felix",  "Flora",
    "Frank",  "George", "Grace",  "Harold", "Harriet", "Helen",   "Henry",  "Hugo",   "Ida",    "Isaac",  "Jacob",
    "James",  "Jane",   "Julia",  "Karl",   "Laura",   "Lewis",   "Louisa", "Lucy",   "Mabel",  "Martin", "Mary",
    "Miriam", "Nathan", "Nora",   "Oliver", "Oscar",   "Paul",    "Peter",  "Philip", "Rachel", "Ralph",  "Robert",
    "Rosa",   "Ruth",   "Samuel", "Sarah",  "Simon",   "Susan",   "Thomas", "Walter", "William"};
constexpr std::string_view kLastNames[] = {
    "Abbott", "Archer",  "Atkins",  "Bailey",  "Baker",    "Barlow", "Bennett",  "Bishop",  "Blake",  "Bradley",
    "Brewer", "Brook",   "Burton",  "Carter",  "Chapman",  "Clarke", "Cole",     "Cooper",  "Crane",  "Dawson",
    "Doyle",  "Ellis",   "Farmer",  "Fisher",  "Fletcher", "Forbes", "Foster",   "Gardner", "Gibson", "Grant",
    "Hale",   "Harper",  "Hawkins", "Hooper",  "Hudson",   "Jarvis", "Jennings", "Keller",  "Knight", "Lambert",
    "Lloyd",  "Marsh",   "Mason",   "Mercer",  "Miller",   "Norton", "Osborn",   "Palmer",  "Parker", "Porter",
    "Reed",   "Sawyer",  "Shaw",    "Spencer", "Stone",    "Sutton", "Thorpe",   "Turner",  "Walker", "Warren",
    "Watson", "Webster", "Whitby",  "Wood"};
constexpr std::string_view kTrades[] = {"gardener",  "baker",    "sailor",    "tailor",   "miller",
                                        "smith",     "painter",  "carpenter", "shepherd", "doctor",
                                        "teacher",   "lawyer",   "clerk",     "soldier",  "hunter",
                                        "fisherman", "merchant", "printer",   "organist", "watchmaker"};
constexpr std::string_view kCities[] = {"Lisbon", "Vienna",    "Dublin", "Prague",  "Geneva", "Naples",   "Bristol",
                                        "Boston", "Edinburgh", "Athens", "Cairo",   "Moscow", "Havana",   "Madrid",
                                        "Venice", "Hamburg",   "Oxford", "Chicago", "Warsaw", "Salisbury"};
constexpr std::string_view kWords[] = {
    "lantern", "harbour", "velvet", "thunder", "orchard", "marble",  "feather", "copper",  "winter",  "castle",
    "violin",  "meadow",  "anchor", "candle",  "garden",  "mirror",  "silver",  "forest",  "bridge",  "cherry",
    "ribbon",  "island",  "shadow", "barrel",  "chimney", "pepper",  "saddle",  "tunnel",  "wagon",   "kettle",
    "pillow",  "rabbit",  "button", "hammer",  "cradle",  "blanket", "cottage", "diamond", "evening", "fountain"};
constexpr std::string_view kAdjectives[] = {
    "torpid",  "gentle", "brave",  "silent", "bitter",  "golden", "hollow",  "ancient", "crooked", "distant",
    "eager",   "faint",  "giddy",  "humble", "idle",    "jolly",  "keen",    "lonely",  "mellow",  "narrow",
    "odd",     "plain",  "quiet",  "rapid",  "sacred",  "tender", "upright", "vivid",   "weary",   "yellow",
    "zealous", "broken", "clumsy", "dreary", "earnest", "frosty", "greedy",  "hasty",   "jealous", "kindly"};
constexpr std::string_view kNouns[] = {
    "kid",      "guideline", "appeal", "pipe",    "ladder",  "rancher", "geometry", "blind",  "bosom",   "riding",
    "headrest", "tale",      "layout", "sadness", "counsel", "carpet",  "dealer",   "engine", "failure", "glove",
    "habit",    "insect",    "jacket", "kitchen", "lecture", "motion",  "needle",   "office", "parcel",  "quarrel",
    "rumour",   "sermon",    "ticket", "uncle",   "vessel",  "whistle", "yard",     "zebra",  "border",  "cousin"};

std::string_view OneOf(Random& random, std::span<const std::string_view> words) {
  return words[random.Below(words.size())];
}

}  // namespace

void FillPlaceholders(Random& random, std::initializer_list<std::string*> texts) {
  std::map<std::string, std::string> drawn;
  const auto value = [&](const std::string& name) -> const std::string* {
    if (const auto known = drawn.find(name); known != drawn.end()) return &known->second;
    std::string kind = name;
    while (!kind.empty() && kind.back() >= '0' && kind.back() <= '9') kind.pop_back();
    std::string text;
    if (kind == "person") {
      text = RandomPerson(random);
    } else if (kind == "number") {
      text = std::to_string(1 + random.Below(50000));
    } else if (kind == "trade") {
      text = OneOf(random, kTrades);
    } else if (kind == "city") {
      text = OneOf(random, kCities);
    } else if (kind == "word") {
      text = OneOf(random, kWords);
    } else if (kind == "adjective") {
      text = OneOf(random, kAdjectives);
    } else {
      return nullptr;
    }
    return &drawn.emplace(name, text).first->second;
  };
  for (std::string* text : texts) {
    for (size_t at = 0; (at = text->find('{', at)) != std::string::npos; ++at) {
      const size_t end = text->find('}', at);
      if (end == std::string::npos) break;
      const std::string* filled = value(text->substr(at + 1, end - at - 1));
      if (filled == nullptr) continue;
      text->replace(at, end + 1 - at, *filled);
      at += filled->size() - 1;
    }
  }
}

std::string RandomPerson(Random& random) {
  const std::string_view first = OneOf(random, kFirstNames);
  return fmt::format("{} {}", first, OneOf(random, kLastNames));
}

std::string RandomLineName(Random& random) {
  std::string name;
  // 40 * 40 pairs are soon used up; triples are not.
  if (random.Below(4) != 0) name = fmt::format("{}-", OneOf(random, kAdjectives));
  const std::string_view noun = OneOf(random, kNouns);
  return fmt::format("{}{}-{}", name, noun, OneOf(random, kWords));
}

std::string RandomUuid(Random& random) {
  const uint64_t a = random.Next();
  const uint64_t b = random.Next();
  return fmt::format("{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}", a >> 32, (a >> 16) & 0xffff, a & 0xfff,
                     0x8000 | ((b >> 48) & 0x3fff), b & 0xffffffffffff);
}

}  // namespace cairn
