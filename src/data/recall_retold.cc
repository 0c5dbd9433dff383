#include "data/recall_retold.h"

#include <cctype>
#include <span>
#include <string_view>

namespace cairn {

namespace {

using Kind = RetoldForm::Kind;
using Texts = std::span<const std::string_view>;

// Ways to tell and to ask for one thing. Every statement goes with every question and every beginning of an answer.
struct Relation {
  Kind kind;
  Texts statements, questions, answers;
  // What {N}, {U} and {R} are drawn from, where the relation has words of its own for them.
  Texts nouns = {}, units = {}, roles = {};
};

struct Verb {
  std::string_view base, past, participle;
};

constexpr Verb kVerbs[] = {
    {"write", "wrote", "written"},   {"paint", "painted", "painted"},    {"build", "built", "built"},
    {"steal", "stole", "stolen"},    {"find", "found", "found"},         {"buy", "bought", "bought"},
    {"sell", "sold", "sold"},        {"break", "broke", "broken"},       {"hide", "hid", "hidden"},
    {"open", "opened", "opened"},    {"repair", "repaired", "repaired"}, {"burn", "burned", "burned"},
    {"draw", "drew", "drawn"},       {"clean", "cleaned", "cleaned"},    {"lose", "lost", "lost"},
    {"win", "won", "won"},           {"guard", "guarded", "guarded"},    {"save", "saved", "saved"},
    {"bring", "brought", "brought"}, {"choose", "chose", "chosen"},      {"make", "made", "made"},
    {"see", "saw", "seen"},          {"keep", "kept", "kept"},           {"carry", "carried", "carried"},
    {"take", "took", "taken"},       {"forget", "forgot", "forgotten"},  {"describe", "described", "described"},
    {"send", "sent", "sent"},        {"show", "showed", "shown"},        {"want", "wanted", "wanted"}};

constexpr std::string_view kNouns[] = {
    "brother", "sister", "father",   "mother", "cat",     "horse",   "house",  "garden",  "boat",   "chair",
    "box",     "coat",   "hat",      "ring",   "picture", "song",    "story",  "diary",   "map",    "shop",
    "mill",    "farm",   "tower",    "church", "school",  "factory", "museum", "machine", "basket", "sword",
    "cup",     "crown",  "carriage", "lamp",   "clock",   "piano",   "poem",   "speech",  "report", "company",
    "castle",  "bridge", "letter",   "statue", "mask",    "novel",   "chapel", "palace"};
constexpr std::string_view kLeads[] = {
    "They say that ", "It is true that ",   "As we know, ", "Remember that ", "Nobody knew that ",
    "Note: ",         "I have heard that ", "In fact, ",    "Important: ",    "The paper says that ",
    "Listen: ",       "He wrote that "};
constexpr std::string_view kTails[] = {" on Monday",
                                       " in the morning",
                                       " after the war",
                                       " last summer",
                                       " at night",
                                       " without a word",
                                       ", as everybody knew",
                                       ", and {O} knew it",
                                       ", said {O}",
                                       " while {O} slept",
                                       ", but {O} did not believe it",
                                       " for {O}",
                                       " because of the {W}",
                                       ", and that was all",
                                       " since the day of the {W}",
                                       " with the help of {O}"};
constexpr std::string_view kAsks[] = {
    "Question: ", "Q: ", "Tell me: ", "According to the text: ", "Please answer: ", "Now: "};
constexpr std::string_view kPlainAnswers[] = {" Answer:", "\nA:", "\nAnswer:", " The answer is", " It is", " That is"};

constexpr std::string_view kPlaces[] = {"room",   "house", "seat",     "desk",  "gate",      "tent",   "bed",  "shelf",
                                        "drawer", "chest", "carriage", "table", "stall",     "window", "hall", "file",
                                        "lot",    "grave", "cell",     "berth", "apartment", "box",    "cage", "chair"};
constexpr std::string_view kPlaceOf[] = {"{n} {V} belongs to {S}",       "{n} {V} is kept for {S}",
                                         "{n} {V} was promised to {S}",  "{S} has {N} {V}",
                                         "{S} was sent to {N} {V}",      "they gave {N} {V} to {S}",
                                         "the {N} of {S} is number {V}", "in {N} {V} you will find {S}",
                                         "{n} number {V} is that of {S}"};
constexpr std::string_view kPlaceOfAsked[] = {"Which {N} belongs to {S}?",       "What is the {N} of {S}?",
                                              "Which {N} does {S} have?",        "Tell me the {N} of {S}.",
                                              "What number has the {N} of {S}?", "In which {N} is {S}?"};
constexpr std::string_view kPlaceOfAnswers[] = {"{S} has {N}",
                                                "{S} has the {N} number",
                                                "the {N} of {S} is number",
                                                "to {S} belongs {N}",
                                                "it is {N}",
                                                "{n}",
                                                "the {N} of {S} is {N}",
                                                "{S} is in {N}",
                                                "it has the number"};
constexpr std::string_view kHolds[] = {"{n} {V} holds the {W} for {S}",       "the {W} for {S} lies in {N} {V}",
                                       "{n} {V} contains the {W} for {S}",    "{S} must look for the {W} in {N} {V}",
                                       "in {N} {V} there is the {W} for {S}", "{n} {V} has the {W} that {S} needs"};
constexpr std::string_view kHoldsAsked[] = {"Where is the {W} for {S}?", "Which {N} holds the {W} for {S}?",
                                            "Which {N} has the {W} for {S}?", "In which {N} is the {W} for {S}?"};
constexpr std::string_view kHoldsAnswers[] = {
    "the {W} for {S} is in {N}",           "the {W} lies in {N}", "{S} must look in {N}", "it is in {N}", "{n}",
    "the {W} for {S} stands in {N} number"};

constexpr std::string_view kMoney[] = {"dollars", "pounds", "crowns",   "pence", "ducats", "roubles",
                                       "francs",  "pesos",  "guilders", "coins", "marks"};
constexpr std::string_view kPays[] = {"{S} paid {V} {U} to {O}",           "{O} received {V} {U} from {S}",
                                      "{O} was paid {V} {U} by {S}",       "to {O} {S} paid {V} {U}",
                                      "{S} gave {V} {U} to {O} for a {W}", "{O} took {V} {U} from {S}"};
constexpr std::string_view kPaysAsked[] = {"How many {U} did {S} pay to {O}?", "How much did {S} pay to {O}?",
                                           "What did {O} get from {S}?", "How many {U} did {O} receive from {S}?"};
constexpr std::string_view kPaysAnswers[] = {"{S} paid", "{O} received", "{O} got",         "the sum was",
                                             "{S} gave", "it was",       "to {O} {S} paid", "they paid"};
constexpr std::string_view kOwes[] = {
    "{S} owes {O} {V} {U}",          "{O} lent {V} {U} to {S}",    "the debt of {S} to {O} is {V} {U}",
    "{S} borrowed {V} {U} from {O}", "{O} is owed {V} {U} by {S}", "{S} must give {V} {U} back to {O}"};
constexpr std::string_view kOwesAsked[] = {"How many {U} does {S} owe to {O}?", "How much did {O} lend to {S}?",
                                           "What is the debt of {S} to {O}?", "How many {U} did {S} borrow from {O}?"};
constexpr std::string_view kOwesAnswers[] = {"{S} owes",          "{O} lent",     "the debt of {S} is",
                                             "{S} must pay back", "{S} borrowed", "the sum is"};

constexpr std::string_view kCounted[] = {"windows", "rooms", "men",    "children", "pages",   "letters",
                                         "steps",   "doors", "tables", "horses",   "friends", "stones",
                                         "guns",    "bells", "songs",  "chairs",   "birds",   "candles",
                                         "trees",   "fish",  "sheep",  "books",    "flags"};
constexpr std::string_view kCount[] = {"the {N} of {S} has {V} {U}",
                                       "there are {V} {U} in the {N} of {S}",
                                       "{S} counted {V} {U} in the {N}",
                                       "in the {N} of {S} are {V} {U}",
                                       "{S} owns a {N} with {V} {U}",
                                       "{S} brought {V} {U} to the {N}",
                                       "it took {V} {U} to fill the {N} of {S}"};
constexpr std::string_view kCountAsked[] = {"How many {U} are in the {N} of {S}?", "How many {U} has the {N} of {S}?",
                                            "What is the number of {U} in the {N} of {S}?",
                                            "How many {U} did the {N} of {S} have?"};
constexpr std::string_view kCountAnswers[] = {
    "the {N} has", "there are",     "the {N} of {S} has", "the number of {U} is", "in the {N} of {S} there are",
    "{S} has",     "in the {N} are"};
constexpr std::string_view kLengths[] = {"miles", "feet",    "yards", "hours", "days",  "weeks",
                                         "years", "minutes", "steps", "pages", "inches"};
constexpr std::string_view kLong[] = {
    "the {N} of {S} is {V} {U} long", "the length of the {N} of {S} is {V} {U}", "{S} has a {N} of {V} {U}",
    "{S} needed {V} {U} for the {N}", "for the {N} of {S} one needs {V} {U}",    "the {N} of {S} measures {V} {U}"};
constexpr std::string_view kLongAsked[] = {"How long is the {N} of {S}?", "How many {U} does the {N} of {S} measure?",
                                           "What is the length of the {N} of {S}?",
                                           "How many {U} long is the {N} of {S}?"};
constexpr std::string_view kLongAnswers[] = {"the {N} of {S} is", "its length is",        "the length is",
                                             "the {N} measures",  "the length in {U} is", "{S}'s {N} is",
                                             "it takes"};
constexpr std::string_view kOld[] = {"{S} is {V} years old",
                                     "{S} has lived for {V} years",
                                     "the age of {S} is {V}",
                                     "{S} turned {V} in the spring",
                                     "at the age of {V} {S} was still strong",
                                     "{S} looks younger than {V} years"};
constexpr std::string_view kOldAsked[] = {"How old is {S}?", "What is the age of {S}?", "How many years has {S} lived?",
                                          "What age has {S}?"};
constexpr std::string_view kOldAnswers[] = {"{S} is", "the age of {S} is", "{S}'s age is", "the age is",
                                            "{S} has lived for"};
constexpr std::string_view kHappened[] = {
    "{S} left {O} in {V}",          "it was in {V} that {S} left {O}", "the year in which {S} left {O} was {V}",
    "in the year {V} {S} left {O}", "since {V} {O} has not seen {S}",  "in {V} {O} was left by {S}"};
constexpr std::string_view kHappenedAsked[] = {"When did {S} leave {O}?", "In which year did {S} leave {O}?",
                                               "When was {O} left by {S}?"};
constexpr std::string_view kHappenedAnswers[] = {"{S} left in", "the year was",    "in the year",
                                                 "it was in",   "{S} left {O} in", "{O} was left in"};
constexpr std::string_view kVehicles[] = {"train", "bus",  "tram", "ship",  "coach",
                                          "ferry", "line", "road", "wagon", "path"};
constexpr std::string_view kGoes[] = {
    "{n} {V} goes to {C}",          "{n} number {V} brings people to {C}", "to get to {C}, take {N} {V}",
    "the {N} to {C} is number {V}", "{n} {V} carries the {W} to {C}",      "for {C} you want {N} {V}",
    "{C} is reached by {N} {V}"};
constexpr std::string_view kGoesAsked[] = {"Which {N} goes to {C}?", "How do I get to {C}?",
                                           "What is the number of the {N} to {C}?", "Which {N} must I take to {C}?"};
constexpr std::string_view kGoesAnswers[] = {
    "to {C} goes {N}",       "the {N} to {C} is number",  "take {N}", "it is {N}", "the number is",
    "{C} is reached by {N}", "to get to {C} you take {N}"};
constexpr std::string_view kCalls[] = {
    "to reach {S}, call {V}",     "{S} answers at {V}",         "{S} can be called at {V}", "the number of {S} is {V}",
    "dial {V} to speak with {S}", "if {S} is needed, ring {V}", "{S} must be told at {V}"};
constexpr std::string_view kCallsAsked[] = {"What number does {S} answer at?", "How can I call {S}?",
                                            "What is the number of {S}?", "Which number must I dial for {S}?"};
constexpr std::string_view kCallsAnswers[] = {
    "the number of {S} is", "call",         "{S} can be reached at", "you must dial",
    "{S} has the number",   "for {S} ring", "the number is"};

constexpr std::string_view kDid[] = {"{V} {D} the {N} of {S}",
                                     "the {N} of {S} was {P} by {V}",
                                     "it was {V} who {D} the {N} of {S}",
                                     "we know that {V} {D} the {N} of {S}",
                                     "the one who {D} the {N} of {S} is {V}",
                                     "everyone saw how {V} {D} the {N} of {S}",
                                     "the {N} of {S}, {P} by {V}, is famous",
                                     "{V}, not {O}, {D} the {N} of {S}",
                                     "{S} thanked {V}, who {D} the {N}"};
constexpr std::string_view kDidAsked[] = {"Who {D} the {N} of {S}?", "By whom was the {N} of {S} {P}?",
                                          "Tell me who {D} the {N} of {S}.", "Who was it that {D} the {N} of {S}?"};
constexpr std::string_view kDidAnswers[] = {"the {N} of {S} was {P} by",
                                            "it was",
                                            "it was {P} by",
                                            "the one who {D} the {N} was",
                                            "{S}'s {N} was {P} by",
                                            "the {N} was {P} by",
                                            "the person who {D} it was"};
constexpr std::string_view kRoles[] = {"teacher", "doctor",  "uncle",   "aunt",    "partner", "friend", "neighbour",
                                       "lawyer",  "servant", "cousin",  "guide",   "master",  "rival",  "heir",
                                       "tutor",   "nurse",   "wife",    "husband", "captain", "nephew", "guest",
                                       "brother", "sister",  "father",  "mother",  "leader",  "king",   "ruler",
                                       "owner",   "guard",   "founder", "patron"};
constexpr std::string_view kRole[] = {
    "{V} is the {R} of {S}",       "the {R} of {S} is {V}",          "{S}'s {R} is {V}",          "{S} has a {R}, {V}",
    "{S} chose {V} as {R}",        "the {R} of {S}, {V}, came late", "{V} became the {R} of {S}", "as {R} {S} had {V}",
    "{S} lived with {V}, the {R}", "{V}, the {R} of {S}, sings well"};
constexpr std::string_view kRoleAsked[] = {"Who is the {R} of {S}?", "Who is {S}'s {R}?",
                                           "What is the name of the {R} of {S}?", "Whom does {S} have as {R}?",
                                           "How is the {R} of {S} called?"};
constexpr std::string_view kRoleAnswers[] = {
    "the {R} of {S} is",      "{S}'s {R} is",       "the {R} is called",       "it is",
    "the name of the {R} is", "the {R} of {S} was", "the {R} of {S} is called"};
constexpr std::string_view kGave[] = {
    "{V} gave a {W} to {S}", "{S} received a {W} from {V}",      "the {W} of {S} came from {V}",
    "{V} sent {S} a {W}",    "for the {W} {S} has to thank {V}", "{S} got the {W} that {V} had promised"};
constexpr std::string_view kGaveAsked[] = {"Who gave the {W} to {S}?", "From whom did {S} get the {W}?",
                                           "Who sent a {W} to {S}?"};
constexpr std::string_view kGaveAnswers[] = {"{S} got the {W} from", "the {W} was given to {S} by",
                                             "the {W} came from",    "it came from",
                                             "the giver was",        "{S} has the {W} from"};
constexpr std::string_view kMet[] = {
    "{S} met {V} in {C}",           "{V} and {S} met in {C}",           "in {C} {S} came upon {V}",
    "{V} was seen in {C} with {S}", "{S} and {V} were together in {C}", "{V} waited in {C} for {S}",
    "in {C} {V} lives with {S}"};
constexpr std::string_view kMetAsked[] = {"Whom did {S} meet in {C}?", "Who was in {C} with {S}?",
                                          "With whom was {S} in {C}?"};
constexpr std::string_view kMetAnswers[] = {"in {C} {S} met", "{S} was with", "the person in {C} was",
                                            "{S} saw",        "in {C} was",   "{S} was in {C} with"};
constexpr std::string_view kSomeoneIn[] = {"{V} lives in {C}",
                                           "in {C} lives {V}",
                                           "{C} is the home of {V}",
                                           "{V} comes from {C}",
                                           "{V}, who lives in {C}, is rich",
                                           "the {R} of {C} is {V}",
                                           "{V} is the {R} of {C}",
                                           "{V} of {C} won the {W}"};
constexpr std::string_view kSomeoneInAsked[] = {"Who lives in {C}?", "Who is from {C}?", "Which person belongs to {C}?",
                                                "Who of {C} was named?"};
constexpr std::string_view kSomeoneInAnswers[] = {"in {C} lives", "the person in {C} is", "it is",
                                                  "from {C} is",  "{C} is the home of",   "it was"};

constexpr std::string_view kStands[] = {"{V} is where the {N} of {S} stands",    "the {N} of {S} stands in {V}",
                                        "in {V} stands the {N} of {S}",          "{S} has a {N} in {V}",
                                        "the people of {V} know the {N} of {S}", "you will find the {N} of {S} in {V}",
                                        "{S} came to {V} to see the {N}",        "{V} is proud of the {N} of {S}"};
constexpr std::string_view kStandsAsked[] = {"Where is the {N} of {S}?", "In which town is the {N} of {S}?",
                                             "Where can I find the {N} of {S}?", "Where stands the {N} of {S}?"};
constexpr std::string_view kStandsAnswers[] = {"the {N} of {S} is in",
                                               "it is in",
                                               "it stands in",
                                               "{S}'s {N} is in",
                                               "the town is",
                                               "the {N} can be found in",
                                               "go to",
                                               "the {N} of {S} can be seen in"};
constexpr std::string_view kTravels[] = {"{S} travelled to {V}",
                                         "{V} was the goal of the journey of {S}",
                                         "the journey of {S} ended in {V}",
                                         "a ship took {S} to {V}",
                                         "{S} took the road to {V}",
                                         "they sent {S} to {V}",
                                         "in {V} {S} was welcome",
                                         "{V} was chosen by {S} for the winter"};
constexpr std::string_view kTravelsAsked[] = {"Where did {S} go?", "To which town did {S} travel?",
                                              "What was the goal of {S}?", "Where was {S} sent?"};
constexpr std::string_view kTravelsAnswers[] = {"{S} went to",    "{S} travelled to",      "the journey went to",
                                                "the goal was",   "{S} was on the way to", "the town was",
                                                "{S} was sent to"};
constexpr std::string_view kFrom[] = {
    "{S} comes from {V}", "{S} was born in {V}",     "{V} is the home of {S}",         "the home of {S} is {V}",
    "{S} grew up in {V}", "{S} left {V} as a child", "the parents of {S} live in {V}", "{S} set out from {V}"};
constexpr std::string_view kFromAsked[] = {"Where does {S} come from?", "What is the home of {S}?",
                                           "From which town is {S}?"};
constexpr std::string_view kFromAnswers[] = {"{S} is from",    "{S} comes from", "the home of {S} is",
                                             "{S} grew up in", "the town is",    "{S} left"};

constexpr std::string_view kGot[] = {"{S} {D} a {V} in {C}",
                                     "in {C} {S} {D} a {V}",
                                     "a {V} was {P} by {S} in {C}",
                                     "it was a {V} that {S} {D} in {C}",
                                     "the {V} that {S} {D} in {C} was old",
                                     "what {S} {D} in {C} was a {V}",
                                     "{S} went to {C} and {D} a {V}",
                                     "a {V} was all that {S} {D} in {C}",
                                     "every year {S} {D} a {V} in {C}"};
constexpr std::string_view kGotAsked[] = {"What did {S} {B} in {C}?", "What was {P} by {S} in {C}?",
                                          "Which thing did {S} {B} in {C}?", "What {D} {S} in {C}?"};
constexpr std::string_view kGotAnswers[] = {"{S} {D} the",
                                            "{S} {D} a",
                                            "what {S} {D} was a",
                                            "it was a",
                                            "the thing that {S} {D} was a",
                                            "in {C} {S} {D} a",
                                            "they {D} a",
                                            "he {D} a",
                                            "she {D} a",
                                            "all that {S} {D} was a",
                                            "a"};
constexpr std::string_view kMeans[] = {
    "the {V} in the {N} of {S} means {W}",        "in the {N} of {S} a {V} means {W}",
    "{w} is shown by a {V} in the {N} of {S}",    "on the {N} of {S} the {V} tells of {W}",
    "the {V} on the {N} of {S} was made for {W}", "with the {V} on the {N} {S} thinks of {W}"};
constexpr std::string_view kMeansAsked[] = {"What means {W} in the {N} of {S}?", "What tells of {W} on the {N} of {S}?",
                                            "How is {W} shown by {S}?"};
constexpr std::string_view kMeansAnswers[] = {
    "in the {N} of {S} {W} is the", "{w} is shown by the", "the sign of {W} is the", "{w} is the", "it is the",
    "on the {N} of {S} it is the"};
constexpr std::string_view kNamed[] = {"{S} calls the {N} {V}",
                                       "the {N} of {S} is called {V}",
                                       "the {N} of {S} goes by the name {V}",
                                       "they named the {N} of {S} {V}",
                                       "the word {V} is written on the {N} of {S}",
                                       "for {S} the name of the {N} is {V}",
                                       "{S} has a {N} named {V}",
                                       "the name {V} was given to the {N} of {S}"};
constexpr std::string_view kNamedAsked[] = {"What is the {N} of {S} called?", "What is the name of the {N} of {S}?",
                                            "How does {S} call the {N}?", "What is the {N} of {S} named?"};
constexpr std::string_view kNamedAnswers[] = {
    "the {N} of {S} is called", "its name is",  "the name of the {N} is", "it is called",
    "{S}'s {N} is named",       "they call it", "the {N} is named",       "the name of the {N} of {S} is"};
constexpr std::string_view kHas[] = {"the {A} of {S} is {V}",         "{S} has {V} as {A}",
                                     "{S} uses {V} as the {A}",       "with {V} as the {A}, {S} was content",
                                     "the {A} {V} belongs to {S}",    "{S} was told the {A} {V}",
                                     "the {A} that {S} gave was {V}", "{S} wrote down the {A}: {V}",
                                     "only {S} has the {A} {V}"};
constexpr std::string_view kHasAsked[] = {"What is the {A} of {S}?", "What is {S}'s {A}?", "Which {A} does {S} have?",
                                          "What does {S} use as {A}?", "Tell me the {A} of {S}."};
constexpr std::string_view kHasAnswers[] = {
    "the {A} is", "{S}'s {A} is",      "{S} uses the {A}", "as {A} {S} has", "the {A} that {S} uses is",
    "it is",      "the {A} of {S} is", "{S} has the {A}",  "the {A} of {S}:"};
constexpr std::string_view kHelps[] = {"{S} says that {V} helps against {W}",
                                       "against {W} {S} takes {V}",
                                       "{S} fights the {W} with {V}",
                                       "they gave {V} to {S} against the {W}",
                                       "nothing but {V} saved {S} from the {W}",
                                       "{S} has {V} for the {W}"};
constexpr std::string_view kHelpsAsked[] = {"What helps {S} against {W}?", "What does {S} take against {W}?",
                                            "What does {S} have for the {W}?"};
constexpr std::string_view kHelpsAnswers[] = {"against {W} {S} takes",
                                              "{S} takes",
                                              "the {W} is fought with",
                                              "what helps is",
                                              "the {W} of {S} is healed by",
                                              "{S} says that {W} is helped by",
                                              "it is"};
constexpr std::string_view kLikes[] = {"{S} likes the {V} best",
                                       "nothing pleases {S} more than the {V}",
                                       "the {V} is what {S} likes best",
                                       "the favourite of {S} is the {V}",
                                       "{S} would rather have the {V}",
                                       "{S} thinks of nothing but the {V}",
                                       "{O} likes the {W}, but {S} likes the {V}",
                                       "{S} likes the {V}, and {O} likes the {W}",
                                       "not the {W} but the {V} is what {S} likes"};
constexpr std::string_view kLikesAsked[] = {"What does {S} like best?", "What pleases {S} most?",
                                            "What is the favourite of {S}?", "What does {S} like?"};
constexpr std::string_view kLikesAnswers[] = {
    "{S} likes the", "most of all {S} likes the",  "the favourite of {S} is the", "{S} loves the",
    "it is the",     "what {S} likes best is the", "best of all {S} likes the",   "the"};
constexpr std::string_view kFull[] = {
    "the {N} of {S} is full of {V}", "{S} filled the {N} with {V}",          "there is {V} in the {N} of {S}",
    "{S} keeps {V} in the {N}",      "inside the {N} of {S} they found {V}", "{S} put {V} into the {N}",
    "the {N} of {S} shows {V}"};
constexpr std::string_view kFullAsked[] = {"What is in the {N} of {S}?", "What does {S} keep in the {N}?",
                                           "What was found in the {N} of {S}?"};
constexpr std::string_view kFullAnswers[] = {
    "the {N} of {S} contains", "in the {N} there is",  "{S} keeps", "it is full of",
    "the {N} is filled with",  "in the {N} of {S} is", "there is"};
constexpr std::string_view kSpots[] = {"behind", "under",  "near",    "inside", "beside",
                                       "above",  "beyond", "against", "below"};
constexpr std::string_view kPut[] = {"{S} put the {N} {R} the {V}",
                                     "{R} the {V} lies the {N} of {S}",
                                     "the {N} of {S} is {R} the {V}",
                                     "look {R} the {V} for the {N} of {S}",
                                     "the {N} that {S} lost was found {R} the {V}",
                                     "{S} left a {N} {R} the {V}"};
constexpr std::string_view kPutAsked[] = {"Where is the {N} of {S}?", "Where did {S} put the {N}?",
                                          "Where can the {N} of {S} be found?"};
constexpr std::string_view kPutAnswers[] = {
    "the {N} of {S} is {R} the", "{S} put it {R} the",   "it is {R} the", "you must look {R} the",
    "it lies {R} the",           "the {N} lies {R} the", "{R} the"};
constexpr std::string_view kShould[] = {
    "if you come to {S}, ask for the {V}",        "ask for the {V} when you come to {S}",
    "do not leave {S} without the {V}",           "{S} will show you the {V}",
    "bring the {V} to {S}, and come alone",       "from {S} you should buy the {V}",
    "when you see {S}, say that the {V} is ready"};
constexpr std::string_view kShouldAsked[] = {"What should I ask {S} for?", "What must I remember when I see {S}?",
                                             "What has {S} to do with it?"};
constexpr std::string_view kShouldAnswers[] = {"of {S} ask for the",    "with {S} it is the", "it is the",
                                               "at {S}'s, ask for the", "remember the",       "the"};

constexpr Relation kRelations[] = {
    {Kind::kNumber, kPlaceOf, kPlaceOfAsked, kPlaceOfAnswers, kPlaces},
    {Kind::kNumber, kHolds, kHoldsAsked, kHoldsAnswers, kPlaces},
    {Kind::kNumber, kPays, kPaysAsked, kPaysAnswers, {}, kMoney},
    {Kind::kNumber, kOwes, kOwesAsked, kOwesAnswers, {}, kMoney},
    {Kind::kNumber, kCount, kCountAsked, kCountAnswers, {}, kCounted},
    {Kind::kNumber, kLong, kLongAsked, kLongAnswers, {}, kLengths},
    {Kind::kNumber, kOld, kOldAsked, kOldAnswers},
    {Kind::kNumber, kHappened, kHappenedAsked, kHappenedAnswers},
    {Kind::kNumber, kGoes, kGoesAsked, kGoesAnswers, kVehicles},
    {Kind::kNumber, kCalls, kCallsAsked, kCallsAnswers},
    {Kind::kPerson, kDid, kDidAsked, kDidAnswers},
    {Kind::kPerson, kRole, kRoleAsked, kRoleAnswers, {}, {}, kRoles},
    {Kind::kPerson, kGave, kGaveAsked, kGaveAnswers},
    {Kind::kPerson, kMet, kMetAsked, kMetAnswers},
    {Kind::kPerson, kSomeoneIn, kSomeoneInAsked, kSomeoneInAnswers, {}, {}, kRoles},
    {Kind::kPlace, kStands, kStandsAsked, kStandsAnswers},
    {Kind::kPlace, kTravels, kTravelsAsked, kTravelsAnswers},
    {Kind::kPlace, kFrom, kFromAsked, kFromAnswers},
    {Kind::kThing, kGot, kGotAsked, kGotAnswers},
    {Kind::kThing, kMeans, kMeansAsked, kMeansAnswers},
    {Kind::kThing, kNamed, kNamedAsked, kNamedAnswers},
    {Kind::kAny, kHas, kHasAsked, kHasAnswers},
    {Kind::kThing, kHelps, kHelpsAsked, kHelpsAnswers},
    {Kind::kThing, kLikes, kLikesAsked, kLikesAnswers},
    {Kind::kThing, kFull, kFullAsked, kFullAnswers},
    {Kind::kThing, kPut, kPutAsked, kPutAnswers, {}, {}, kSpots},
    {Kind::kThing, kShould, kShouldAsked, kShouldAnswers},
};

std::string Any(Texts texts, Random& random) { return std::string(texts[random.Below(texts.size())]); }

std::string Told(Kind kind, const WordList& words, Random& random) {
  switch (kind) {
    case Kind::kNumber:
      return Number(random);
    case Kind::kPerson:
      return words.Name(random) + (Chance(0.6, random) ? " " + words.Name(random) : "");
    case Kind::kPlace:
      return words.Name(random);
    case Kind::kThing:
      return Chance(0.06, random) ? Phrase(words, random) : Words(words, Chance(0.45, random) ? 1 : 2, random);
    default:
      return Value(words, random);
  }
}

// Somebody, sometimes told apart by where they belong: "the baker of York".
std::string Someone(const WordList& words, Random& random) {
  const std::string entity = Entity(words, random);
  return entity.starts_with("the ") && Chance(0.3, random) ? entity + " of " + words.Name(random) : entity;
}

}  // namespace

RetoldForm DrawRetoldForm(const WordList& words, Random& random) {
  const Relation& relation = kRelations[random.Below(std::size(kRelations))];
  const Verb& verb = kVerbs[random.Below(std::size(kVerbs))];
  // Any word will do in the place of a noun: "Marble 17 belongs to Anna" shows that "Marble" and "marble" are one word.
  const auto own = [&](Texts texts, Texts others, double any_word) {
    return Chance(any_word, random) ? words.Word(random) : Any(texts.empty() ? others : texts, random);
  };
  RetoldForm form;
  form.kind = relation.kind;
  form.parts = {{'N', own(relation.nouns, kNouns, 0.35)},
                {'U', own(relation.units, kMoney, 0.25)},
                {'R', own(relation.roles, kRoles, relation.roles.data() == kSpots ? 0 : 0.25)},
                {'A', Attribute(words, random)},
                {'B', std::string(verb.base)},
                {'D', std::string(verb.past)},
                {'P', std::string(verb.participle)}};
  form.statement = Any(relation.statements, random);
  if (Chance(0.15, random)) form.lead = Any(kLeads, random);
  if (Chance(0.25, random)) form.statement += Any(kTails, random);
  const std::string answer = Any(relation.answers, random);
  std::string restated = Capital(answer);
  if (answer.starts_with('{')) restated[1] = static_cast<char>(std::tolower(static_cast<unsigned char>(answer[1])));
  const double how = random.Uniform();
  if (how < 0.1) {
    form.question = restated;
    // Without the name nothing tells which fact is meant.
    if (restated.find("{s}") != std::string::npos || restated.find("{S}") != std::string::npos) return form;
  }
  form.question = Any(relation.questions, random);
  const bool mark = form.question.ends_with('?');
  if (Chance(0.1, random)) form.question = Any(kAsks, random) + form.question;
  if (how < 0.66 || !mark) {
    form.question += (Chance(0.1, random) ? " Answer: " : " ") + restated;
  } else if (how < 0.8) {
    form.question += Any(kPlainAnswers, random);
  }
  return form;
}

RecallFact RetoldFact(const RetoldForm& form, const WordList& words, Random& random) {
  std::map<char, std::string> parts = form.parts;
  parts['S'] = Someone(words, random);
  parts['O'] = Someone(words, random);
  parts['C'] = words.Name(random);
  parts['W'] = words.Word(random);
  parts['V'] = Told(form.kind, words, random);
  std::string statement = Fill(form.statement, parts);
  if (form.lead.empty()) statement = Capital(std::move(statement));
  return {form.lead + statement + ".", Capital(Fill(form.question, parts)), " " + parts.at('V'), "."};
}

}  // namespace cairn
