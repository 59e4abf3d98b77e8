#pragma once

#include <ATen/core/Tensor.h>

namespace meshnet {

/// Normalises the last dimension of x in float32. The plain kind is Llama's: it rounds to the
/// input's dtype, then × weight. The zero-centred kind is Gemma's: × (1 + weight) in float32, then
/// it rounds once. Weights stay as they are stored.
struct RmsNorm {
  at::Tensor weight;  ///< [size]
  double eps = 0.0;
  bool zero_centred = false;

  /// x [..., size] → the same shape and dtype.
  at::Tensor forward(const at::Tensor& x) const;
};

}  // namespace meshnet
