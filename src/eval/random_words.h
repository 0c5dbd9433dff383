// Lists of words that hidden facts are made of.
#pragma once

#include <string>

#include "base/random.h"

namespace cairn {

// Fills "{person}", "{trade}", "{city}", "{word}", "{adjective}" and "{number}" (1 .. 50000) in: each name is drawn
// once from `random` and then used everywhere in all of `texts`. "{word}" and "{word2}" are drawn apart, and so on.
void FillPlaceholders(Random& random, std::initializer_list<std::string*> texts);

// Full names of people: "Clara Webster".
std::string RandomPerson(Random& random);
// "torpid-kid"; rarely with three parts, so that they do not run out.
std::string RandomLineName(Random& random);
// 32 hexadecimal digits in the form of a UUID of version 4.
std::string RandomUuid(Random& random);

}  // namespace cairn
