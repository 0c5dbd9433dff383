#include "base/cpu.h"

// Kernels that have a form of their own for AVX-512 VNNI are compiled for it; the others then take AVX-512.
#define HWY_WANT_AVX3_DL
#include <hwy/highway.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "base/error.h"

namespace cairn {

namespace {

std::string LowerCase(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

std::vector<InstructionSet> FindInstructionSets() {
  std::vector<InstructionSet> sets;
  hwy::SetSupportedTargetsForTest(0);
  const int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
  // Highway numbers better targets with lower bits.
  for (int bit = 0; bit < 63; ++bit) {
    const int64_t target = int64_t{1} << bit;
    if ((usable & target) != 0) sets.push_back({LowerCase(hwy::TargetName(target)), target});
  }
  CAIRN_CHECK(!sets.empty());
  return sets;
}

size_t active_index = 0;

}  // namespace

const std::vector<InstructionSet>& InstructionSets() {
  static const std::vector<InstructionSet> sets = FindInstructionSets();
  return sets;
}

const InstructionSet& ActiveInstructionSet() { return InstructionSets()[active_index]; }

void ForceInstructionSet(const std::string& name) {
  const auto& sets = InstructionSets();
  size_t index = 0;
  if (!name.empty()) {
    const std::string wanted = LowerCase(name);
    const auto found = std::find_if(sets.begin(), sets.end(), [&](const auto& set) { return set.name == wanted; });
    if (found == sets.end()) {
      std::string names;
      for (const auto& set : sets) names += (names.empty() ? "" : ", ") + set.name;
      Fail("instruction set '{}' is not one that this processor and this build have; choose one of: {}", name, names);
    }
    index = static_cast<size_t>(found - sets.begin());
  }
  active_index = index;
  // The worse sets stay allowed: a kernel that was not compiled for the wanted one takes the next.
  int64_t allowed = 0;
  for (size_t i = index; i < sets.size(); ++i) allowed |= sets[i].target;
  hwy::SetSupportedTargetsForTest(allowed);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

void InitInstructionSet() {
  const char* name = std::getenv("CAIRN_ISA");
  ForceInstructionSet(name == nullptr ? "" : name);
}

std::string ProcessorName() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) == 0) {
      const size_t at = line.find(": ");
      if (at != std::string::npos) return line.substr(at + 2);
    }
  }
  return "unknown";
}

}  // namespace cairn
