#include "models/kernels/moe_cpu.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <vector>

#include "models/kernels/bf16_tiles.h"

#ifdef __x86_64__

namespace meshnet {
namespace {

using c10::BFloat16;
using namespace avx512;

constexpr int64_t kBlock = 131072;  // numbers of x that stay in the second cache

/// The tokens that go through one gated MLP.
struct Group {
  const BFloat16* gate_up_proj;
  const BFloat16* down_proj;
  int64_t intermediate;
  const int64_t* tokens;  // [rows]
  const float* weights;   // [rows], and room for kTile more
  int64_t rows;
  BFloat16* activated;  // [rows, intermediate]
};

/// silu(gate_proj(x)) * up_proj(x) of few rows, columns [begin, end) of it, multiples of 16. All of
/// gate_proj is read first, then all of up_proj, as they lie.
MESHNET_AVX512_BF16 void activate_few(
    const Group& group, const BFloat16* x, int64_t hidden, int64_t begin, int64_t end) {
  for (const bool is_up : {false, true}) {
    const BFloat16* weight = group.gate_up_proj + (is_up ? group.intermediate * hidden : 0);
    for (int64_t column = begin; column < end; column += kFloats) {
      const auto columns = rows_of<kFloats>(weight, hidden, column, end);
      for (int64_t row = 0; row < group.rows; ++row) {
        BFloat16* to = group.activated + row * group.intermediate + column;
        __m512 products = rounded(multiply_row(x + group.tokens[row] * hidden, columns, hidden));
        if (is_up) products = _mm512_mul_ps(rounded(silu(load_floats(to))), products);
        store_floats(to, products);
      }
    }
  }
}

MESHNET_AVX512_BF16 inline __m512 multiply_block(const Pointers<kTile>& x,
                                                 const Pointers<kTile>& weight,
                                                 int64_t size,
                                                 bool is_first) {
  return is_first ? multiply_tile<true>(x, weight, size) : multiply_tile<false>(x, weight, size);
}

/// The same for rows [first, last) of many.
MESHNET_AVX512_BF16 void activate_block(const Group& group,
                                        int64_t first,
                                        int64_t last,
                                        const BFloat16* x,
                                        int64_t hidden,
                                        int64_t begin,
                                        int64_t end) {
  for (const bool is_up : {false, true}) {
    const BFloat16* weight = group.gate_up_proj + (is_up ? group.intermediate * hidden : 0);
    for (int64_t column = begin; column < end; column += kTile) {
      const auto columns = rows_of<kTile>(weight, hidden, column, end);
      for (int64_t row = first; row < last; row += kTile) {
        const int64_t rows = std::min(kTile, last - row);
        Pointers<kTile> from;
        for (int64_t i = 0; i < kTile; ++i) {
          from[i] = x + group.tokens[row + std::min(i, rows - 1)] * hidden;
        }
        BFloat16* to = group.activated + row * group.intermediate + column;
        __m512 products = rounded(multiply_block(from, columns, hidden, row == first));
        if (is_up) {
          const __m512 gate = load_tile(to, group.intermediate, rows);
          products = _mm512_mul_ps(rounded(silu(gate)), products);
        }
        store_tile(products, to, group.intermediate, rows, kTile);
      }
    }
  }
}

void activate(const Group& group, const BFloat16* x, int64_t hidden, int64_t begin, int64_t end) {
  if (group.rows < kTile) return activate_few(group, x, hidden, begin, end);
  const int64_t block = std::max(kTile, kBlock / hidden);
  for (int64_t row = 0; row < group.rows; row += block) {
    activate_block(group, row, std::min(row + block, group.rows), x, hidden, begin, end);
  }
}

/// Adds down_proj(activated) × weights of few rows, columns [begin, end) of it, multiples of 16, to
/// the tokens' sums [tokens, end - begin].
MESHNET_AVX512_BF16 void add_few(const Group& group, int64_t begin, int64_t end, float* sums) {
  const int64_t size = group.intermediate;
  for (int64_t column = begin; column < end; column += kFloats) {
    const auto columns = rows_of<kFloats>(group.down_proj, size, column, end);
    for (int64_t row = 0; row < group.rows; ++row) {
      const __m512 products = rounded(multiply_row(group.activated + row * size, columns, size));
      const __m512 outputs = rounded(_mm512_mul_ps(products, _mm512_set1_ps(group.weights[row])));
      float* to = sums + group.tokens[row] * (end - begin) + column - begin;
      _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), outputs));
    }
  }
}

