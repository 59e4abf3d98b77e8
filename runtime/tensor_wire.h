#pragma once

#include <ATen/core/Tensor.h>

#include "net/messages.h"

namespace meshnet {

/// The only bridge between wire values and tensors.
at::ScalarType to_scalar_type(Dtype dtype);
Dtype from_scalar_type(at::ScalarType type);

/// Hidden states of the wire → [tokens, hidden_size] on `device` in `dtype`: the values as they
/// came, converted once where the dtypes differ. The tensor owns its memory; for a GPU, the host
/// does not wait for the copy.
at::Tensor to_tensor(const HiddenStates& hidden, at::ScalarType dtype, at::Device device);

/// [tokens, hidden_size] on the CPU → the wire, in the tensor's own dtype.
HiddenStates to_wire(const at::Tensor& hidden_states);

}  // namespace meshnet
