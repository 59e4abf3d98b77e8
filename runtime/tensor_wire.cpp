#include "runtime/tensor_wire.h"

#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>

#include <cstring>
#include <stdexcept>

#include "models/device_copy.h"

namespace meshnet {

at::ScalarType to_scalar_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBFloat16:
      return at::kBFloat16;
    case Dtype::kFloat16:
      return at::kHalf;
    case Dtype::kFloat32:
      return at::kFloat;
  }
  throw std::logic_error("to_scalar_type: not a Dtype");
}

Dtype from_scalar_type(at::ScalarType type) {
  switch (type) {
    case at::kBFloat16:
      return Dtype::kBFloat16;
    case at::kHalf:
      return Dtype::kFloat16;
    case at::kFloat:
      return Dtype::kFloat32;
    default:
      throw std::logic_error(c10::str("from_scalar_type: ", type, " does not travel"));
  }
}

at::Tensor to_tensor(const HiddenStates& hidden, at::ScalarType dtype, at::Device device) {
  const at::Tensor host =
      empty_on_host({hidden.tokens, hidden.hidden_size}, to_scalar_type(hidden.dtype), device);
  if (host.nbytes() != hidden.bytes.size()) {
    throw std::logic_error(c10::str("to_tensor: ",
                                    hidden.bytes.size(),
                                    " bytes for ",
                                    hidden.tokens,
                                    " x ",
                                    hidden.hidden_size,
                                    " of ",
                                    to_string(hidden.dtype)));
  }
  std::memcpy(host.mutable_data_ptr(), hidden.bytes.data(), hidden.bytes.size());
  return to_device(host, device).to(dtype);
}

HiddenStates to_wire(const at::Tensor& hidden_states) {
  const at::Tensor host = hidden_states.contiguous();
  HiddenStates hidden{from_scalar_type(host.scalar_type()), host.size(0), host.size(1), {}};
  hidden.bytes.assign(static_cast<const char*>(host.const_data_ptr()), host.nbytes());
  return hidden;
}

}  // namespace meshnet
