#include "models/rope.h"

#include <ATen/ATen.h>

#include <numbers>

namespace meshnet {
namespace {

/// x [..., head_dim]: its second half negated, then its first.
at::Tensor rotate_half(const at::Tensor& x) {
  const auto halves = x.chunk(2, -1);
  return at::cat({-halves[1], halves[0]}, -1);
}

/// Long wavelengths divided by `factor`, short ones kept, those between blended. [head_dim / 2].
at::Tensor llama3_inv_freq(const RopeParameters& rope, const at::Tensor& inv_freq) {
  const auto old_context_len = static_cast<double>(rope.original_max_position_embeddings);
  const at::Tensor wavelen = 2 * std::numbers::pi / inv_freq;
  const at::Tensor is_low_freq = wavelen > old_context_len / rope.low_freq_factor;
  const at::Tensor is_high_freq = wavelen < old_context_len / rope.high_freq_factor;
  const at::Tensor scaled = at::where(is_low_freq, inv_freq / rope.factor, inv_freq);
  const at::Tensor smooth_factor = (old_context_len / wavelen - rope.low_freq_factor) /
                                   (rope.high_freq_factor - rope.low_freq_factor);
  const at::Tensor smoothed = (1 - smooth_factor) * scaled / rope.factor + smooth_factor * scaled;
  return at::where(is_low_freq | is_high_freq, scaled, smoothed);
}

}  // namespace

at::Tensor rope_inv_freq(const RopeParameters& rope, int64_t head_dim) {
  const at::Tensor exponents =
      at::arange(0, head_dim, 2, at::kFloat) / static_cast<double>(head_dim);
  const at::Tensor inv_freq = 1.0 / at::pow(at::Scalar(rope.rope_theta), exponents);
  if (rope.rope_type == "linear") return inv_freq / rope.factor;
  if (rope.rope_type == "llama3") return llama3_inv_freq(rope, inv_freq);
  return inv_freq;
}

at::Tensor positions(const std::vector<Sequence>& sequences) {
  std::vector<at::Tensor> parts;
  parts.reserve(sequences.size());
  for (const Sequence& sequence : sequences) {
    parts.push_back(at::arange(
        sequence.position, sequence.position + sequence.rows, at::TensorOptions(at::kLong)));
  }
  return at::cat(parts);
}

std::pair<at::Tensor, at::Tensor> rotary_embedding(const at::Tensor& positions,
                                                   const at::Tensor& inv_freq,
                                                   at::ScalarType dtype) {
  const at::Tensor freqs =
      positions.unsqueeze(1).to(at::kFloat) * inv_freq;  // [tokens, head_dim/2]
  const at::Tensor emb = at::cat({freqs, freqs}, -1);
  return {emb.cos().to(dtype), emb.sin().to(dtype)};
}

at::Tensor apply_rotary_pos_emb(const at::Tensor& states,
                                const at::Tensor& cos,
                                const at::Tensor& sin) {
  return states * cos.unsqueeze(1) + rotate_half(states) * sin.unsqueeze(1);
}

}  // namespace meshnet
