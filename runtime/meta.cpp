#include "runtime/meta.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "net/http_error.h"

namespace meshnet {
namespace {

using nlohmann::json;

template <class Number>
void read_number(const json& object, const char* key, Number low, Number high, Number& value) {
  const auto found = object.find(key);
  if (found == object.end()) return;
  const bool right_kind =
      std::is_integral_v<Number> ? found->is_number_integer() : found->is_number();
  if (!right_kind || found->get<double>() < static_cast<double>(low) ||
      found->get<double>() > static_cast<double>(high)) {
    throw HttpError(400,
                    kInvalidRequest,
                    fmt::format("meta.sampling.{}: expected a number in [{}, {}], got {}",
                                key,
                                low,
                                high,
                                found->dump(-1, ' ', false, json::error_handler_t::replace)));
  }
  value = found->get<Number>();
}

}  // namespace

std::string format_meta(const SamplingParams& sampling) {
  return json{{"sampling",
               {{"temperature", sampling.temperature},
                {"top_k", sampling.top_k},
                {"top_p", sampling.top_p},
                {"seed", sampling.seed}}}}
      .dump();
}

SamplingParams parse_meta(const std::string& meta) {
  SamplingParams params;
  if (meta.empty()) return params;
  const json object = json::parse(meta, nullptr, /*allow_exceptions=*/false);
  const json sampling = object.is_object() ? object.value("sampling", json::object()) : json();
  if (!sampling.is_object())
    throw HttpError(400, kInvalidRequest, "meta.sampling: expected a JSON object");
  read_number<double>(sampling, "temperature", 0.0, 100.0, params.temperature);
  read_number<int64_t>(sampling, "top_k", 0, int64_t{1} << 31, params.top_k);
  read_number<double>(sampling, "top_p", 0.0, 1.0, params.top_p);
  read_number<uint64_t>(sampling, "seed", 0, UINT64_MAX, params.seed);
  return params;
}

}  // namespace meshnet
