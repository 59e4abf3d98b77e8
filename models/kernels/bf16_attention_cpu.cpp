#include "models/kernels/bf16_attention_cpu.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>

#include "models/kernels/avx512_bf16.h"
#include "models/kernels/bf16_cpu.h"
#include "models/kernels/bf16_panels.h"

#ifdef __x86_64__

namespace meshnet {
namespace {

using c10::BFloat16;
using namespace avx512;

// The queries of one key/value head are numbered heads within rows. A tile of them, up to kTile,
// goes over the keys by blocks, whose borders are the same for all tiles, and within a block by
// strips.
constexpr int64_t kTile = 192;
constexpr int64_t kBlock = 256;  // keys

struct Span {
  int64_t begin;
  int64_t end;
};

struct Operands {
  const BFloat16* query;
  const BFloat16* key;
  const BFloat16* value;
  BFloat16* out;
  int64_t query_strides[2];  // of row and head
  int64_t key_strides[2];    // of head and key
  int64_t value_strides[2];
  int64_t rows;
  int64_t heads;
  int64_t group;  // query heads of one key/value head
  int64_t length;
  int64_t sliding_window;
  float scaling;
};

/// The keys that a query sees.
Span keys_of(const Operands& args, int64_t query) {
  const int64_t end = args.length - args.rows + query / args.group + 1;
  return {args.sliding_window > 0 ? std::max<int64_t>(0, end - args.sliding_window) : 0, end};
}

/// What one thread works in: a tile, and a block in panels.
template <int64_t kHeadDim>
struct Workspace {
  static constexpr int64_t kColumns = (kHeadDim + kPanel - 1) / kPanel * kPanel;
  alignas(64) BFloat16 query[kTile * kHeadDim];
  alignas(64) BFloat16 key[kBlock * kHeadDim];  // transposed
  alignas(64) BFloat16 value[kBlock * kColumns];
  alignas(64) float scores[kStrip * kBlock];
  alignas(64) BFloat16 weights[kStrip * kBlock];
  alignas(64) float out[kTile * kHeadDim];  // Σ weight * value of the keys so far
  Span seen[kTile];
  float largest[kTile];  // scaled score
  float total[kTile];    // Σ weight
};

/// The lanes of the 16 keys from `key` on that are in the span.
inline __mmask16 lanes(Span span, int64_t key) {
  const auto below = [key](int64_t border) {
    return (1U << std::clamp<int64_t>(border - key, 0, kFloats)) - 1U;
  };
  return static_cast<__mmask16>(below(span.end) & ~below(span.begin));
}

/// The largest of a row's scores in `seen`, which is within `all`, whose borders are multiples
/// of 16.
MESHNET_AVX512_BF16 float largest_of(const float* scores, Span all, Span seen) {
  __m512 largest = _mm512_set1_ps(-INFINITY);
  for (int64_t key = all.begin; key < all.end; key += kFloats) {
    largest = _mm512_mask_max_ps(largest, lanes(seen, key), largest, _mm512_loadu_ps(scores + key));
  }
  return _mm512_reduce_max_ps(largest);
}

/// Weights e^(scaled score - largest) of the keys seen and 0 for the others of `all`; their sum.
MESHNET_AVX512_BF16 float weigh(
    const float* scores, Span all, Span seen, float scaling, float largest, BFloat16* weights) {
  __m512 total = _mm512_setzero_ps();
  for (int64_t key = all.begin; key < all.end; key += kFloats) {
    const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(scores + key), _mm512_set1_ps(scaling));
    const __m512 each = _mm512_maskz_mov_ps(
        lanes(seen, key), exp_not_positive(_mm512_sub_ps(scaled, _mm512_set1_ps(largest))));
    total = _mm512_add_ps(total, each);
    store_floats(weights + key, each);
  }
  return _mm512_reduce_add_ps(total);
}

/// A strip's rows from `first` on over the keys of the block at `block`, which is packed.
template <int64_t kHeadDim>
MESHNET_AVX512_BF16 void attend_strip(Workspace<kHeadDim>& space,
                                      int64_t first,
                                      int64_t block,
                                      float scaling) {
  const auto inside = [block](int64_t key) { return std::clamp<int64_t>(key - block, 0, kBlock); };
  const Span any{inside(space.seen[first].begin), inside(space.seen[first + kStrip - 1].end)};
  if (any.begin >= any.end) return;
  const Span all{any.begin / kFloats * kFloats, (any.end + kFloats - 1) / kFloats * kFloats};

  // 1. Scores, panel by panel.
  for (int64_t key = all.begin; key < all.end;) {
    const int64_t end = std::min(all.end, (key / kPanel + 1) * kPanel);
    multiply(space.query + first * kHeadDim,
             kHeadDim,
             space.key + key / kPanel * kPanel * kHeadDim + key % kPanel * 2,
             kHeadDim / 2,
             space.scores + key,
             kBlock,
             end - key,
             /*factors=*/nullptr);
    key = end;
  }

  // 2. Weights, and what those of the blocks before are worth now.
  float factors[kStrip];
  for (int64_t i = 0; i < kStrip; ++i) {
    const int64_t row = first + i;
    const float* scores = space.scores + i * kBlock;
    BFloat16* weights = space.weights + i * kBlock;
    const Span seen{inside(space.seen[row].begin), inside(space.seen[row].end)};
    if (seen.begin >= seen.end) {
      std::fill(weights + all.begin, weights + all.end, BFloat16(0.0F));
      factors[i] = 1.0F;
      continue;
    }
    const float before = space.largest[row];
    const float largest = std::max(before, largest_of(scores, all, seen) * scaling);
    factors[i] = largest == before ? 1.0F : std::exp(before - largest);
    space.largest[row] = largest;
    space.total[row] =
        space.total[row] * factors[i] + weigh(scores, all, seen, scaling, largest, weights);
  }

  // 3. Values, panel by panel.
  for (int64_t column = 0; column < kHeadDim; column += kPanel) {
    multiply(space.weights + all.begin,
             kBlock,
             space.value + column * kBlock + all.begin * kPanel,
             (all.end - all.begin) / 2,
             space.out + first * kHeadDim + column,
             kHeadDim,
             std::min(kPanel, kHeadDim - column),
             factors);
  }
}

/// Queries [begin, end) of key/value head `head`, heads within rows.
template <int64_t kHeadDim>
MESHNET_AVX512_BF16 void attend_tile(
    const Operands& args, int64_t head, int64_t begin, int64_t end, Workspace<kHeadDim>& space) {
  const int64_t count = end - begin;
  const int64_t padded = (count + kStrip - 1) / kStrip * kStrip;
  for (int64_t i = 0; i < padded; ++i) {
    // The last strip is filled with the last row.
    const int64_t query = std::min(begin + i, end - 1);
    std::copy_n(args.query + query / args.group * args.query_strides[0] +
                    (head * args.group + query % args.group) * args.query_strides[1],
                kHeadDim,
                space.query + i * kHeadDim);
    space.seen[i] = keys_of(args, query);
    space.largest[i] = -INFINITY;
    space.total[i] = 0.0F;
  }
  std::fill_n(space.out, padded * kHeadDim, 0.0F);

  const Span seen{space.seen[0].begin, space.seen[count - 1].end};
  for (int64_t block = seen.begin / kBlock * kBlock; block < seen.end; block += kBlock) {
    const int64_t keys = std::min(kBlock, seen.end - block);
    const BFloat16* key = args.key + head * args.key_strides[0] + block * args.key_strides[1];
    const BFloat16* value =
        args.value + head * args.value_strides[0] + block * args.value_strides[1];
    pack_transposed(key, args.key_strides[1], keys, kHeadDim, space.key);
    pack(value, args.value_strides[1], keys, kHeadDim, kBlock, space.value);
    for (int64_t first = 0; first < padded; first += kStrip) {
      attend_strip(space, first, block, args.scaling);
    }
  }

  for (int64_t i = 0; i < count; ++i) {
    const int64_t query = begin + i;
    BFloat16* out =
        args.out +
        (query / args.group * args.heads + head * args.group + query % args.group) * kHeadDim;
    const __m512 scale = _mm512_set1_ps(1.0F / space.total[i]);
    for (int64_t column = 0; column < kHeadDim; column += kFloats) {
      store_floats(out + column,
                   _mm512_mul_ps(_mm512_load_ps(space.out + i * kHeadDim + column), scale));
    }
  }
}

/// All of it, tile by tile, those with the most keys first; threads take the next as they come.
template <int64_t kHeadDim>
void attend(const Operands& args) {
  const int64_t threads = at::get_num_threads();
  const int64_t kv_heads = args.heads / args.group;
  const int64_t queries = args.rows * args.group;
  const int64_t share = queries * kv_heads / (4 * threads);
  const int64_t tile = std::clamp(share / kStrip * kStrip, 4 * kStrip, kTile);
  const int64_t tiles = (queries + tile - 1) / tile;
  std::atomic<int64_t> next = 0;
  at::parallel_for(0, std::min(threads, tiles * kv_heads), 1, [&](int64_t, int64_t) {
    const auto space = std::make_unique_for_overwrite<Workspace<kHeadDim>>();
    for (int64_t i = next++; i < tiles * kv_heads; i = next++) {
      const int64_t begin = (tiles - 1 - i / kv_heads) * tile;
      attend_tile(args, i % kv_heads, begin, std::min(begin + tile, queries), *space);
    }
  });
}

/// attend() for a head_dim; nullptr where there is none.
decltype(&attend<32>) attend_of(int64_t head_dim) {
  switch (head_dim) {
    case 32:
      return attend<32>;
    case 64:
      return attend<64>;
    case 96:
      return attend<96>;
    case 128:
      return attend<128>;
    case 256:
      return attend<256>;
    default:
      return nullptr;
  }
}

}  // namespace

