#include "data/recall_clauses.h"

#include <fmt/format.h>

namespace cairn {

namespace {

using Kind = ClauseForm::Kind;

struct Verb {
  std::string_view base, past, present;
};

constexpr Verb kActs[] = {{"buy", "bought", "buys"},
                          {"sell", "sold", "sells"},
                          {"find", "found", "finds"},
                          {"paint", "painted", "paints"},
                          {"break", "broke", "breaks"},
                          {"hide", "hid", "hides"},
                          {"keep", "kept", "keeps"},
                          {"bring", "brought", "brings"},
                          {"eat", "ate", "eats"},
                          {"drink", "drank", "drinks"},
                          {"draw", "drew", "draws"},
                          {"build", "built", "builds"},
                          {"choose", "chose", "chooses"},
                          {"see", "saw", "sees"},
                          {"hear", "heard", "hears"},
                          {"love", "loved", "loves"},
                          {"fear", "feared", "fears"},
                          {"want", "wanted", "wants"},
                          {"receive", "received", "receives"},
                          {"forget", "forgot", "forgets"},
                          {"wear", "wore", "wears"},
                          {"collect", "collected", "collects"},
                          {"win", "won", "wins"},
                          {"repair", "repaired", "repairs"},
                          {"throw", "threw", "throws"},
                          {"catch", "caught", "catches"},
                          {"teach", "taught", "teaches"},
                          {"plant", "planted", "plants"},
                          {"sing", "sang", "sings"},
                          {"write", "wrote", "writes"},
                          {"borrow", "borrowed", "borrows"},
                          {"send", "sent", "sends"},
                          {"remember", "remembered", "remembers"},
                          {"praise", "praised", "praises"},
                          {"need", "needed", "needs"},
                          {"give away", "gave away", "gives away"},
                          {"burn", "burned", "burns"},
                          {"clean", "cleaned", "cleans"},
                          {"order", "ordered", "orders"},
                          {"dream of", "dreamt of", "dreams of"},
                          {"ask for", "asked for", "asks for"},
                          {"look at", "looked at", "looks at"},
                          {"hold", "held", "holds"},
                          {"take", "took", "takes"},
                          {"leave behind", "left behind", "leaves behind"},
                          {"pay for", "paid for", "pays for"},
                          {"own", "owned", "owns"},
                          {"invent", "invented", "invents"}};

constexpr Verb kMeetings[] = {{"meet", "met", "meets"},
                              {"visit", "visited", "visits"},
                              {"write to", "wrote to", "writes to"},
                              {"follow", "followed", "follows"},
                              {"trust", "trusted", "trusts"},
                              {"help", "helped", "helps"},
                              {"play with", "played with", "plays with"},
                              {"work for", "worked for", "works for"},
                              {"call", "called", "calls"},
                              {"speak with", "spoke with", "speaks with"},
                              {"wait for", "waited for", "waits for"},
                              {"travel with", "travelled with", "travels with"},
                              {"admire", "admired", "admires"},
                              {"live with", "lived with", "lives with"}};

constexpr Verb kStays[] = {{"live in", "lived in", "lives in"},
                           {"travel to", "travelled to", "travels to"},
                           {"work near", "worked near", "works near"},
                           {"walk to", "walked to", "walks to"},
                           {"go to", "went to", "goes to"},
                           {"study in", "studied in", "studies in"},
                           {"come from", "came from", "comes from"},
                           {"sail to", "sailed to", "sails to"},
                           {"return to", "returned to", "returns to"},
                           {"rest in", "rested in", "rests in"}};

constexpr std::string_view kRests[] = {"sleep", "wait", "sit", "stand", "hide"};
constexpr std::string_view kRested[] = {"slept", "waited", "sat", "stood", "hid"};

// What is done to a thing, and with what kind of value it ends.
struct Passive {
  std::string_view verb, asks;
  Kind kind;
};

constexpr Passive kPassives[] = {
    {"called", "What", Kind::kThing},          {"called", "What", Kind::kPerson},
    {"named", "What", Kind::kPerson},          {"known as the", "What", Kind::kThing},
    {"made of", "What", Kind::kThing},         {"filled with", "What", Kind::kThing},
    {"covered with", "What", Kind::kThing},    {"written by", "Whom", Kind::kPerson},
    {"signed by", "Whom", Kind::kPerson},      {"owned by", "Whom", Kind::kPerson},
    {"built by", "Whom", Kind::kPerson},       {"guarded by", "Whom", Kind::kPerson},
    {"discovered by", "Whom", Kind::kPerson},  {"given to", "Whom", Kind::kPerson},
    {"kept in the", "Where", Kind::kThing},    {"hidden in the", "Where", Kind::kThing},
    {"found near the", "Where", Kind::kThing}, {"stored behind the", "Where", Kind::kThing},
    {"hung over the", "Where", Kind::kThing},  {"seen beside the", "Where", Kind::kThing},
    {"sold in", "Where", Kind::kPlace},        {"built in", "Where", Kind::kPlace},
    {"last seen in", "Where", Kind::kPlace},   {"brought from", "Where", Kind::kPlace},
    {"locked with", "What", Kind::kThing},     {"carved from", "What", Kind::kThing},
    {"paid with", "What", Kind::kThing},       {"compared to a", "What", Kind::kThing},
    {"worth", "What", Kind::kNumber},          {"sold for", "What", Kind::kNumber},
    {"numbered", "How", Kind::kNumber},        {"opened with", "What", Kind::kThing}};

template <typename T, size_t N>
const T& Any(const T (&of)[N], Random& random) {
  return of[random.Below(N)];
}

std::string Noun(Random& random) {
  return Pick(
      {"brother", "sister",  "father", "mother",  "uncle",   "cousin", "servant",  "friend", "neighbour", "guest",
       "cat",     "horse",   "bird",   "cow",     "house",   "garden", "boat",     "chair",  "table",     "box",
       "coat",    "hat",     "ring",   "picture", "song",    "story",  "diary",    "map",    "shop",      "mill",
       "farm",    "village", "street", "tower",   "gate",    "church", "school",   "office", "factory",   "museum",
       "machine", "bottle",  "basket", "sword",   "cup",     "crown",  "carriage", "lamp",   "clock",     "piano",
       "essay",   "poem",    "speech", "report",  "company", "team",   "army",     "king",   "daughter",  "son"},
      random);
}

std::string Subject(Random& random) {
  switch (random.Below(9)) {
    case 0:
    case 1:
      return fmt::format("the {} of {{E}}", Noun(random));
    case 5:
      return fmt::format("the {} {} the {{D}}", Noun(random), Pick({"of", "in", "from", "behind", "near"}, random));
    case 2:
      return fmt::format("{{E}}'s {}", Noun(random));
    case 3:
      return fmt::format("the {} in {{P}}", Noun(random));
    case 4:
      return fmt::format("the {{D}} {}", Noun(random));
    default:
      return "{E}";
  }
}

std::string Thing(Random& random) {
  switch (random.Below(6)) {
    case 0:
      return fmt::format("the {{D}} {}", Noun(random));
    case 1:
      return fmt::format("the {} in {{P}}", Noun(random));
    case 2:
      return fmt::format("the {} from {{P}}", Noun(random));
    case 3:
      return fmt::format("{{E}}'s {}", Noun(random));
    default:
      return fmt::format("the {} of {{E}}", Noun(random));
  }
}

std::string Tail(Random& random) {
  if (!Chance(0.4, random)) return "";
  return Pick({" in {P}",          " near the {D}",   " on Monday",      " on Friday",          " at the {D}",
               " with a {D}",      " in the morning", " after the war",  " before the {D}",     " under the {D}",
               " in the {D} room", " without a word", " for {P}",        " last summer",        " in the winter",
               " at night",        " when {P} came",  " behind the {D}", " on the road to {P}", " from {P}",
               " every day",       " at the end",     " as a child"},
              random);
}

std::string Asks(Kind kind) { return kind == Kind::kPerson ? "Whom" : kind == Kind::kPlace ? "Where" : "What"; }

std::string Determiner(Random& random) {
  return Pick({"", " a", " a", " the", " the", " some", " one", " his", " her", " an old", " a new"}, random);
}

// Something that was done, or is done always.
void Act(ClauseForm& form, Random& random) {
  const size_t sort = random.Below(10);
  form.kind = sort < 6 ? Kind::kThing : sort < 8 ? Kind::kPerson : Kind::kPlace;
  const Verb& verb = form.kind == Kind::kThing    ? Any(kActs, random)
                     : form.kind == Kind::kPerson ? Any(kMeetings, random)
                                                  : Any(kStays, random);
  const bool past = Chance(0.6, random);
  std::string adverb;
  if (Chance(0.3, random)) {
    adverb = past ? Pick({" once", " secretly", " never", " first", " finally"}, random)
                  : Pick({" often", " never", " usually", " still", " only"}, random);
  }
  const std::string article = form.kind == Kind::kThing ? Determiner(random) : "";
  form.begin = "{S}" + adverb + " " + std::string(past ? verb.past : verb.present) + article;
  form.question = Asks(form.kind) + (past ? " did" : " does") + " {S}" + adverb + " " + std::string(verb.base) + "{T}?";
}

void Rest(ClauseForm& form, Random& random) {
  const size_t which = random.Below(std::size(kRests));
  const std::string place =
      Pick({"under the", "behind the", "near the", "in the", "beside the", "on the", "between the"}, random);
  form.begin = "{S} " + std::string(kRested[which]) + " " + place;
  form.question = "Where did {S} " + std::string(kRests[which]) + "{T}?";
}

void BeDone(ClauseForm& form, Random& random) {
  const Passive& passive = Any(kPassives, random);
  form.subject = Thing(random);
  form.kind = passive.kind;
  const std::string is = Chance(0.5, random) ? " is" : " was";
  form.begin = "{S}" + is + " " + std::string(passive.verb);
  std::string asked(passive.verb);
  if (asked.ends_with(" the")) asked.resize(asked.size() - 4);
  if (asked.ends_with(" a")) asked.resize(asked.size() - 2);
  if (passive.asks == "Where") asked.resize(asked.find(' '));
  if (passive.asks == "Whom" && Chance(0.6, random)) {
    form.question = "By whom" + is + " {S} " + asked.substr(0, asked.find(' ')) + "{T}?";
    if (asked.ends_with(" to")) form.question[0] = 'T', form.question[1] = 'o';
  } else {
    form.question = std::string(passive.asks) + is + " {S} " + asked + "{T}?";
  }
}

void Count(ClauseForm& form, Random& random) {
  form.kind = Kind::kNumber;
  form.subject = Thing(random);
  const std::string many = Pick({"windows", "rooms", "men", "children", "pages", "coins", "letters", "steps", "doors",
                                 "tables", "horses", "friends", "stones", "guns", "bells", "songs", "years", "miles"},
                                random);
  switch (random.Below(5)) {
    case 0:
      form.begin = "{S} has";
      form.question = "How many " + many + " does {S} have?";
      break;
    case 1:
      form.begin = "in {S} there are";
      form.question = "How many " + many + " are there in {S}?";
      break;
    case 2:
      form.begin = "{S} holds";
      form.question = "How many " + many + " does {S} hold?";
      break;
    case 3:
      form.begin = "{S} costs";
      form.tail = Pick({" francs", " dollars", " pence", " crowns", " marks"}, random);
      form.question = Pick({"How much does {S} cost?", "What does {S} cost?"}, random);
      return;
    default:
      form.begin = "{S} weighs";
      form.tail = Pick({" pounds", " tons", " grams", " stone"}, random);
      form.question = Pick({"How much does {S} weigh?", "How heavy is {S}?"}, random);
      return;
  }
  form.tail = " " + many;
}

void BeSomeone(ClauseForm& form, Random& random) {
  form.kind = Kind::kPerson;
  const Verb& verb = Any(kActs, random);
  const std::string did = "who " + std::string(verb.past) + " {S}";
  form.subject = Thing(random);
  form.begin = Pick({"the one ", "the man ", "the woman ", "the person "}, random) + did + " was";
  form.question = fmt::format("{}?", Capital(did));
}

void Be(ClauseForm& form, Random& random) {
  form.subject = fmt::format(fmt::runtime(Chance(0.5, random) ? "the {} of {{E}}" : "{{E}}'s {}"), Noun(random));
  const std::string is = Chance(0.7, random) ? " is" : " was";
  const size_t sort = random.Below(6);
  form.kind = sort < 2 ? Kind::kPerson : sort < 3 ? Kind::kPlace : sort < 4 ? Kind::kNumber : Kind::kThing;
  const std::string before = form.kind == Kind::kPlace   ? " in"
                             : form.kind == Kind::kThing ? Pick({"", " a", " the", " like a", " full of"}, random)
                                                         : "";
  form.begin = "{S}" + is + before;
  form.question = (form.kind == Kind::kPerson ? "Who" : form.kind == Kind::kPlace ? "Where" : "What") + is + " {S}?";
}

// The value comes before what it is asked by.
void ValueFirst(ClauseForm& form, Random& random) {
  const Verb& verb = Any(kActs, random);
  const std::string past(verb.past), base(verb.base);
  form.kind = Kind::kPerson;
  switch (random.Below(4)) {
    case 0:
      form.subject = Thing(random);
      form.begin = Chance(0.7, random) ? "it was" : "it must have been";
      form.tail = " who " + past + " {S}";
      form.question = "Who " + past + " {S}?";
      return;
    case 1:
      form.kind = Kind::kThing;
      form.begin = "it was" + Pick({" the", " a", " some", ""}, random);
      form.tail = " that {S} " + past;
      form.question = "What did {S} " + base + "?";
      return;
    case 2: {
      static constexpr std::string_view kHappened[][2] = {{"was born", "was {S} born"},
                                                          {"lost a ring", "did {S} lose a ring"},
                                                          {"learned to sing", "did {S} learn to sing"},
                                                          {"was last seen", "was {S} last seen"},
                                                          {"spent the winter", "did {S} spend the winter"},
                                                          {"fell ill", "did {S} fall ill"},
                                                          {"was arrested", "was {S} arrested"}};
      const auto& happened = Any(kHappened, random);
      form.kind = Kind::kPlace;
      form.begin = Pick({"it was in", "it was near", "it was on the road to"}, random);
      form.tail = " that {S} " + std::string(happened[0]);
      form.question = "Where " + std::string(happened[1]) + "?";
      return;
    }
    default:
      form.subject = Thing(random);
      form.begin =
          Pick({"in the end", "at last", "that year", "one day", "the other day", "after all", "long ago"}, random);
      form.tail = " " + past + " {S}";
      form.question = "Who " + past + " {S}?";
  }
}

// Two who did something together.
void Pair(ClauseForm& form, Random& random) {
  static constexpr std::string_view kTogether[][2] = {
      {"were friends", "Whose friend was {S}"},         {"played cards", "With whom did {S} play cards"},
      {"quarrelled", "With whom did {S} quarrel"},      {"shared a room", "With whom did {S} share a room"},
      {"were married", "Whom did {S} marry"},           {"sang a song", "With whom did {S} sing a song"},
      {"went fishing", "With whom did {S} go fishing"}, {"own a shop", "With whom does {S} own a shop"},
      {"often dine", "With whom does {S} often dine"},  {"became partners", "Whose partner did {S} become"}};
  const auto& together = Any(kTogether, random);
  form.kind = Kind::kPerson;
  form.subject = "{E}";
  form.begin = "{S} and";
  form.tail = " " + std::string(together[0]) + Tail(random);
  form.question = std::string(together[1]) + "?";
}

// A place, and then who or what was there.
void PlaceFirst(ClauseForm& form, Random& random) {
  const std::string place = Pick({"under ", "behind ", "in ", "near ", "beside ", "above ", "inside "}, random) + "{S}";
  form.subject = Thing(random);
  const Verb& verb = Any(kActs, random);
  const std::string who = Pick({"they", "she", "he", "the police", "someone", "the children"}, random);
  const std::string did = place + " " + who + " " + std::string(verb.past);
  if (Chance(0.5, random)) {
    const std::string noun = Noun(random);
    form.kind = Kind::kPerson;
    form.begin = did + " the " + noun + " of";
    form.question = "Whose " + noun + " did " + who + " " + std::string(verb.base) + " " + place + "?";
  } else {
    form.begin = did + Determiner(random);
    form.question = "What did " + who + " " + std::string(verb.base) + " " + place + "?";
  }
}

std::string Said(Kind kind, const WordList& words, Random& random) {
  switch (kind) {
    case Kind::kNumber:
      return Number(random);
    case Kind::kPerson:
      return Chance(0.5, random)   ? words.Name(random) + " " + words.Name(random)
             : Chance(0.7, random) ? words.Name(random)
                                   : Entity(words, random);
    case Kind::kPlace:
      return words.Name(random);
    default:
      if (Chance(0.06, random)) return Phrase(words, random);
      return Chance(0.08, random) ? Value(words, random)
                                  : Words(words,
                                          Chance(0.5, random)   ? 1
                                          : Chance(0.8, random) ? 2
                                                                : 3,
                                          random);
  }
}

}  // namespace

ClauseForm DrawClauseForm(Random& random) {
  ClauseForm form;
  form.subject = Subject(random);
  const size_t sort = random.Below(26);
  if (sort >= 24) {
    PlaceFirst(form, random);
  } else if (sort >= 22) {
    Pair(form, random);
  } else if (sort >= 20) {
    ValueFirst(form, random);
  } else if (sort < 8) {
    Act(form, random);
  } else if (sort < 9) {
    Rest(form, random);
  } else if (sort < 14) {
    BeDone(form, random);
  } else if (sort < 16) {
    Count(form, random);
  } else if (sort < 17) {
    BeSomeone(form, random);
  } else {
    Be(form, random);
  }
  const bool circumstance = form.tail.empty();
  if (circumstance) form.tail = Tail(random);
  if (Chance(0.15, random)) {
    form.lead = Pick({"They say that ", "It is true that ", "As we know, ", "In those days ", "Remember that ",
                      "Nobody knew that ", "Note: ", "I have heard that ", "In fact, "},
                     random);
  }
  const double asked = random.Uniform();
  // A beginning that does not name the subject asks for nothing.
  if (asked < 0.2 && form.begin.find("{S}") != std::string::npos) form.question.clear();
  if (asked > 0.9) form.restates = false;
  if (!form.question.empty() && Chance(0.12, random)) {
    form.asks = Pick({"Question: ", "Q: ", "Tell me: ", "According to the text: ", "Please answer: ", "Now I ask: ",
                      "From what was said above: ", "Do you remember: "},
                     random);
  }
  if (!form.question.empty() && form.restates && Chance(0.12, random)) {
    form.answers = Pick({"Answer: ", "A: ", "The answer: ", "I remember: "}, random);
  }
  form.turned =
      form.restates && circumstance && !form.tail.empty() && form.kind != Kind::kNumber && Chance(0.3, random);
  return form;
}

RecallFact ClauseFact(const ClauseForm& form, const WordList& words, Random& random) {
  const auto draw = [&] {
    return std::map<char, std::string>{{'E', Entity(words, random)},
                                       {'P', Chance(0.8, random) ? words.Name(random) : Entity(words, random)},
                                       {'D', words.Word(random)}};
  };
  const std::string subject = Fill(form.subject, draw());
  std::map<char, std::string> around = draw();
  around.emplace('S', subject);
  const std::string tail = Fill(form.tail, around);
  const std::string value = Said(form.kind, words, random);
  const std::map<char, std::string> parts = {{'S', subject}, {'T', tail}};
  const std::string begin = Fill(form.begin, parts);
  RecallFact fact;
  fact.statement = form.lead.empty() ? Capital(begin) : form.lead + begin;
  fact.statement += fmt::format(" {}{}.", value, tail);
  if (!form.question.empty()) fact.question = form.asks + Fill(form.question, parts);
  if (form.restates) {
    if (!fact.question.empty()) fact.question += ' ' + form.answers;
    fact.question += form.turned ? Capital(tail.substr(1)) + " " + begin : Capital(begin);
  } else {
    fact.question += Pick({" Answer:", "\nA:", " The answer is", " It is"}, random);
  }
  fact.answer = " " + value;
  fact.end = form.restates && !form.turned ? fmt::format("{}.", tail) : ".";
  return fact;
}

}  // namespace cairn
