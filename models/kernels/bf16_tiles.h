#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "models/kernels/avx512_bf16.h"

#ifdef __x86_64__

/// Products of a few rows of x and a few rows of a weight, all contiguous and a multiple of 32
/// numbers long; for the kernels' sources alone. Every sum is made in the same order, whatever is
/// multiplied beside it.
namespace meshnet::avx512 {

constexpr int64_t kTile = 4;  // rows, and weight rows, of a tile

/// Where rows begin.
template <int64_t kCount>
using Pointers = std::array<const c10::BFloat16*, kCount>;

/// Rows [first, end) of a matrix, at most kCount: the last one again where there are fewer.
template <int64_t kCount>
Pointers<kCount> rows_of(const c10::BFloat16* matrix, int64_t stride, int64_t first, int64_t end) {
  Pointers<kCount> rows;
  for (int64_t i = 0; i < kCount; ++i) rows[i] = matrix + std::min(first + i, end - 1) * stride;
  return rows;
}

/// The lanes' sum of each of 16 registers, in lane 4 * i + j.
MESHNET_AVX512_BF16 inline __m512 sums_of(const __m512 (&registers)[4][4]) {
  __m512 rows[4];  // four partial sums of each registers[i][j]
  for (int64_t i = 0; i < 4; ++i) {
    const __m512* r = registers[i];
    const __m512d low = _mm512_castps_pd(
        _mm512_add_ps(_mm512_unpacklo_ps(r[0], r[1]), _mm512_unpackhi_ps(r[0], r[1])));
    const __m512d high = _mm512_castps_pd(
        _mm512_add_ps(_mm512_unpacklo_ps(r[2], r[3]), _mm512_unpackhi_ps(r[2], r[3])));
    rows[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(low, high)),
                            _mm512_castpd_ps(_mm512_unpackhi_pd(low, high)));
  }
  const __m512 first = _mm512_add_ps(_mm512_shuffle_f32x4(rows[0], rows[1], 0x44),
                                     _mm512_shuffle_f32x4(rows[0], rows[1], 0xEE));
  const __m512 last = _mm512_add_ps(_mm512_shuffle_f32x4(rows[2], rows[3], 0x44),
                                    _mm512_shuffle_f32x4(rows[2], rows[3], 0xEE));
  return _mm512_add_ps(_mm512_shuffle_f32x4(first, last, 0x88),
                       _mm512_shuffle_f32x4(first, last, 0xDD));
}

/// x · each of 16 weight rows. They are read one behind the other, as they lie: the processor sees
/// that and fetches them ahead.
MESHNET_AVX512_BF16 inline __m512 multiply_row(const c10::BFloat16* x,
                                               const Pointers<kFloats>& weight,
                                               int64_t size) {
  __m512 sums[4][4];
  for (int64_t row = 0; row < kFloats; ++row) {
    __m512 sum = _mm512_setzero_ps();
#pragma GCC unroll 8
    for (int64_t i = 0; i < size; i += kLanes) {
      sum = _mm512_dpbf16_ps(sum, load(x + i), load(weight[row] + i));
    }
    sums[row / 4][row % 4] = sum;
  }
  return sums_of(sums);
}

/// Each of four rows of x · each of four weight rows; lane 4 * row + column. kFetchesNext: fetches
/// the four weight rows behind them.
template <bool kFetchesNext>
MESHNET_AVX512_BF16 inline __m512 multiply_tile(const Pointers<kTile>& x,
                                                const Pointers<kTile>& weight,
                                                int64_t size) {
  __m512 sums[kTile][kTile] = {};
  for (int64_t i = 0; i < size; i += kLanes) {
    __m512bh columns[kTile];
    for (int64_t column = 0; column < kTile; ++column) {
      const c10::BFloat16* from = weight[column] + i;
      if constexpr (kFetchesNext) {
        _mm_prefetch(reinterpret_cast<const char*>(from + kTile * size), _MM_HINT_T1);
      }
      columns[column] = load(from);
    }
    for (int64_t row = 0; row < kTile; ++row) {
      const __m512bh values = load(x[row] + i);
      for (int64_t column = 0; column < kTile; ++column) {
        sums[row][column] = _mm512_dpbf16_ps(sums[row][column], values, columns[column]);
      }
    }
  }
  return sums_of(sums);
}

/// Four columns of up to four rows of a matrix, as multiply_tile has them.
MESHNET_AVX512_BF16 inline __m512 load_tile(const c10::BFloat16* from,
                                            int64_t stride,
                                            int64_t rows) {
  std::array<c10::BFloat16, kTile * kTile> tile{};
  for (int64_t i = 0; i < rows; ++i) std::copy_n(from + i * stride, kTile, tile.data() + i * kTile);
  return load_floats(tile.data());
}

MESHNET_AVX512_BF16 inline void store_tile(
    __m512 values, c10::BFloat16* to, int64_t stride, int64_t rows, int64_t columns) {
  std::array<c10::BFloat16, kTile * kTile> tile;
  store_floats(tile.data(), values);
  for (int64_t i = 0; i < rows; ++i) std::copy_n(tile.data() + i * kTile, columns, to + i * stride);
}

}  // namespace meshnet::avx512

#endif
