// Stands in for landmark_index_ivf.cc where FAISS is missing.
#include "base/error.h"
#include "memory/landmark_index.h"

namespace cairn {

bool HasIvf() { return false; }

std::unique_ptr<LandmarkIndex> MakeIvfIndex(LandmarkPanels, const IvfOptions&) {
  Fail(
      "this cairn was built without FAISS, so it has no index \"ivf\"; use hierarchical, or install libfaiss-dev and "
      "build again");
}

}  // namespace cairn