bool takes_attend_rows(const at::Tensor& query) {
  return takes_bf16_kernels(query) && attend_of(query.size(2)) != nullptr;
}

at::Tensor attend_rows(const at::Tensor& query,
                       const at::Tensor& key,
                       const at::Tensor& value,
                       double scaling,
                       int64_t sliding_window) {
  const int64_t rows = query.size(0);
  const int64_t heads = query.size(1);
  const int64_t head_dim = query.size(2);
  at::Tensor out = at::empty({rows, heads * head_dim}, query.options());
  attend_of(head_dim)({query.const_data_ptr<BFloat16>(),
                       key.const_data_ptr<BFloat16>(),
                       value.const_data_ptr<BFloat16>(),
                       out.mutable_data_ptr<BFloat16>(),
                       {query.stride(0), query.stride(1)},
                       {key.stride(0), key.stride(1)},
                       {value.stride(0), value.stride(1)},
                       rows,
                       heads,
                       heads / key.size(0),
                       key.size(1),
                       sliding_window,
                       static_cast<float>(scaling)});
  return out;
}

}  // namespace meshnet

#else  // other processors take the twin

#include <stdexcept>

namespace meshnet {

bool takes_attend_rows(const at::Tensor&) { return false; }

at::Tensor attend_rows(const at::Tensor&, const at::Tensor&, const at::Tensor&, double, int64_t) {
  throw std::logic_error("attend_rows: not on this processor");
}

}  // namespace meshnet

#endif
