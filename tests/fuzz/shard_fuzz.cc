// Fuzzes the reader of token shards: any bytes give a shard whose tokens can be read, or an Error.
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include <cstring>

#include "base/error.h"
#include "data/token_shard.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  if (size >= sizeof(cairn::ShardHeader)) {  // a right checksum, so that what lies behind it is reached
    const size_t checked = offsetof(cairn::ShardHeader, header_checksum);
    const uint64_t checksum = XXH3_64bits(bytes.data(), checked);
    std::memcpy(bytes.data() + checked, &checksum, sizeof(checksum));
  }
  const int file = memfd_create("fuzz", 0);
  if (file < 0 || write(file, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) std::abort();
  try {
    const cairn::TokenShard shard("/proc/self/fd/" + std::to_string(file));
    std::vector<int32_t> ids(shard.token_count());
    shard.Read(0, ids);
    shard.Verify();
  } catch (const cairn::Error&) {
  }
  close(file);
  return 0;
}
