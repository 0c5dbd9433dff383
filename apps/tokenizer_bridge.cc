#include "apps/tokenizer_bridge.h"

namespace cairn {

std::vector<std::pair<std::string, std::string>> TokenizerFilesFor(const GgufVocabulary&) { return {}; }

std::optional<GgufVocabulary> VocabularyFrom(const std::filesystem::path&) { return std::nullopt; }

}  // namespace cairn
