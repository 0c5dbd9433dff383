// Checks that includes follow docs/architecture.md: the page's table is read, and every C++ file is held against it.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "io/file.h"

namespace cairn {
namespace {

// A row of the page's table.
struct Room {
  std::string folder;           // "src/io"
  std::string name;             // "io": how other rows and include paths call it
  std::set<std::string> below;  // names that it may include
};

struct Architecture {
  std::vector<Room> rooms;            // in the page's order, low to high
  std::vector<std::string> problems;  // of the page itself

  const Room* Find(const std::string& name) const {
    const auto found = std::find_if(rooms.begin(), rooms.end(), [&](const Room& room) { return room.name == name; });
    return found == rooms.end() ? nullptr : &*found;
  }
};

struct SourceFile {
  std::string path;  // from the root: "src/io/file.cc"
  std::string text;
};

std::string Trim(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r`");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r`") - begin + 1);
}

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(Trim(part));
  return parts;
}

// Reads the table whose header is "room | purpose | may include". A row may name only rows above it, so a page without
// problems has no circles.
Architecture ParsePage(const std::string& page) {
  Architecture result;
  bool in_table = false;
  for (const std::string& line : Split(page, '\n')) {
    if (line.empty() || line[0] != '|') {
      in_table = false;
      continue;
    }
    const auto cells = Split(line, '|');  // the first is empty
    if (cells.size() >= 4 && cells[1] == "room" && cells[3] == "may include") {
      in_table = true;
      continue;
    }
    if (!in_table || line.find_first_not_of("|-: ") == std::string::npos) continue;
    if (cells.size() < 4 || cells[1].empty() || cells[2].empty()) {
      result.problems.push_back("a row lacks its room or purpose: " + line);
      continue;
    }
    Room room{cells[1], std::filesystem::path(cells[1]).filename().string(), {}};
    for (const std::string& other : Split(cells[3], ',')) {
      if (other.empty()) continue;
      if (result.Find(other) == nullptr) {
        result.problems.push_back(room.folder + " may include '" + other + "', which is no room above it");
      }
      room.below.insert(other);
    }
    if (result.Find(room.name) != nullptr) result.problems.push_back(room.folder + " is listed twice");
    result.rooms.push_back(std::move(room));
  }
  if (result.rooms.empty()) result.problems.push_back("the page has no table of rooms");
  return result;
}

// "src/io/file.cc" is in io, "apps/main.cc" in apps. Nothing for a file that is in no folder of the page.
std::optional<std::string> RoomOf(const Architecture& architecture, const std::string& path) {
  for (const Room& room : architecture.rooms) {
    if (path.rfind(room.folder + "/", 0) == 0) return room.name;
  }
  return std::nullopt;
}

// Included paths of a file, line by line. Angle brackets count when they name a room.
std::vector<std::string> IncludesOf(const Architecture& architecture, const std::string& text) {
  static const std::regex pattern(R"(^\s*#\s*include\s*([<"])([^">]+)[">].*)");
  std::vector<std::string> includes;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    std::smatch match;
    if (!std::regex_match(line, match, pattern)) continue;
    const std::string target = match[2];
    const bool room = target.find('/') != std::string::npos && architecture.Find(target.substr(0, target.find('/')));
    if (match[1] == "\"" || room) includes.push_back(target);
  }
  return includes;
}

// The path from the root that an include names: a bare name stands beside its includer, a room of src/ loses "src/".
std::string Resolve(const Architecture& architecture, const SourceFile& from, const std::string& target) {
  const size_t slash = target.find('/');
  if (slash == std::string::npos) return (std::filesystem::path(from.path).parent_path() / target).string();
  const Room* room = architecture.Find(target.substr(0, slash));
  return room == nullptr ? target : room->folder + target.substr(slash);
}

// One line for each circle of headers: "a.h -> b.h -> a.h".
std::vector<std::string> FindCircles(const std::map<std::string, std::vector<std::string>>& includes) {
  std::vector<std::string> problems;
  std::set<std::string> done;
  std::vector<std::string> way;
  const std::function<void(const std::string&)> visit = [&](const std::string& path) {
    if (const auto at = std::find(way.begin(), way.end(), path); at != way.end()) {
      std::string circle;
      for (auto i = at; i != way.end(); ++i) circle += *i + " -> ";
      problems.push_back("headers include each other in a circle: " + circle + path);
      return;
    }
    if (done.count(path) != 0) return;
    way.push_back(path);
    if (const auto found = includes.find(path); found != includes.end()) {
      for (const std::string& next : found->second) visit(next);
    }
    way.pop_back();
    done.insert(path);
  };
  for (const auto& [path, unused] : includes) visit(path);
  return problems;
}

