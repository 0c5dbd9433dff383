#include "kernels/gemm.h"

#include <cstddef>
#include <dnnl.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "base/error.h"
#include "base/threads.h"
#include "kernels/thread_scratch.h"

namespace cairn {

namespace {

// A compiled product and its descriptors. Execution is thread-safe because the scratch memory is the caller's: oneDNN's
// own belongs to the thread that compiled the product, and is too small in any other.
struct Primitive {
  dnnl::memory::desc a, b, c, scratch;
  dnnl::matmul matmul;
};

using Key = std::tuple<size_t, size_t, size_t, bool, bool, bool, size_t, size_t, size_t, int>;

// The process's oneDNN engine and compiled products. Kernels depend on the number of threads, hence in the key.
class PrimitiveCache {
 public:
  static PrimitiveCache& Get() {
    static PrimitiveCache cache;
    return cache;
  }

  const dnnl::engine& engine() const { return engine_; }

  const Primitive& Find(const MatMul& s) {
    const Key key{s.m,          s.n,        s.k,        s.transpose_a, s.transpose_b,
                  s.accumulate, s.stride_a, s.stride_b, s.stride_c,    ThreadCount()};
    const std::lock_guard lock(mutex_);
    auto& entry = primitives_[key];
    if (!entry) entry = std::make_unique<Primitive>(Compile(s));
    return *entry;
  }

 private:
  Primitive Compile(const MatMul& s) const {
    using dnnl::memory;
    const auto dim = [](size_t x) { return static_cast<memory::dim>(x); };
    const auto describe = [&](size_t rows, size_t columns, bool transposed, size_t stride) {
      const size_t row = stride != 0 ? stride : (transposed ? rows : columns);
      const memory::dims strides = transposed ? memory::dims{1, dim(row)} : memory::dims{dim(row), 1};
      return memory::desc({dim(rows), dim(columns)}, memory::data_type::f32, strides);
    };
    Primitive p;
    p.a = describe(s.m, s.k, s.transpose_a, s.stride_a);
    p.b = describe(s.k, s.n, s.transpose_b, s.stride_b);
    p.c = describe(s.m, s.n, false, s.stride_c);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (s.accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    const dnnl::matmul::desc description(p.a, p.b, p.c);
    const dnnl::matmul::primitive_desc compiled(description, attributes, engine_);
    p.scratch = compiled.scratchpad_desc();
    p.matmul = dnnl::matmul(compiled);
    return p;
  }

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  std::mutex mutex_;
  std::map<Key, std::unique_ptr<Primitive>> primitives_;
};

std::byte* Scratch(size_t size) { return ThreadScratch<std::byte, class OneDnn>(size); }

}  // namespace

void RunMatMul(const MatMul& shape, const float* a, const float* b, float* c) {
  if (shape.m == 0 || shape.n == 0) return;
  CAIRN_CHECK(shape.k > 0);
  ShareThreadCount();
  PrimitiveCache& cache = PrimitiveCache::Get();
  const Primitive& p = cache.Find(shape);
  dnnl::stream stream(cache.engine());
  const auto memory = [&](const dnnl::memory::desc& desc, const float* data) {
    return dnnl::memory(desc, cache.engine(), const_cast<float*>(data));
  };
  p.matmul.execute(stream,
                   {{DNNL_ARG_SRC, memory(p.a, a)},
                    {DNNL_ARG_WEIGHTS, memory(p.b, b)},
                    {DNNL_ARG_DST, memory(p.c, c)},
                    {DNNL_ARG_SCRATCHPAD, dnnl::memory(p.scratch, cache.engine(), Scratch(p.scratch.get_size()))}});
  stream.wait();
}

void ReferenceMatMul(const MatMul& s, const float* a, const float* b, float* c) {
  const size_t stride_a = s.stride_a != 0 ? s.stride_a : (s.transpose_a ? s.m : s.k);
  const size_t stride_b = s.stride_b != 0 ? s.stride_b : (s.transpose_b ? s.k : s.n);
  const size_t stride_c = s.stride_c != 0 ? s.stride_c : s.n;
  for (size_t i = 0; i < s.m; ++i) {
    for (size_t j = 0; j < s.n; ++j) {
      double sum = s.accumulate ? c[i * stride_c + j] : 0.0;
      for (size_t l = 0; l < s.k; ++l) {
        const double x = s.transpose_a ? a[l * stride_a + i] : a[i * stride_a + l];
        const double y = s.transpose_b ? b[j * stride_b + l] : b[l * stride_b + j];
        sum += x * y;
      }
      c[i * stride_c + j] = static_cast<float>(sum);
    }
  }
}

}  // namespace cairn
