#include "train/communicator.h"

namespace cairn {

std::unique_ptr<Communicator> MakeSingleCommunicator() { return std::make_unique<Communicator>(); }

}  // namespace cairn
