#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace meshnet {

/// into [rows, n] ← stored [rows, n] (the bits of float8_e4m3fn, uint8) × scales [blocks], one for
/// every `block_columns` columns, the last block perhaps narrower: one product in float32 and one
/// rounding to float32, bfloat16 or float16. All contiguous, on the CPU; on the calling thread.
void dequantize_rows(const at::Tensor& stored,
                     const at::Tensor& scales,
                     int64_t block_columns,
                     const at::Tensor& into);

}  // namespace meshnet
