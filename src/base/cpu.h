// Which instruction sets this processor has, and which one the kernels use.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cairn {

// An instruction set that the kernels were compiled for and this processor has.
struct InstructionSet {
  std::string name;  // as in CAIRN_ISA, e.g. "avx3_dl", "avx2"
  int64_t target;    // Highway's bit
};

// Best first; never empty.
const std::vector<InstructionSet>& InstructionSets();

// The one that the kernels use now.
const InstructionSet& ActiveInstructionSet();

// Makes the kernels use `name`; an empty name returns to the best. Throws Error when the processor lacks it.
// Not thread-safe: call at start, or between computations.
void ForceInstructionSet(const std::string& name);

// Obeys CAIRN_ISA. Called once by main(), and by the test programs.
void InitInstructionSet();

// "model name" of the processor, or "unknown".
std::string ProcessorName();

}  // namespace cairn
