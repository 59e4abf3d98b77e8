#include "runtime/sampler.h"

#include <ATen/ATen.h>
#include <ATen/core/PhiloxRNGEngine.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include "models/device_copy.h"

namespace meshnet {
namespace {

/// In [0, 1): 53 bits of the Philox block (seed, position).
double uniform(uint64_t seed, int64_t position) {
  at::Philox4_32 engine(seed, /*subsequence=*/0, /*offset=*/static_cast<uint64_t>(position));
  const uint64_t high = engine() >> 5;
  const uint64_t low = engine() >> 6;
  return static_cast<double>((high << 26) | low) * 0x1.0p-53;
}

/// The ids of the `count` largest weights in descending order, of equal ones the lowest first.
std::vector<int64_t> largest(const double* weights, int64_t vocab_size, int64_t count) {
  std::vector<int64_t> ids(static_cast<std::size_t>(vocab_size));
  std::iota(ids.begin(), ids.end(), 0);
  const auto before = [&](int64_t a, int64_t b) {
    return weights[a] > weights[b] || (weights[a] == weights[b] && a < b);
  };
  const auto end = ids.begin() + count;
  if (end != ids.end()) std::nth_element(ids.begin(), end, ids.end(), before);
  std::sort(ids.begin(), end, before);
  ids.resize(static_cast<std::size_t>(count));
  return ids;
}

double mass_of(const std::vector<int64_t>& ids, const double* weights) {
  return std::accumulate(
      ids.begin(), ids.end(), 0.0, [&](double sum, int64_t id) { return sum + weights[id]; });
}

/// What top_k and top_p leave of weights [vocab_size] that sum to `total`, in descending order.
std::vector<int64_t> candidates(const double* weights,
                                int64_t vocab_size,
                                double total,
                                const SamplingParams& params) {
  std::vector<int64_t> ids;
  if (params.top_k > 0) {
    ids = largest(weights, vocab_size, std::min(params.top_k, vocab_size));
    total = mass_of(ids, weights);
  } else {
    // The nucleus is small as a rule: sorting a whole vocabulary would take longer than a layer.
    int64_t count = 256;
    do {
      ids = largest(weights, vocab_size, std::min(count, vocab_size));
      count *= 8;
    } while (mass_of(ids, weights) < params.top_p * total &&
             static_cast<int64_t>(ids.size()) < vocab_size);
  }
  if (params.top_p < 1.0) {  // the smallest prefix whose mass reaches it, at least one token
    double mass = 0;
    const auto last = std::find_if(ids.begin(), ids.end(), [&](int64_t id) {
      return (mass += weights[id]) >= params.top_p * total;
    });
    if (last != ids.end()) ids.erase(last + 1, ids.end());
  }
  return ids;
}

}  // namespace

int64_t sample(const at::Tensor& logits, const SamplingParams& params, int64_t position) {
  if (is_greedy(params)) return logits.argmax().item<int64_t>();  // the first of equal maxima

  const at::Tensor scaled = to_host(logits).to(at::kDouble) / params.temperature;
  const at::Tensor weights_held = at::exp(scaled - scaled.max());
  const double* weights = weights_held.const_data_ptr<double>();
  const int64_t vocab_size = weights_held.size(0);
  const double total = weights_held.sum().item<double>();

  std::vector<int64_t> ids;
  if (params.top_k == 0 && params.top_p >= 1.0) {  // all of them, in any order
    ids.resize(static_cast<std::size_t>(vocab_size));
    std::iota(ids.begin(), ids.end(), 0);
  } else {
    ids = candidates(weights, vocab_size, total, params);
  }
  const double point = uniform(params.seed, position) * mass_of(ids, weights);
  double mass = 0;
  const auto chosen = std::find_if(
      ids.begin(), ids.end(), [&](int64_t id) { return (mass += weights[id]) > point; });
  return chosen != ids.end() ? *chosen : ids.back();
}

}  // namespace meshnet
