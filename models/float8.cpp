#include "models/float8.h"

#include <c10/util/Float8_e4m3fn.h>

#include <algorithm>
#include <array>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace meshnet {
namespace {

/// One entry for each of the values that a float8 number can have.
template <typename T>
using Table = std::array<T, 256>;

const Table<float>& float8_values() {
  static const auto kValues = [] {
    Table<float> values{};
    for (std::size_t bits = 0; bits < values.size(); ++bits) {
      values[bits] =
          c10::Float8_e4m3fn(static_cast<uint8_t>(bits), c10::Float8_e4m3fn::from_bits());
    }
    return values;
  }();
  return kValues;
}

#ifdef __x86_64__

/// to[i] = table[from[i]] for the first multiple of 32 below `count`, which is returned.
__attribute__((target("avx512f,avx512bw"))) int64_t look_up_32(const void* table,
                                                               const uint8_t* from,
                                                               int64_t count,
                                                               void* to) {
  __m512i entries[8];  // 32 each
  for (int part = 0; part < 8; ++part) {
    entries[part] = _mm512_loadu_si512(static_cast<const __m512i*>(table) + part);
  }
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const __m512i index =
        _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
    // A permutation looks at six bits of the index; the other two choose between four of them.
    const __mmask32 bit6 = _mm512_test_epi16_mask(index, _mm512_set1_epi16(0x40));
    const __mmask32 bit7 = _mm512_test_epi16_mask(index, _mm512_set1_epi16(0x80));
    const __m512i low =
        _mm512_mask_blend_epi16(bit6,
                                _mm512_permutex2var_epi16(entries[0], index, entries[1]),
                                _mm512_permutex2var_epi16(entries[2], index, entries[3]));
    const __m512i high =
        _mm512_mask_blend_epi16(bit6,
                                _mm512_permutex2var_epi16(entries[4], index, entries[5]),
                                _mm512_permutex2var_epi16(entries[6], index, entries[7]));
    _mm512_storeu_si512(static_cast<uint16_t*>(to) + i, _mm512_mask_blend_epi16(bit7, low, high));
  }
  return i;
}

#endif

template <typename T>
void look_up(const Table<T>& table, const uint8_t* from, int64_t count, T* to) {
  int64_t i = 0;
#ifdef __x86_64__
  static const bool kHasAvx512 = __builtin_cpu_supports("avx512bw");
  if (sizeof(T) == 2 && kHasAvx512) i = look_up_32(table.data(), from, count, to);
#endif
  for (; i < count; ++i) to[i] = table[from[i]];
}

/// What the possible values of a block become is worked out once a block.
template <typename T>
void dequantize(const at::Tensor& stored,
                const at::Tensor& scales,
                int64_t block_columns,
                const at::Tensor& into) {
  const int64_t n = into.size(1);
  const auto* from = stored.const_data_ptr<uint8_t>();
  auto* to = into.mutable_data_ptr<T>();
  for (int64_t block = 0; block < scales.numel(); ++block) {
    const float scale = scales.const_data_ptr<float>()[block];
    Table<T> becomes;
    std::transform(
        float8_values().begin(), float8_values().end(), becomes.begin(), [&](float value) {
          return static_cast<T>(value * scale);
        });
    const int64_t first = block * block_columns;
    const int64_t count = std::min(block_columns, n - first);
    for (int64_t row = first; row < into.numel(); row += n) {
      look_up(becomes, from + row, count, to + row);
    }
  }
}

}  // namespace

void dequantize_rows(const at::Tensor& stored,
                     const at::Tensor& scales,
                     int64_t block_columns,
                     const at::Tensor& into) {
  const auto run = into.scalar_type() == at::kFloat  ? dequantize<float>
                   : into.scalar_type() == at::kHalf ? dequantize<at::Half>
                                                     : dequantize<at::BFloat16>;
  run(stored, scales, block_columns, into);
}

}  // namespace meshnet
