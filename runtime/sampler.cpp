#include "runtime/sampler.h"

#include <ATen/ATen.h>
#include <ATen/core/PhiloxRNGEngine.h>

#include <algorithm>

namespace meshnet {
namespace {

/// In [0, 1): 53 bits of the Philox block (seed, position).
double uniform(uint64_t seed, int64_t position) {
  at::Philox4_32 engine(seed, /*subsequence=*/0, /*offset=*/static_cast<uint64_t>(position));
  const uint64_t high = engine() >> 5;
  const uint64_t low = engine() >> 6;
  return static_cast<double>((high << 26) | low) * 0x1.0p-53;
}

}  // namespace

int64_t sample(const at::Tensor& logits, const SamplingParams& params, int64_t position) {
  const at::Tensor host = logits.to(at::kCPU);
  if (is_greedy(params)) {
    return host.argmax().item<int64_t>();  // the first of equal maxima
  }

  // Descending; stable, so equal logits stand in order of their ids.
  const auto [sorted, ids] = at::sort(
      host.to(at::kDouble) / params.temperature, /*stable=*/true, /*dim=*/0, /*descending=*/true);
  const auto vocab_size = sorted.size(0);
  const auto candidates = params.top_k > 0 ? std::min(params.top_k, vocab_size) : vocab_size;
  const at::Tensor cumulative = at::cumsum(at::softmax(sorted.narrow(0, 0, candidates), 0), 0);
  const double* sums = cumulative.const_data_ptr<double>();

  // top_p keeps the smallest prefix whose mass reaches it, at least one token.
  int64_t kept = candidates;
  if (params.top_p < 1.0) {
    kept = std::min(candidates, std::lower_bound(sums, sums + candidates, params.top_p) - sums + 1);
  }
  const double point = uniform(params.seed, position) * sums[kept - 1];
  const auto chosen = std::min(std::upper_bound(sums, sums + kept, point) - sums, kept - 1);
  return ids[chosen].item<int64_t>();
}

}  // namespace meshnet
