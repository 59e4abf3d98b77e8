// The chunkwise form of Yang, Kautz, Hatamizadeh, "Gated Delta Networks" (arXiv 2412.06464), chunk
// after chunk: the state is at hand, so its part needs no system of its own. A head's state is cut
// into panels of columns, which know nothing of each other and stay in the nearest cache. With S
// the state before a chunk, e_t = exp(g_t), D_ij = e_(j+1) ... e_i and P_i = e_0 ... e_i:
//   delta_i = beta_i (v_i - P_i S^T k_i - sum over j < i of D_ij (k_i · k_j) delta_j)
//   out_i = P_i S^T q_i + sum over j <= i of D_ij (q_i · k_j) delta_j
//   S' = P_last S + sum over j of D_(last)j k_j delta_j^T
// D is multiplied up from the e_t: differences of cumulated g would lose what strong decays leave.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "models/kernels/gated_delta_cpu.h"

namespace meshnet {
namespace {

using simd::convert;
using simd::Floats;
using simd::load;
using simd::store;

constexpr int64_t kChunk = 32;      // tokens; more would cost more arithmetic than they save
constexpr int64_t kColumns = 32;    // of a panel of the state
constexpr int64_t kRows = 8;        // of a tile
static_assert(kChunk == kColumns);  // the same multiply() makes products and panels

int64_t depth_of(int64_t head_k_dim) { return round_up(head_k_dim, kDeltaPadding); }
int64_t panels_of(int64_t head_v_dim) { return round_up(head_v_dim, kColumns) / kColumns; }

/// Room to work in.
struct Workspace {
  float* rows;       // [2 * kChunk, depth]: keys, then queries
  float* keys_t;     // [depth, kChunk]
  float* products;   // [2 * kChunk, kChunk]: rows · keys
  float* lower;      // [kChunk, kChunk]: beta_i D_ij k_i · k_j for j < i
  float* attention;  // [kChunk, kChunk]: D_ij q_i · k_j for j <= i, else 0
  float* read;       // [2 * kChunk, kColumns]: rows · state
  float* values;     // [kChunk, kColumns]
  float* delta;      // [kChunk, kColumns]
  float* tile;       // [kRows, kColumns]
  float* decay;      // [kChunk]: D_ij of the last i
  float* since;      // [kChunk]: P_i
  float* beta;       // [kChunk]
  float* states;     // [heads, panels, depth, kColumns]

