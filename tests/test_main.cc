// main() of every test program: obeys CAIRN_ISA, and reports a missing instruction set as a skip (exit code 77).
#include <gtest/gtest.h>

#include <cstdio>

#include "base/cpu.h"
#include "base/error.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  try {
    cairn::InitInstructionSet();
  } catch (const cairn::Error& error) {
    std::printf("SKIPPED: %s\n", error.what());
    return 77;
  }
  return RUN_ALL_TESTS();
}