/// The same for rows [first, last) of many.
MESHNET_AVX512_BF16 void add_block(
    const Group& group, int64_t first, int64_t last, int64_t begin, int64_t end, float* sums) {
  const int64_t size = group.intermediate;
  const __m512i row_of_lane = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  for (int64_t column = begin; column < end; column += kTile) {
    const auto columns = rows_of<kTile>(group.down_proj, size, column, end);
    for (int64_t row = first; row < last; row += kTile) {
      const __m512 products = rounded(multiply_block(
          rows_of<kTile>(group.activated, size, row, last), columns, size, row == first));
      const __m512 weights = _mm512_permutexvar_ps(
          row_of_lane, _mm512_castps128_ps512(_mm_loadu_ps(group.weights + row)));
      alignas(64) std::array<float, kTile * kTile> outputs;
      _mm512_store_ps(outputs.data(), rounded(_mm512_mul_ps(products, weights)));
      for (int64_t i = 0; i < std::min(kTile, last - row); ++i) {
        float* to = sums + group.tokens[row + i] * (end - begin) + column - begin;
        _mm_storeu_ps(to, _mm_add_ps(_mm_loadu_ps(to), _mm_load_ps(outputs.data() + i * kTile)));
      }
    }
  }
}

void add_outputs(const Group& group, int64_t begin, int64_t end, float* sums) {
  if (group.rows < kTile) return add_few(group, begin, end, sums);
  const int64_t block = std::max(kTile, kBlock / group.intermediate);
  for (int64_t row = 0; row < group.rows; row += block) {
    add_block(group, row, std::min(row + block, group.rows), begin, end, sums);
  }
}

/// Where part `part` of `parts` begins, of a size that is a multiple of 16.
int64_t part_begin(int64_t size, int64_t part, int64_t parts) {
  return size / kFloats * part / parts * kFloats;
}

/// Room for what the groups of a step point to.
struct Room {
  std::vector<int64_t> tokens;
  std::vector<float> weights;
  at::Tensor activated;
};

/// The experts that were chosen, in order, and the shared one last.
std::vector<Group> group_by_expert(const Routing& routing,
                                   const ExpertWeights& experts,
                                   const SharedExpert* shared,
                                   Room& room) {
  const auto num_experts = static_cast<std::size_t>(experts.down_proj.size(0));
  const int64_t hidden = experts.down_proj.size(1);
  const int64_t intermediate = experts.down_proj.size(2);
  const int64_t tokens = routing.index.size(0);
  const int64_t top_k = routing.index.size(1);
  const int64_t ways = tokens * top_k;
  const int64_t shared_intermediate = shared == nullptr ? 0 : shared->down_proj.size(1);
  room.tokens.resize(static_cast<std::size_t>(ways + tokens));
  room.weights.resize(static_cast<std::size_t>(ways + tokens + kTile));
  room.activated =
      at::empty({ways * intermediate + tokens * shared_intermediate}, experts.down_proj.options());
  auto* activated = room.activated.mutable_data_ptr<BFloat16>();

  const auto* index = routing.index.const_data_ptr<int64_t>();
  const auto* weights = routing.weights.const_data_ptr<BFloat16>();
  std::vector<int64_t> next(num_experts + 1);  // each expert's next free place
  for (int64_t way = 0; way < ways; ++way) ++next[static_cast<std::size_t>(index[way]) + 1];
  std::vector<Group> groups;
  for (std::size_t expert = 0; expert < num_experts; ++expert) {
    const int64_t rows = next[expert + 1];
    next[expert + 1] += next[expert];
    if (rows == 0) continue;
    const auto number = static_cast<int64_t>(expert);
    groups.push_back(
        {experts.gate_up_proj.const_data_ptr<BFloat16>() + number * 2 * intermediate * hidden,
         experts.down_proj.const_data_ptr<BFloat16>() + number * hidden * intermediate,
         intermediate,
         room.tokens.data() + next[expert],
         room.weights.data() + next[expert],
         rows,
         activated + next[expert] * intermediate});
  }
  for (int64_t way = 0; way < ways; ++way) {
    const auto place = static_cast<std::size_t>(next[static_cast<std::size_t>(index[way])]++);
    room.tokens[place] = way / top_k;
    room.weights[place] = static_cast<float>(weights[way]);
  }
  if (shared != nullptr) {
    const auto* shared_weights = shared->weights.const_data_ptr<BFloat16>();
    for (int64_t token = 0; token < tokens; ++token) {
      const auto place = static_cast<std::size_t>(ways + token);
      room.tokens[place] = token;
      room.weights[place] = static_cast<float>(shared_weights[token]);
    }
    groups.push_back({shared->gate_up_proj.const_data_ptr<BFloat16>(),
                      shared->down_proj.const_data_ptr<BFloat16>(),
                      shared_intermediate,
                      room.tokens.data() + ways,
                      room.weights.data() + ways,
                      tokens,
                      activated + ways * intermediate});
  }
  return groups;
}