  static int64_t numel(int64_t depth, int64_t panels, int64_t heads) {
    return depth * 3 * kChunk + (4 * kChunk + 4 * kColumns + 3) * kChunk + kRows * kColumns +
           heads * panels * depth * kColumns;
  }
  Workspace(float* memory, int64_t depth) {
    const auto take = [&memory](int64_t numel) { return std::exchange(memory, memory + numel); };
    rows = take(2 * kChunk * depth);
    keys_t = take(depth * kChunk);
    products = take(2 * kChunk * kChunk);
    lower = take(kChunk * kChunk);
    attention = take(kChunk * kChunk);
    read = take(2 * kChunk * kColumns);
    values = take(kChunk * kColumns);
    delta = take(kChunk * kColumns);
    tile = take(kRows * kColumns);
    decay = take(kChunk);
    since = take(kChunk);
    beta = take(kChunk);
    states = memory;
  }
};

/// out [kRows, kColumns] = a [kRows, depth], by its strides, · b [depth, kColumns].
template <int kBytes>
MESHNET_INLINE void multiply(
    const float* a, int64_t a_row, int64_t a_column, const float* b, int64_t depth, float* out) {
  constexpr int64_t lanes = simd::Vector<kBytes>::kLanes;
  constexpr int rows = kBytes == 64 ? 8 : 4;  // twice as many sums as rows: 32 registers, or 16
  for (int64_t row = 0; row < kRows; row += rows) {
    for (int64_t column = 0; column < kColumns; column += 2 * lanes) {
      Floats<kBytes> sums[rows][2] = {};
      for (int64_t k = 0; k < depth; ++k) {
        const Floats<kBytes> left = load<kBytes>(b + k * kColumns + column);
        const Floats<kBytes> right = load<kBytes>(b + k * kColumns + column + lanes);
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) {
          const float factor = a[(row + r) * a_row + k * a_column];
          sums[r][0] += factor * left;
          sums[r][1] += factor * right;
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
        store<kBytes>(out + (row + r) * kColumns + column, sums[r][0]);
        store<kBytes>(out + (row + r) * kColumns + column + lanes, sums[r][1]);
      }
    }
  }
}

/// Keys and queries, whole tiles of `count` of each, · b [depth, kColumns] → out [2 * kChunk,
/// kColumns].
template <int kBytes>
MESHNET_INLINE void multiply_rows(
    const Workspace& work, int64_t count, const float* b, int64_t depth, float* out) {
  for (const int64_t half : {int64_t{0}, kChunk}) {
    for (int64_t i = half; i < half + count; i += kRows) {
      multiply<kBytes>(work.rows + i * depth, depth, 1, b, depth, out + i * kColumns);
    }
  }
}

/// rows, keys_t and products of `count` tokens; zeros up to a whole tile.
template <int kBytes, typename T>
MESHNET_INLINE void prepare_keys(const DeltaOperands<T>& s,
                                 const Workspace& work,
                                 int64_t k_head,
                                 int64_t first,
                                 int64_t count) {
  const int64_t depth = depth_of(s.head_k_dim);
  const int64_t padded = round_up(count, kRows);
  const float scale = 1.0F / std::sqrt(static_cast<float>(s.head_k_dim));
  for (int64_t i = 0; i < padded; ++i) {
    float* key = work.rows + i * depth;
    float* query = work.rows + (kChunk + i) * depth;
    const int64_t token = first + i;
    if (i < count) {
      const int64_t column = k_head * s.head_k_dim;
      normalise<kBytes>(s.key + token * s.key_stride + column, key, s.head_k_dim, 1.0F);
      normalise<kBytes>(s.query + token * s.query_stride + column, query, s.head_k_dim, scale);
    } else {
      std::fill_n(key, depth, 0.0F);
      std::fill_n(query, depth, 0.0F);
    }
    for (int64_t k = 0; k < depth; ++k) work.keys_t[k * kChunk + i] = key[k];
  }
  multiply_rows<kBytes>(work, count, work.keys_t, depth, work.products);
}

/// What the v head's own decays and betas make of the products: since, beta, lower, attention,
/// decay.
template <int kBytes, typename T>
MESHNET_INLINE void prepare_head(
    const DeltaOperands<T>& s, const Workspace& work, int64_t head, int64_t first, int64_t count) {
  const int64_t padded = round_up(count, kRows);
  std::fill_n(work.decay, kChunk, 0.0F);
  float since = 1.0F;
  for (int64_t i = 0; i < padded; ++i) {
    const int64_t at = (first + i) * s.num_v_heads + head;
    const float decay = i < count ? std::exp(s.g[at]) : 1.0F;
    work.beta[i] = i < count ? s.beta[at] : 0.0F;
    work.since[i] = since *= decay;
    for (int64_t j = 0; j < kChunk; j += simd::Vector<kBytes>::kLanes) {
      const Floats<kBytes> decays = load<kBytes>(work.decay + j) * decay;
      const Floats<kBytes> product = load<kBytes>(work.products + i * kChunk + j);
      store<kBytes>(work.decay + j, decays);
      store<kBytes>(work.lower + i * kChunk + j, work.beta[i] * decays * product);
    }
    work.decay[i] = i < count ? 1.0F : 0.0F;
    for (int64_t j = 0; j < kChunk; j += simd::Vector<kBytes>::kLanes) {
      const Floats<kBytes> product = load<kBytes>(work.products + (kChunk + i) * kChunk + j);
      store<kBytes>(work.attention + i * kChunk + j, load<kBytes>(work.decay + j) * product);
    }
  }
}

/// delta of the tile of rows that begins at `begin`, once those before it are known: forward
/// substitution.
template <int kBytes>
MESHNET_INLINE void solve(const Workspace& work, int64_t begin) {
  float* delta = work.delta + begin * kColumns;
  const float* lower = work.lower + begin * kChunk;
  multiply<kBytes>(lower, kChunk, 1, work.delta, begin, delta);
  for (int64_t column = 0; column < kColumns; column += simd::Vector<kBytes>::kLanes) {
    Floats<kBytes> rows[kRows];
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) {
      const int64_t at = (begin + r) * kColumns + column;
      const Floats<kBytes> expected = work.since[begin + r] * load<kBytes>(work.read + at);
      rows[r] = work.beta[begin + r] * (load<kBytes>(work.values + at) - expected) -
                load<kBytes>(work.delta + at);
    }
#pragma GCC unroll 8
    for (int64_t j = 0; j < kRows; ++j) {
#pragma GCC unroll 8
      for (int64_t r = j + 1; r < kRows; ++r) {
        rows[r] -= lower[r * kChunk + begin + j] * rows[j];
      }
    }
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) store<kBytes>(delta + r * kColumns + column, rows[r]);
  }
}

