// The twin for builds with MPI. MPI is touched only when mpirun started the program.
#define OMPI_SKIP_MPICXX
#define MPICH_SKIP_MPICXX
#include <mpi.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "base/error.h"
#include "train/communicator.h"

namespace cairn {

namespace {

// MPI counts with int, and smaller pieces overlap better.
constexpr size_t kPiece = size_t{1} << 20;

void Check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  Fail("MPI cannot {}: {}; another process of this run has probably died, continue with --resume", what, text);
}

class MpiCommunicator : public Communicator {
 public:
  MpiCommunicator() {
    int provided = 0;
    // Only the main thread calls MPI.
    Check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "start");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &world_);
  }
  ~MpiCommunicator() override { MPI_Finalize(); }

  size_t rank() const override { return static_cast<size_t>(rank_); }
  size_t world() const override { return static_cast<size_t>(world_); }

  void Broadcast(std::span<std::byte> bytes) override {
    for (size_t begin = 0; begin < bytes.size(); begin += kPiece) {
      const size_t count = std::min(kPiece, bytes.size() - begin);
      Check(MPI_Bcast(bytes.data() + begin, static_cast<int>(count), MPI_BYTE, 0, MPI_COMM_WORLD), "broadcast");
    }
  }

  void Sum(std::span<double> values) override {
    Check(MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_DOUBLE, MPI_SUM,
                        MPI_COMM_WORLD),
          "sum");
  }

  void StartSum(std::span<float> values) override {
    for (size_t begin = 0; begin < values.size(); begin += kPiece) {
      const size_t count = std::min(kPiece, values.size() - begin);
      requests_.emplace_back();
      Check(MPI_Iallreduce(MPI_IN_PLACE, values.data() + begin, static_cast<int>(count), MPI_FLOAT, MPI_SUM,
                           MPI_COMM_WORLD, &requests_.back()),
            "begin a sum");
    }
    // Some implementations move data only inside calls.
    int done = 0;
    Check(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE), "sum");
    if (done != 0) requests_.clear();
  }

  void FinishSums() override {
    Check(MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE), "sum gradients");
    requests_.clear();
  }

  void Abort(int code) override { MPI_Abort(MPI_COMM_WORLD, code); }

 private:
  int rank_ = 0, world_ = 1;
  std::vector<MPI_Request> requests_;
};

}  // namespace

std::unique_ptr<Communicator> MakeCommunicator() {
  if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr && std::getenv("PMI_SIZE") == nullptr) {
    return MakeSingleCommunicator();
  }
  return std::make_unique<MpiCommunicator>();
}

}  // namespace cairn
