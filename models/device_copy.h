#pragma once

#include <ATen/core/Tensor.h>

/// Between the host and a device, on the device's current stream. On a CPU nothing is copied and
/// nothing waits.
namespace meshnet {

/// Uninitialised memory of the host, pinned where `device` is a GPU: what copies from and to it
/// need not wait for.
at::Tensor empty_on_host(at::IntArrayRef shape, at::ScalarType dtype, at::Device device);

/// The same values on `device`; the host does not wait for the copy. A tensor of pinned memory may
/// go at once.
at::Tensor to_device(const at::Tensor& host, at::Device device);

/// The same values on the host. Waits for what the stream has been given so far.
at::Tensor to_host(const at::Tensor& tensor);

}  // namespace meshnet