/// To bfloat16 and back; count is a multiple of 16.
MESHNET_AVX512_BF16 void round_in_place(float* sums, int64_t count) {
  for (int64_t i = 0; i < count; i += kFloats) {
    _mm512_storeu_ps(sums + i, rounded(_mm512_loadu_ps(sums + i)));
  }
}

MESHNET_AVX512_BF16 void store_row(const float* sums, BFloat16* out, int64_t count) {
  for (int64_t i = 0; i < count; i += kFloats) store_floats(out + i, _mm512_loadu_ps(sums + i));
}

}  // namespace

at::Tensor experts_bf16(const at::Tensor& x,
                        const Routing& routing,
                        const ExpertWeights& experts,
                        const SharedExpert* shared) {
  const int64_t tokens = x.size(0);
  const int64_t hidden = x.size(1);
  Room room;
  const std::vector<Group> groups = group_by_expert(routing, experts, shared, room);
  at::Tensor out = at::empty({tokens, hidden}, x.options());
  const auto* x_data = x.const_data_ptr<BFloat16>();
  auto* out_data = out.mutable_data_ptr<BFloat16>();

  // Each part has the same columns of every expert: the work is even, whatever was chosen.
  const auto touched = static_cast<int64_t>(groups.size()) * hidden * groups[0].intermediate;
  const int64_t parts = std::clamp<int64_t>(touched / kLeastWork, 1, at::get_num_threads());
  at::parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
    for (const Group& group : groups) {
      activate(group,
               x_data,
               hidden,
               part_begin(group.intermediate, first, parts),
               part_begin(group.intermediate, last, parts));
    }
  });
  at::parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
    const int64_t begin = part_begin(hidden, first, parts);
    const int64_t width = part_begin(hidden, last, parts) - begin;
    std::vector<float> sums(static_cast<std::size_t>(tokens * width));
    for (const Group& group : groups) {
      // The experts' sum is rounded before the shared expert's output comes to it.
      if (shared != nullptr && &group == &groups.back())
        round_in_place(sums.data(), tokens * width);
      add_outputs(group, begin, begin + width, sums.data());
    }
    for (int64_t token = 0; token < tokens; ++token) {
      store_row(sums.data() + token * width, out_data + token * hidden + begin, width);
    }
  });
  return out;
}

}  // namespace meshnet

#else  // other processors take the twins

namespace meshnet {

at::Tensor experts_bf16(const at::Tensor&,
                        const Routing&,
                        const ExpertWeights&,
                        const SharedExpert*) {
  throw std::logic_error("experts_bf16: not on this processor");
}

}  // namespace meshnet

#endif
