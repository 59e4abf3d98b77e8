#pragma once

#include "models/kernels/avx512_bf16.h"

#ifdef __x86_64__

/// Products of small bfloat16 matrices with float32 sums, on AVX-512 BF16. The right-hand matrix
/// lies in panels [depth / 2, kPanel, 2]: kPanel of its columns, whose numbers are in pairs of
/// neighbours along the dimension that is summed over.
namespace meshnet::avx512 {

constexpr int64_t kPanel = 64;  // columns
constexpr int64_t kStrip = 6;   // rows of the left-hand matrix: as many sums as fit into registers

/// The transpose of `from` [count, size], whose rows are `stride` numbers apart, in panels of depth
/// `size`. Both packings need `to` at a multiple of 64 bytes and size at one of 32, and write zeros
/// for the rows from `count` up to the next multiple of 16.
void pack_transposed(
    const c10::BFloat16* from, int64_t stride, int64_t count, int64_t size, c10::BFloat16* to);

/// `from` [count, size] itself, in panels of `depth`, at least count rounded up to 16.
void pack(const c10::BFloat16* from,
          int64_t stride,
          int64_t count,
          int64_t size,
          int64_t depth,
          c10::BFloat16* to);

/// c [kStrip, columns] = a [kStrip, 2 * pairs] · b + c × the factors of its rows, or without c
/// where factors are nullptr. `b` points to a pair of a panel; columns: 16, 32, 48 or 64.
void multiply(const c10::BFloat16* a,
              int64_t a_stride,
              const c10::BFloat16* b,
              int64_t pairs,
              float* c,
              int64_t c_stride,
              int64_t columns,
              const float* factors);

}  // namespace meshnet::avx512

#endif
