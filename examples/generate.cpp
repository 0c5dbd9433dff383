// Continues a text and says which blocks of it were read last: generate MODEL TEXT [TOKENS]
#include <cairn/cairn.hpp>
#include <cstdlib>
#include <iostream>

int main(int argc, char** argv) try {
  if (argc < 3) throw cairn::Error("call me with a model and a text");
  const auto model = cairn::api::Model::Load(argv[1]);
  cairn::api::Session session(model, {.reads = true});
  session.Append(argv[2]);

  cairn::api::GenerateOptions options;
  if (argc > 3) options.max_tokens = std::strtoul(argv[3], nullptr, 10);
  session.Generate(options, [](const cairn::api::Token& token) {
    std::cout << token.text << std::flush;
    return true;  // false ends it
  });
  std::cout << "\n";
  for (const auto& read : session.BlocksRead()) {
    std::cerr << "block " << read.block << ", weight " << read.weight << ": " << read.text << "\n";
  }
  return 0;
} catch (const cairn::Error& error) {
  std::cerr << "error: " << error.what() << "\n";
  return 1;
}
