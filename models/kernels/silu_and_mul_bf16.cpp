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
  const __m512 one = _mm512_set1_ps(1.0F);
  const __m512 least = _mm512_set1_ps(-87.0F);  // e^least is nothing beside 1
  for (int64_t i = 0; i < intermediate; i += kFloats) {
    // x / (1 + e^-x), below 0 as x e^x / (1 + e^x): no power of e grows.
    const __m512 x = load_floats(gate + i);
    const __m512 exponent = _mm512_sub_ps(_mm512_setzero_ps(), _mm512_abs_ps(x));
    const __mmask16 counts = _mm512_cmp_ps_mask(exponent, least, _CMP_NLT_UQ);
    const __m512 power = _mm512_maskz_mov_ps(counts, exp_not_positive(exponent));
    const __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
    const __m512 activated =
        _mm512_div_ps(_mm512_mask_mul_ps(x, negative, x, power), _mm512_add_ps(one, power));
    store_floats(out + i, _mm512_mul_ps(rounded(activated), load_floats(up + i)));
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