/// The outputs of `count` rows from `begin` on, once their delta is known, to `out` of the first.
template <int kBytes, typename T>
MESHNET_INLINE void write_out(const Workspace& work,
                              int64_t begin,
                              int64_t count,
                              T* out,
                              int64_t out_stride,
                              int64_t columns) {
  multiply<kBytes>(
      work.attention + begin * kChunk, kChunk, 1, work.delta, begin + kRows, work.tile);
  for (int64_t i = 0; i < count; ++i) {
    float* row = work.tile + i * kColumns;
    const float* read = work.read + (kChunk + begin + i) * kColumns;
    for (int64_t c = 0; c < kColumns; c += simd::Vector<kBytes>::kLanes) {
      const Floats<kBytes> from_state = work.since[begin + i] * load<kBytes>(read + c);
      store<kBytes>(row + c, load<kBytes>(row + c) + from_state);
    }
    convert<kBytes>(row, out + i * out_stride, columns);
  }
}

/// The panel of the state after `count` tokens. delta takes their decay on.
template <int kBytes>
MESHNET_INLINE void update_state(const Workspace& work,
                                 int64_t count,
                                 int64_t depth,
                                 float* state) {
  constexpr int64_t lanes = simd::Vector<kBytes>::kLanes;
  for (int64_t at = 0; at < count * kColumns; at += lanes) {
    store<kBytes>(work.delta + at, work.decay[at / kColumns] * load<kBytes>(work.delta + at));
  }
  for (int64_t row = 0; row < depth; row += kRows) {
    multiply<kBytes>(work.rows + row, 1, depth, work.delta, count, work.tile);
    for (int64_t at = 0; at < kRows * kColumns; at += lanes) {
      float* to = state + row * kColumns + at;
      store<kBytes>(to, work.since[count - 1] * load<kBytes>(to) + load<kBytes>(work.tile + at));
    }
  }
}

