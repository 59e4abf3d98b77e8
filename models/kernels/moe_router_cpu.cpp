#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "models/kernels/bf16_tiles.h"
#include "models/kernels/moe_cpu.h"

#ifdef __x86_64__

namespace meshnet {
namespace {

using c10::BFloat16;
using namespace avx512;

constexpr int64_t kCostOfExp = 16;  // numbers that a thread reads in the same time

/// Columns [begin, end) of x · weight, few rows.
MESHNET_AVX512_BF16 void multiply_columns(const BFloat16* x,
                                          const BFloat16* weight,
                                          BFloat16* out,
                                          int64_t tokens,
                                          int64_t out_features,
                                          int64_t in_features,
                                          int64_t begin,
                                          int64_t end) {
  for (int64_t column = begin; column < end; column += kFloats) {
    const auto columns = rows_of<kFloats>(weight, in_features, column, end);
    for (int64_t token = 0; token < tokens; ++token) {
      std::array<BFloat16, kFloats> products;
      store_floats(products.data(), multiply_row(x + token * in_features, columns, in_features));
      std::copy_n(
          products.data(), std::min(kFloats, end - column), out + token * out_features + column);
    }
  }
}

/// Rows [begin, end) of x · weight.
MESHNET_AVX512_BF16 void multiply_rows(const BFloat16* x,
                                       const BFloat16* weight,
                                       BFloat16* out,
                                       int64_t out_features,
                                       int64_t in_features,
                                       int64_t begin,
                                       int64_t end) {
  for (int64_t column = 0; column < out_features; column += kTile) {
    const auto columns = rows_of<kTile>(weight, in_features, column, out_features);
    for (int64_t row = begin; row < end; row += kTile) {
      store_tile(
          multiply_tile<false>(rows_of<kTile>(x, in_features, row, end), columns, in_features),
          out + row * out_features + column,
          out_features,
          std::min(kTile, end - row),
          std::min(kTile, out_features - column));
    }
  }
}

/// One token's experts, and what is left of their probabilities. probabilities [num_experts] is
/// room to work in.
void route_row(const BFloat16* logits,
               int64_t num_experts,
               int64_t top_k,
               bool norm_topk_prob,
               float* probabilities,
               int64_t* index,
               BFloat16* weights) {
  const auto largest = static_cast<float>(*std::max_element(logits, logits + num_experts));
  float sum = 0.0F;
  for (int64_t i = 0; i < num_experts; ++i) {
    probabilities[i] = std::exp(static_cast<float>(logits[i]) - largest);
    sum += probabilities[i];
  }
  // Expert by expert into a list, largest first, behind those that are equal.
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    const auto comes_before = [&](int64_t place) {
      return probabilities[expert] > probabilities[index[place]];
    };
    if (expert >= top_k && !comes_before(top_k - 1)) continue;
    int64_t place = std::min(expert, top_k - 1);
    for (; place > 0 && comes_before(place - 1); --place) index[place] = index[place - 1];
    index[place] = expert;
  }
  float top = 0.0F;
  for (int64_t i = 0; i < top_k; ++i) top += probabilities[index[i]];
  for (int64_t i = 0; i < top_k; ++i) {
    weights[i] = probabilities[index[i]] / (norm_topk_prob ? top : sum);
  }
}

}  // namespace

at::Tensor linear_rows(const at::Tensor& x, const at::Tensor& weight) {
  const int64_t tokens = x.size(0);
  const int64_t in_features = x.size(1);
  const int64_t out_features = weight.size(0);
  at::Tensor out = at::empty({tokens, out_features}, x.options());
  const auto* x_data = x.const_data_ptr<BFloat16>();
  const auto* weight_data = weight.const_data_ptr<BFloat16>();
  auto* out_data = out.mutable_data_ptr<BFloat16>();
  if (tokens < kTile) {
    at::parallel_for(0, out_features, worth_a_thread(in_features), [&](int64_t begin, int64_t end) {
      multiply_columns(
          x_data, weight_data, out_data, tokens, out_features, in_features, begin, end);
    });
  } else {
    at::parallel_for(0, tokens, kTile, [&](int64_t begin, int64_t end) {
      multiply_rows(x_data, weight_data, out_data, out_features, in_features, begin, end);
    });
  }
  return out;
}

Routing top_k_routing_bf16(const at::Tensor& router_logits, int64_t top_k, bool norm_topk_prob) {
  const int64_t tokens = router_logits.size(0);
  const int64_t num_experts = router_logits.size(1);
  Routing routing{at::empty({tokens, top_k}, router_logits.options().dtype(at::kLong)),
                  at::empty({tokens, top_k}, router_logits.options())};
  const auto* logits = router_logits.const_data_ptr<BFloat16>();
  auto* index = routing.index.mutable_data_ptr<int64_t>();
  auto* weights = routing.weights.mutable_data_ptr<BFloat16>();
  const int64_t grain = worth_a_thread(num_experts * kCostOfExp);
  at::parallel_for(0, tokens, grain, [&](int64_t begin, int64_t end) {
    std::vector<float> probabilities(static_cast<std::size_t>(num_experts));
    for (int64_t token = begin; token < end; ++token) {
      route_row(logits + token * router_logits.stride(0),
                num_experts,
                top_k,
                norm_topk_prob,
                probabilities.data(),
                index + token * top_k,
                weights + token * top_k);
    }
  });
  return routing;
}

}  // namespace meshnet

#else  // other processors take the twins

namespace meshnet {

at::Tensor linear_rows(const at::Tensor&, const at::Tensor&) {
  throw std::logic_error("linear_rows: not on this processor");
}
Routing top_k_routing_bf16(const at::Tensor&, int64_t, bool) {
  throw std::logic_error("top_k_routing_bf16: not on this processor");
}

}  // namespace meshnet

#endif
