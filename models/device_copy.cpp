#include "models/device_copy.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace meshnet {

at::Tensor empty_on_host(at::IntArrayRef shape, at::ScalarType dtype, at::Device device) {
  return at::empty(shape, at::TensorOptions(dtype).pinned_memory(device.is_cuda()));
}

at::Tensor to_device(const at::Tensor& host, at::Device device) {
  return host.to(at::TensorOptions(device), /*non_blocking=*/true);
}

at::Tensor to_host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  at::Tensor host = empty_on_host(tensor.sizes(), tensor.scalar_type(), tensor.device());
  host.copy_(tensor, /*non_blocking=*/true);
  const c10::impl::VirtualGuardImpl of_device(tensor.device().type());
  of_device.synchronizeStream(of_device.getStream(tensor.device()));
  return host;
}

}  // namespace meshnet
