// The processes that train one model together: sums and broadcasts between them. Served by MPI where the build found
// it and the program was started by mpirun, else by a group of one (communicator_mpi.cc, communicator_single.cc).
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace cairn {

// Every process must make the same calls in the same order, from one thread. A process that cannot go on calls Abort.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual size_t rank() const { return 0; }
  virtual size_t world() const { return 1; }
  // Copies rank 0's bytes to all.
  virtual void Broadcast(std::span<std::byte>) {}
  // Replaces the values by their sums over all processes.
  virtual void Sum(std::span<double>) {}
  // The same for large stretches, in the background; `values` must not be touched before FinishSums.
  virtual void StartSum(std::span<float>) {}
  virtual void FinishSums() {}
  // Ends all processes when one cannot go on; returns in a group of one.
  virtual void Abort(int) {}
};

// The group of one.
std::unique_ptr<Communicator> MakeSingleCommunicator();

// What the program was started in. Throws Error when that is mpirun and the build has no MPI.
std::unique_ptr<Communicator> MakeCommunicator();

}  // namespace cairn
