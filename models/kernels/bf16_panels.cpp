#include "models/kernels/bf16_panels.h"

#ifdef __x86_64__

#include <algorithm>
#include <cstring>

namespace meshnet::avx512 {
namespace {

using c10::BFloat16;

/// rows[i] lane j → rows[j] lane i, of 16 lanes of 32 bits.
MESHNET_AVX512_BF16 inline void transpose(__m512i (&rows)[16]) {
  __m512i pairs[16];
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  __m512i fours[16];
  for (int i = 0; i < 16; i += 4) {
    fours[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
    fours[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
    fours[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
    fours[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    const __m512i even_low = _mm512_shuffle_i32x4(fours[i], fours[4 + i], 0x88);
    const __m512i odd_low = _mm512_shuffle_i32x4(fours[i], fours[4 + i], 0xdd);
    const __m512i even_high = _mm512_shuffle_i32x4(fours[8 + i], fours[12 + i], 0x88);
    const __m512i odd_high = _mm512_shuffle_i32x4(fours[8 + i], fours[12 + i], 0xdd);
    rows[i] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
    rows[4 + i] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
    rows[8 + i] = _mm512_shuffle_i32x4(even_low, even_high, 0xdd);
    rows[12 + i] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd);
  }
}

/// multiply() of kVectors * 16 columns.
template <int kVectors>
MESHNET_AVX512_BF16 void multiply_vectors(const BFloat16* a,
                                          int64_t a_stride,
                                          const BFloat16* b,
                                          int64_t pairs,
                                          float* c,
                                          int64_t c_stride,
                                          const float* factors) {
  __m512 sums[kStrip][kVectors] = {};
  if (factors != nullptr) {
#pragma GCC unroll 6
    for (int64_t row = 0; row < kStrip; ++row) {
      for (int64_t i = 0; i < kVectors; ++i) {
        sums[row][i] = _mm512_mul_ps(_mm512_loadu_ps(c + row * c_stride + i * kFloats),
                                     _mm512_set1_ps(factors[row]));
      }
    }
  }
  for (int64_t pair = 0; pair < pairs; ++pair) {
    __m512bh columns[kVectors];
    for (int64_t i = 0; i < kVectors; ++i) columns[i] = load(b + pair * kPanel * 2 + i * kLanes);
    for (int64_t row = 0; row < kStrip; ++row) {
      int32_t both = 0;
      std::memcpy(&both, a + row * a_stride + 2 * pair, sizeof both);
      const auto everywhere = (__m512bh)_mm512_set1_epi32(both);
      for (int64_t i = 0; i < kVectors; ++i) {
        sums[row][i] = _mm512_dpbf16_ps(sums[row][i], everywhere, columns[i]);
      }
    }
  }
#pragma GCC unroll 6
  for (int64_t row = 0; row < kStrip; ++row) {
    for (int64_t i = 0; i < kVectors; ++i) {
      _mm512_storeu_ps(c + row * c_stride + i * kFloats, sums[row][i]);
    }
  }
}

}  // namespace

MESHNET_AVX512_BF16 void pack_transposed(
    const BFloat16* from, int64_t stride, int64_t count, int64_t size, BFloat16* to) {
  for (int64_t row = 0; row < count; row += kFloats) {
    BFloat16* panel = to + row / kPanel * kPanel * size + row % kPanel * 2;
    for (int64_t i = 0; i < size; i += kLanes) {
      __m512i rows[kFloats];
      for (int64_t j = 0; j < kFloats; ++j) {
        rows[j] = row + j < count ? _mm512_loadu_si512(from + (row + j) * stride + i)
                                  : _mm512_setzero_si512();
      }
      transpose(rows);
      for (int64_t j = 0; j < kFloats; ++j) {
        _mm512_store_si512(panel + (i / 2 + j) * kPanel * 2, rows[j]);
      }
    }
  }
}

MESHNET_AVX512_BF16 void pack(const BFloat16* from,
                              int64_t stride,
                              int64_t count,
                              int64_t size,
                              int64_t depth,
                              BFloat16* to) {
  alignas(64) int16_t order[2 * kLanes];  // a0 b0 a1 b1 ...
  for (int16_t i = 0; i < 2 * kLanes; ++i) order[i] = static_cast<int16_t>(i / 2 + i % 2 * kLanes);
  const __m512i first_half = _mm512_load_si512(order);
  const __m512i second_half = _mm512_load_si512(order + kLanes);
  const int64_t padded = (count + kFloats - 1) / kFloats * kFloats;
  for (int64_t row = 0; row < padded; row += 2) {
    for (int64_t i = 0; i < size; i += kLanes) {
      const BFloat16* pair = from + row * stride + i;
      const __m512i a = row < count ? _mm512_loadu_si512(pair) : _mm512_setzero_si512();
      const __m512i b =
          row + 1 < count ? _mm512_loadu_si512(pair + stride) : _mm512_setzero_si512();
      BFloat16* panel = to + i / kPanel * kPanel * depth + row * kPanel + i % kPanel * 2;
      _mm512_store_si512(panel, _mm512_permutex2var_epi16(a, first_half, b));
      _mm512_store_si512(panel + kLanes, _mm512_permutex2var_epi16(a, second_half, b));
    }
  }
}

void multiply(const BFloat16* a,
              int64_t a_stride,
              const BFloat16* b,
              int64_t pairs,
              float* c,
              int64_t c_stride,
              int64_t columns,
              const float* factors) {
  static constexpr decltype(&multiply_vectors<1>) kOf[] = {
      multiply_vectors<1>, multiply_vectors<2>, multiply_vectors<3>, multiply_vectors<4>};
  kOf[columns / kFloats - 1](a, a_stride, b, pairs, c, c_stride, factors);
}

}  // namespace meshnet::avx512

#endif
