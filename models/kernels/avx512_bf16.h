#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

#include "models/kernels/worth_a_thread.h"

#ifdef __x86_64__

#include <immintrin.h>

/// What the kernels for AVX-512 BF16 share; for their sources alone.
namespace meshnet::avx512 {

#define MESHNET_AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

constexpr int64_t kLanes = 32;   // bfloat16 numbers of one register
constexpr int64_t kFloats = 16;  // float32 numbers of one register

MESHNET_AVX512_BF16 inline __m512bh load(const c10::BFloat16* from) {
  return (__m512bh)_mm512_loadu_si512(from);
}

MESHNET_AVX512_BF16 inline __m512 widen(__m256i bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

MESHNET_AVX512_BF16 inline __m512 load_floats(const c10::BFloat16* from) {
  return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

MESHNET_AVX512_BF16 inline void store_floats(c10::BFloat16* to, __m512 values) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh(values));
}

/// What is left of float32 values that pass through bfloat16.
MESHNET_AVX512_BF16 inline __m512 rounded(__m512 values) {
  return widen((__m256i)_mm512_cvtneps_pbh(values));
}

/// e^x for x <= 0: Cephes' expf, 16 at a time. Below -87 it is 0 for all that matters.
MESHNET_AVX512_BF16 inline __m512 exp_not_positive(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-87.0F), x);  // in this order a NaN stays one
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504F)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375F), x);  // x - n ln 2, in two parts
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4F), r);
  __m512 p = _mm512_set1_ps(1.9875691500e-4F);
  for (const float coefficient : {1.3981999507e-3F,
                                  8.3334519073e-3F,
                                  4.1665795894e-2F,
                                  1.6666665459e-1F,
                                  5.0000001201e-1F,
                                  1.0F,
                                  1.0F}) {
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(coefficient));
  }
  return _mm512_scalef_ps(p, n);
}

/// x / (1 + e^-x), below 0 as x e^x / (1 + e^x): no power of e grows. e^-87 is nothing beside 1.
MESHNET_AVX512_BF16 inline __m512 silu(__m512 x) {
  const __m512 exponent = _mm512_sub_ps(_mm512_setzero_ps(), _mm512_abs_ps(x));
  const __mmask16 counts = _mm512_cmp_ps_mask(exponent, _mm512_set1_ps(-87.0F), _CMP_NLT_UQ);
  const __m512 power = _mm512_maskz_mov_ps(counts, exp_not_positive(exponent));
  const __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
  return _mm512_div_ps(_mm512_mask_mul_ps(x, negative, x, power),
                       _mm512_add_ps(_mm512_set1_ps(1.0F), power));
}

}  // namespace meshnet::avx512

#endif
