#include "models/layers/rms_norm.h"

#include <ATen/ATen.h>

#include "models/kernels/bf16_cpu.h"

namespace meshnet {

at::Tensor RmsNorm::forward(const at::Tensor& x) const {
  if (takes_bf16_kernels(x)) {
    return rms_norm_bf16(x, weight, eps, zero_centred);
  }
  if (zero_centred) {
    return at::rms_norm(x.to(at::kFloat), weight.sizes(), weight.to(at::kFloat) + 1.0, eps)
        .to(x.scalar_type());
  }
  // at::rms_norm with the weight would round once, at the end; Hugging Face rounds before × weight.
  // Without it, at::rms_norm is bit-equal to their five operations and one pass over memory.
  return at::rms_norm(x, weight.sizes(), {}, eps) * weight;
}

}  // namespace meshnet
