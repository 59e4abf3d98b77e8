#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>

namespace meshnet {

/// CPU memory for weights, in large blocks of huge pages where the kernel gives them: decode reads
/// every weight once a token, and with small pages half of that time is spent on addresses. Memory
/// that is not written to is not taken.
class WeightArena {
 public:
  /// An uninitialised tensor on the CPU; its block lives as long as one of its tensors.
  at::Tensor empty(at::IntArrayRef shape, at::ScalarType dtype);

 private:
  struct Block;

  std::shared_ptr<Block> block_;
  std::size_t used_ = 0;  ///< bytes of it
};

}  // namespace meshnet
