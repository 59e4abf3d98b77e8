#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "models/quantization.h"
#include "models/safetensors.h"

namespace meshnet {

/// Brings stored tensors to their places: all threads read, so many bytes at once that nothing is
/// held beside the place but a few MiB. `into` is contiguous, on any device, of float32, bfloat16
/// or float16, and of the shape of `stored`. One call at a time.
class WeightCopier {
 public:
  /// into ← stored, which is of dtype `stored_dtype`. Where nothing is to convert, the bytes go
  /// straight from the file to a place on the CPU.
  void copy(const SafetensorsFile& file,
            const StoredTensor& stored,
            at::ScalarType stored_dtype,
            const at::Tensor& into);

  /// into [..., m, n] ← float8_e4m3fn `stored` × the scale of its block: one product in float32 and
  /// one rounding. scales: float32 on the CPU, of the shape that scale_shape() gives.
  void dequantize(const SafetensorsFile& file,
                  const StoredTensor& stored,
                  Fp8Blocks blocks,
                  const at::Tensor& scales,
                  const at::Tensor& into);

 private:
  using Buffer = std::vector<std::byte>;

  template <typename Work>
  void for_each_range(int64_t count, int64_t item_bytes, const Work& work);
  void convert(const SafetensorsFile& file,
               const StoredTensor& stored,
               at::ScalarType stored_dtype,
               const at::Tensor& flat);

  /// One for each thread, kept from tensor to tensor: allocated anew each time, they would lie
  /// between what the load leaves behind, and the heap would grow by most of them.
  std::vector<Buffer> buffers_;
};

}  // namespace meshnet
