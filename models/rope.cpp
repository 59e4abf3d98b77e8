#include "models/rope.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "models/kernels/bf16_cpu.h"

namespace meshnet {
namespace {

/// x [..., rotary_dim]: its second half negated, then its first.
at::Tensor rotate_half(const at::Tensor& x) {
  const auto halves = x.chunk(2, -1);
  return at::cat({-halves[1], halves[0]}, -1);
}

/// Long wavelengths divided by `factor`, short ones kept, those between blended. [rotary_dim / 2].
at::Tensor llama3_inv_freq(const RopeParameters& rope, const at::Tensor& inv_freq) {
  const auto old_context_len = static_cast<double>(rope.original_max_position_embeddings);
  // Python's number / tensor is this product, which rounds twice.
  const at::Tensor wavelen = inv_freq.reciprocal() * (2 * std::numbers::pi);
  const at::Tensor is_low_freq = wavelen > old_context_len / rope.low_freq_factor;
  const at::Tensor is_high_freq = wavelen < old_context_len / rope.high_freq_factor;
  const at::Tensor scaled = at::where(is_low_freq, inv_freq / rope.factor, inv_freq);
  const at::Tensor smooth_factor = (wavelen.reciprocal() * old_context_len - rope.low_freq_factor) /
                                   (rope.high_freq_factor - rope.low_freq_factor);
  const at::Tensor smoothed = (1 - smooth_factor) * scaled / rope.factor + smooth_factor * scaled;
  return at::where(is_low_freq | is_high_freq, scaled, smoothed);
}

/// From `beta_fast` turns over the original context on kept, up to `beta_slow` divided by `factor`,
/// those between blended. pos_freqs [dim / 2] → the same shape.
at::Tensor yarn_inv_freq(const RopeParameters& rope, const at::Tensor& pos_freqs, int64_t dim) {
  const auto correction_dim = [&](double turns) {
    const auto length = static_cast<double>(rope.original_max_position_embeddings);
    return static_cast<double>(dim) * std::log(length / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(rope.rope_theta));
  };
  double low = correction_dim(rope.beta_fast);
  double high = correction_dim(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(dim - 1));
  if (low == high) high += 0.001;
  const at::Tensor ramp = at::clamp((at::arange(dim / 2, at::kFloat) - low) / (high - low), 0, 1);
  const at::Tensor extrapolation_factor = 1 - ramp;
  return 1.0 / (rope.factor * pos_freqs) * (1 - extrapolation_factor) +
         1.0 / pos_freqs * extrapolation_factor;
}

}  // namespace

RotaryFrequencies rope_frequencies(const RopeParameters& rope,
                                   int64_t head_dim,
                                   at::Device device) {
  const int64_t dim = rotary_dim(rope, head_dim);
  const at::Tensor exponents = at::arange(0, dim, 2, at::kFloat) / static_cast<double>(dim);
  const at::Tensor pos_freqs = at::pow(at::Scalar(rope.rope_theta), exponents);
  at::Tensor inv_freq = 1.0 / pos_freqs;
  if (rope.rope_type == "linear") inv_freq = inv_freq / rope.factor;
  if (rope.rope_type == "llama3") inv_freq = llama3_inv_freq(rope, inv_freq);
  if (rope.rope_type == "yarn") inv_freq = yarn_inv_freq(rope, pos_freqs, dim);
  if (rope.rope_type == "longrope") {
    inv_freq = 1.0 / (at::tensor(rope.ext_factors, at::kFloat) * pos_freqs);
  }
  return {inv_freq.to(device), rope.attention_factor};
}

at::Tensor positions(const std::vector<Sequence>& sequences, at::Device device) {
  std::vector<at::Tensor> parts;
  parts.reserve(sequences.size());
  for (const Sequence& sequence : sequences) {
    parts.push_back(at::arange(sequence.position,
                               sequence.position + sequence.rows,
                               at::TensorOptions(at::kLong).device(device)));
  }
  return at::cat(parts);
}

RotaryEmbedding rotary_embedding(const at::Tensor& positions,
                                 const RotaryFrequencies& frequencies,
                                 at::ScalarType dtype) {
  const at::Tensor freqs =
      positions.unsqueeze(1).to(at::kFloat) * frequencies.inv_freq;  // [tokens, rotary_dim / 2]
  const at::Tensor emb = at::cat({freqs, freqs}, -1);
  return {(emb.cos() * frequencies.attention_scaling).to(dtype),
          (emb.sin() * frequencies.attention_scaling).to(dtype)};
}

at::Tensor apply_rotary_pos_emb(const at::Tensor& states, const RotaryEmbedding& rotary) {
  const int64_t dim = rotary.cos.size(-1);
  const int64_t rest = states.size(-1) - dim;
  const at::Tensor part = states.narrow(-1, 0, dim);
  const at::Tensor rotated =
      part * rotary.cos.unsqueeze(1) + rotate_half(part) * rotary.sin.unsqueeze(1);
  return rest == 0 ? rotated : at::cat({rotated, states.narrow(-1, dim, rest)}, -1);
}

at::Tensor rotate_heads(const at::Tensor& states, const RotaryEmbedding& rotary) {
  const at::Tensor part = states.narrow(-1, 0, rotary.cos.size(-1));
  if (!takes_bf16_kernels(part)) return apply_rotary_pos_emb(states, rotary);
  rotate_bf16(part, rotary.cos, rotary.sin);
  return states;
}

}  // namespace meshnet
