#include "models/quantization.h"

#include <nlohmann/json.hpp>
#include <string>

namespace meshnet {
namespace {

constexpr int64_t kMaxBlock = int64_t{1} << 20;

Fp8Blocks read_block_size(const JsonReader& config) {
  const std::string key = "weight_block_size";
  const auto found = config.value().find(key);
  if (found == config.value().end()) return {128, 128};  // as in the reference
  if (found->is_null()) return {};
  const auto is_size = [](const nlohmann::json& size) {
    return size.is_number_integer() && size > 0 && size <= kMaxBlock;
  };
  if (!found->is_array() || found->size() != 2 || !is_size(found->front()) ||
      !is_size(found->back())) {
    config.fail(key, "two sizes from 1, or null");
  }
  return {found->front().get<int64_t>(), found->back().get<int64_t>()};
}

}  // namespace

std::optional<Fp8Blocks> read_quantization(const JsonReader& file) {
  auto config = file.object("quantization_config");
  if (const auto text = file.object("text_config"); !config && text) {
    config = text->object("quantization_config");
  }
  if (!config) return std::nullopt;
  if (config->string_or("quant_method", "") != "fp8") {
    config->fail("quant_method",
                 "fp8 (no other quantisation is supported; use a checkpoint with float32, bfloat16 "
                 "or float16 weights)");
  }
  return read_block_size(*config);
}

std::vector<int64_t> scale_shape(Fp8Blocks blocks, const std::vector<int64_t>& weight_shape) {
  const bool whole = blocks.rows == 0;
  if (whole && weight_shape.size() == 2) return {};
  std::vector<int64_t> shape = weight_shape;
  int64_t& rows = shape.at(shape.size() - 2);
  int64_t& columns = shape.back();
  rows = whole ? 1 : (rows + blocks.rows - 1) / blocks.rows;
  columns = whole ? 1 : (columns + blocks.columns - 1) / blocks.columns;
  return shape;
}

}  // namespace meshnet
