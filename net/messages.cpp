#include "net/messages.h"

#include <algorithm>

namespace meshnet {

std::string_view to_string(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBFloat16:
      return "bfloat16";
    case Dtype::kFloat16:
      return "float16";
    case Dtype::kFloat32:
      return "float32";
  }
  return {};
}

std::optional<Dtype> parse_dtype(std::string_view name) {
  for (Dtype dtype : {Dtype::kBFloat16, Dtype::kFloat16, Dtype::kFloat32}) {
    if (name == to_string(dtype)) return dtype;
  }
  return std::nullopt;
}

std::size_t size_of(Dtype dtype) { return dtype == Dtype::kFloat32 ? 4 : 2; }

bool is_node_name(std::string_view name) {
  return !name.empty() && name.size() <= 64 && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-';
  });
}

std::string_view to_string(CacheMode mode) {
  switch (mode) {
    case CacheMode::kPrefill:
      return "prefill";
    case CacheMode::kDecode:
      return "decode";
    case CacheMode::kStateless:
      break;
  }
  return "stateless";
}

bool is_greedy(const SamplingParams& params) {
  constexpr double kLeastTemperature = 1e-5;  // smaller ones overflow the logits
  return params.temperature < kLeastTemperature || params.top_p <= 0.0;
}

}  // namespace meshnet