/// One panel of one head's state and output, over one chunk; `column` is its first of all heads'.
template <int kBytes, typename T>
MESHNET_INLINE void run_panel(const DeltaOperands<T>& s,
                              const Workspace& work,
                              float* state,
                              int64_t column,
                              int64_t columns,
                              int64_t first,
                              int64_t count) {
  const int64_t depth = depth_of(s.head_k_dim);
  const int64_t out_stride = s.num_v_heads * s.head_v_dim;
  multiply_rows<kBytes>(work, count, state, depth, work.read);
  for (int64_t i = 0; i < count; ++i) {
    const T* value = s.value + (first + i) * s.value_stride + column;
    convert<kBytes>(value, work.values + i * kColumns, columns);
  }
  for (int64_t begin = 0; begin < count; begin += kRows) {
    solve<kBytes>(work, begin);
    T* out = s.out + (first + begin) * out_stride + column;
    write_out<kBytes>(work, begin, std::min(kRows, count - begin), out, out_stride, columns);
  }
  update_state<kBytes>(work, count, depth, state);
}

/// A head's state into panels, or back.
template <typename T>
void move_state(const DeltaOperands<T>& s, int64_t head, float* panels, bool back) {
  const int64_t depth = depth_of(s.head_k_dim);
  for (int64_t column = 0; column < s.head_v_dim; column += kColumns) {
    const int64_t columns = std::min(kColumns, s.head_v_dim - column);
    for (int64_t k = 0; k < s.head_k_dim; ++k) {
      float* whole = s.state_of(head) + k * s.head_v_dim + column;
      float* part = panels + column * depth + k * kColumns;
      std::copy_n(back ? part : whole, columns, back ? whole : part);
    }
  }
}

/// All tokens of `heads` v heads of one k head. `memory` is zeroed.
template <typename T>
struct Chunks {
  template <int kBytes>
  MESHNET_INLINE static void run(const DeltaOperands<T>& s,
                                 int64_t head,
                                 int64_t heads,
                                 float* memory) {
    const int64_t panels = panels_of(s.head_v_dim);
    const int64_t panel_size = depth_of(s.head_k_dim) * kColumns;
    const Workspace work(memory, depth_of(s.head_k_dim));
    for (int64_t h = 0; h < heads; ++h) {
      move_state(s, head + h, work.states + h * panels * panel_size, /*back=*/false);
    }
    for (int64_t first = 0; first < s.tokens; first += kChunk) {
      const int64_t count = std::min(kChunk, s.tokens - first);
      prepare_keys<kBytes>(s, work, head / s.group(), first, count);
      for (int64_t h = 0; h < heads; ++h) {
        prepare_head<kBytes>(s, work, head + h, first, count);
        for (int64_t panel = 0; panel < panels; ++panel) {
          float* state = work.states + (h * panels + panel) * panel_size;
          const int64_t column = panel * kColumns;
          run_panel<kBytes>(s,
                            work,
                            state,
                            (head + h) * s.head_v_dim + column,
                            std::min(kColumns, s.head_v_dim - column),
                            first,
                            count);
        }
      }
    }
    for (int64_t h = 0; h < heads; ++h) {
      move_state(s, head + h, work.states + h * panels * panel_size, /*back=*/true);
    }
  }
};

template <typename T>
void run_chunks(const DeltaOperands<T>& s) {
  // The v heads of a k head share its products, unless threads would stay idle.
  const int64_t heads = at::get_num_threads() > s.num_k_heads ? 1 : s.group();
  const int64_t room = Workspace::numel(depth_of(s.head_k_dim), panels_of(s.head_v_dim), heads);
  at::parallel_for(0, s.num_v_heads / heads, 1, [&](int64_t begin, int64_t end) {
    const at::Tensor memory = at::zeros({room}, at::kFloat);
    for (int64_t part = begin; part < end; ++part) {
      simd::run<Chunks<T>>(s, part * heads, heads, memory.mutable_data_ptr<float>());
    }
  });
}

}  // namespace

at::Tensor gated_delta_chunks_cpu(const at::Tensor& query,
                                  const at::Tensor& key,
                                  const at::Tensor& value,
                                  const at::Tensor& g,
                                  const at::Tensor& beta,
                                  const at::Tensor& state) {
  return run_delta(
      query, key, value, g, beta, state, [](const auto& operands) { run_chunks(operands); });
}

}  // namespace meshnet