// Everything in which `files` disagree with the page.
std::vector<std::string> CheckFiles(const Architecture& architecture, const std::vector<SourceFile>& files) {
  std::vector<std::string> problems;
  std::map<std::string, std::vector<std::string>> includes;
  for (const SourceFile& file : files) {
    const auto name = RoomOf(architecture, file.path);
    if (!name) {
      problems.push_back(file.path + " is in no room of docs/architecture.md");
      continue;
    }
    const Room& room = *architecture.Find(*name);
    for (const std::string& target : IncludesOf(architecture, file.text)) {
      if (target.find("..") != std::string::npos) {
        problems.push_back(file.path + " includes \"" + target + "\"; write the path from the root or from src");
        continue;
      }
      const std::string path = Resolve(architecture, file, target);
      includes[file.path].push_back(path);
      const auto other = RoomOf(architecture, path);
      if (!other) {
        problems.push_back(file.path + " includes \"" + target + "\", which is in no room of docs/architecture.md");
      } else if (*other != room.name && room.below.count(*other) == 0) {
        problems.push_back(file.path + " includes \"" + target + "\", but " + room.folder + " may not include " +
                           *other);
      }
    }
  }
  const auto circles = FindCircles(includes);
  problems.insert(problems.end(), circles.begin(), circles.end());
  return problems;
}

// Every C and C++ file of the project, but not of its builds and hidden folders.
std::vector<SourceFile> ReadTree(const std::filesystem::path& root) {
  std::vector<SourceFile> files;
  for (auto it = std::filesystem::recursive_directory_iterator(root); it != std::filesystem::end(it); ++it) {
    const std::string name = it->path().filename().string();
    if (it->is_directory()) {
      if (name[0] == '.' || (it.depth() == 0 && name.rfind("build", 0) == 0)) it.disable_recursion_pending();
      continue;
    }
    const std::string extension = it->path().extension().string();
    static const std::set<std::string> kSources = {".c", ".cc", ".cpp", ".h", ".hpp"};
    if (kSources.count(extension) == 0) continue;
    files.push_back({it->path().lexically_relative(root).string(), ReadTextFile(it->path())});
  }
  return files;
}

std::string Lines(const std::vector<std::string>& problems) {
  std::string text;
  for (const std::string& problem : problems) text += "  " + problem + "\n";
  return text;
}

TEST(Architecture, TreeFollowsThePage) {
  const std::filesystem::path root = CAIRN_SOURCE_DIR;
  const Architecture architecture = ParsePage(ReadTextFile(root / "docs/architecture.md"));
  EXPECT_TRUE(architecture.problems.empty()) << Lines(architecture.problems);
  const auto files = ReadTree(root);
  EXPECT_GT(files.size(), 20u);
  const auto problems = CheckFiles(architecture, files);
  EXPECT_TRUE(problems.empty()) << Lines(problems);
}

// Whoever includes a public header needs no other package.
TEST(Architecture, PublicHeadersIncludeTheStandardLibraryAlone) {
  const std::regex include(R"(#\s*include\s*[<"]([^>"]+)[>"])");
  const std::regex allowed(R"([a-z_]+|stddef\.h|stdint\.h|cairn/[a-z]+\.h(pp)?)");
  size_t count = 0;
  for (const SourceFile& file : ReadTree(CAIRN_SOURCE_DIR)) {
    if (file.path.rfind("include/", 0) != 0) continue;
    for (std::sregex_iterator it(file.text.begin(), file.text.end(), include), end; it != end; ++it, ++count) {
      EXPECT_TRUE(std::regex_match((*it)[1].str(), allowed)) << file.path << " includes " << (*it)[1];
    }
  }
  EXPECT_GT(count, 5u);
}

