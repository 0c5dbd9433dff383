// The twin for builds without MPI.
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "train/communicator.h"

namespace cairn {

std::unique_ptr<Communicator> MakeCommunicator() {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const char* text = std::getenv(variable);
    if (text != nullptr && std::string(text) != "1") {
      Fail(
          "started by mpirun with {} processes, but this build has no MPI; install its development package and build "
          "again",
          text);
    }
  }
  return MakeSingleCommunicator();
}

}  // namespace cairn
