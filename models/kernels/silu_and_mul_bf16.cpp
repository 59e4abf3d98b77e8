#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "models/kernels/avx512_bf16.h"
#include "models/kernels/silu_and_mul.h"

#ifdef __x86_64__

namespace meshnet {
namespace {

using c10::BFloat16;
using namespace avx512;

MESHNET_AVX512_BF16 void gate_row(const BFloat16* gate,
                                  const BFloat16* up,
                                  BFloat16* out,
                                  int64_t intermediate) {
  for (int64_t i = 0; i < intermediate; i += kFloats) {
    const __m512 activated = rounded(silu(load_floats(gate + i)));
    store_floats(out + i, _mm512_mul_ps(activated, load_floats(up + i)));
  }
}

}  // namespace

at::Tensor silu_and_mul_bf16(const at::Tensor& gate_up) {
  const int64_t tokens = gate_up.size(0);
  const int64_t intermediate = gate_up.size(1) / 2;
  at::Tensor out = at::empty({tokens, intermediate}, gate_up.options());
  const auto* gate = gate_up.const_data_ptr<BFloat16>();
  auto* out_data = out.mutable_data_ptr<BFloat16>();
  at::parallel_for(0, tokens, worth_a_thread(intermediate), [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const BFloat16* row = gate + token * gate_up.stride(0);
      gate_row(row, row + intermediate, out_data + token * intermediate, intermediate);
    }
  });
  return out;
}

}  // namespace meshnet

#else  // other processors take the twin

#include <stdexcept>

namespace meshnet {

at::Tensor silu_and_mul_bf16(const at::Tensor&) {
  throw std::logic_error("silu_and_mul_bf16: not on this processor");
}

}  // namespace meshnet

#endif
