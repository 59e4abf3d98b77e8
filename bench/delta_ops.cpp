/// The gated delta rule as an operation of torch, for delta.py: torch.ops.meshnet.gated_delta_rule.

#include <torch/library.h>

#include "models/kernels/gated_delta.h"

TORCH_LIBRARY(meshnet, library) {
  library.def(
      "gated_delta_rule(Tensor query, Tensor key, Tensor value, Tensor g, Tensor beta, "
      "Tensor(a!) state) -> Tensor",
      meshnet::gated_delta_rule);
}
