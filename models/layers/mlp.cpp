#include "models/layers/mlp.h"

#include "models/kernels/silu_and_mul.h"
#include "models/weights.h"

namespace meshnet {

at::Tensor Mlp::forward(const at::Tensor& x) const {
  return down_proj.forward(silu_and_mul(gate_up_proj.forward(x)));
}

Mlp load_mlp(const Weights& weights, int64_t hidden_size, int64_t intermediate_size, bool bias) {
  return {load_linear(weights,
                      hidden_size,
                      {{"gate_proj", intermediate_size}, {"up_proj", intermediate_size}},
                      bias),
          load_linear(weights, intermediate_size, {{"down_proj", hidden_size}}, bias)};
}

}  // namespace meshnet