// The checker itself, on an invented house.
constexpr char kPage[] =
    "# Page\n"
    "| other | table | here |\n|---|---|---|\n| `src/not` | a room | x |\n\n"
    "| room | purpose | may include |\n"
    "|---|---|---|\n"
    "| `src/low` | the floor | |\n"
    "| `src/mid` | the middle | low |\n"
    "| `src/empty` | has no files | low, mid |\n"
    "| `apps` | the roof | low, mid |\n"
    "\nEnd.\n";

std::vector<std::string> Check(const std::vector<SourceFile>& files) {
  const Architecture architecture = ParsePage(kPage);
  EXPECT_TRUE(architecture.problems.empty()) << Lines(architecture.problems);
  return CheckFiles(architecture, files);
}

void ExpectProblem(const std::vector<std::string>& problems, const std::string& part) {
  ASSERT_EQ(problems.size(), 1u) << Lines(problems);
  EXPECT_NE(problems[0].find(part), std::string::npos) << problems[0];
}

TEST(ArchitectureChecker, ReadsTheTable) {
  const Architecture architecture = ParsePage(kPage);
  ASSERT_EQ(architecture.rooms.size(), 4u);
  EXPECT_EQ(architecture.rooms[1].folder, "src/mid");
  EXPECT_EQ(architecture.rooms[1].name, "mid");
  EXPECT_EQ(architecture.rooms[1].below, std::set<std::string>{"low"});
  EXPECT_TRUE(architecture.rooms[0].below.empty());
  EXPECT_EQ(architecture.Find("not"), nullptr);
}

TEST(ArchitectureChecker, AcceptsWhatThePageAllows) {
  EXPECT_TRUE(Check({{"src/low/a.h", "#include <vector>\n#include \"low/b.h\"\n"},
                     {"src/low/b.h", "// #include \"mid/c.h\"\n"},
                     {"src/mid/deep/c.cc", "#include \"low/a.h\"\n#include \"beside.h\"\n"},
                     {"apps/main.cc", "#include \"mid/c.h\"\n#include \"apps/verbs.h\"\n"}})
                  .empty());
}

TEST(ArchitectureChecker, RefusesAnIncludeUpwards) {
  ExpectProblem(Check({{"src/low/a.cc", "#include \"mid/c.h\"\n"}}), "src/low may not include mid");
  ExpectProblem(Check({{"src/low/a.cc", "  #  include <mid/c.h>  // why\n"}}), "src/low may not include mid");
  ExpectProblem(Check({{"src/mid/a.cc", "#include \"apps/verbs.h\"\n"}}), "src/mid may not include apps");
}

TEST(ArchitectureChecker, RefusesUnlistedRooms) {
  ExpectProblem(Check({{"src/attic/a.cc", "int x;\n"}}), "src/attic/a.cc is in no room");
  ExpectProblem(Check({{"src/a.cc", "int x;\n"}}), "src/a.cc is in no room");
  ExpectProblem(Check({{"include/cairn.h", "int x;\n"}}), "include/cairn.h is in no room");
  ExpectProblem(Check({{"apps/a.cc", "#include \"attic/a.h\"\n"}}), "\"attic/a.h\", which is in no room");
}

TEST(ArchitectureChecker, RefusesDetoursAndCircles) {
  ExpectProblem(Check({{"src/low/a.cc", "#include \"../mid/c.h\"\n"}}), "write the path from");
  ExpectProblem(Check({{"src/low/a.h", "#include \"low/b.h\"\n"}, {"src/low/b.h", "#include \"a.h\"\n"}}),
                "src/low/a.h -> src/low/b.h -> src/low/a.h");
}

TEST(ArchitectureChecker, RefusesAPageWithCirclesOrUnknownRooms) {
  const std::string head = "| room | purpose | may include |\n|---|---|---|\n";
  ExpectProblem(ParsePage(head + "| `src/a` | x | b |\n| `src/b` | y | a |\n").problems, "'b', which is no room above");
  ExpectProblem(ParsePage(head + "| `src/a` | x | a |\n").problems, "'a', which is no room above");
  ExpectProblem(ParsePage(head + "| `src/a` | x | |\n| `src/a` | y | |\n").problems, "listed twice");
  ExpectProblem(ParsePage(head + "| `src/a` | x | |\n| `src/b` | | |\n").problems, "lacks its room or purpose");
  ExpectProblem(ParsePage("nothing here\n").problems, "no table");
}

}  // namespace
}  // namespace cairn
