#include "attention/granularity.h"

namespace cairn {

std::string_view NameOf(Granularity granularity) {
  constexpr std::string_view kNames[] = {"head-and-token", "head", "token"};
  return kNames[static_cast<size_t>(granularity)];
}

std::optional<Granularity> GranularityNamed(std::string_view name) {
  if (name == "head_and_token") return Granularity::kHeadAndToken;
  for (const auto granularity : {Granularity::kHeadAndToken, Granularity::kHead, Granularity::kToken}) {
    if (NameOf(granularity) == name) return granularity;
  }
  return std::nullopt;
}

}  // namespace cairn
