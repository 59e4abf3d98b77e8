#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "models/json_reader.h"

namespace meshnet {

/// Matrices in float8_e4m3fn with scales beside them, as in the FP8 releases of DeepSeek and Qwen:
/// a weight is its stored value × the scale of its block, NAME × NAME_scale_inv (inv, because it is
/// the inverse of what the release was multiplied by). transformers:
/// integrations/finegrained_fp8.py.
struct Fp8Blocks {
  int64_t rows = 0;  ///< of a block; 0: one scale for each whole matrix
  int64_t columns = 0;
};

/// quantization_config of config.json, at the top or in text_config; nothing where the weights are
/// plain. Throws std::runtime_error naming the method of any quantisation but quant_method "fp8".
///
/// The activation_scheme makes no difference: it says how kernels for FP8 products round the
/// activations. Here weights become the compute dtype, and activations are not rounded.
std::optional<Fp8Blocks> read_quantization(const JsonReader& file);

/// [..., ceil(m / rows), ceil(n / columns)] for a weight [..., m, n]; without blocks [] for a
/// weight [m, n] and [..., 1, 1] for several.
std::vector<int64_t> scale_shape(Fp8Blocks blocks, const std::vector<int64_t>& weight_shape);

}  // namespace meshnet
