#include "models/json_reader.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

namespace meshnet {
namespace {

/// The value as JSON, cut where a file would flood the terminal; bad UTF-8 is replaced.
std::string shown(const nlohmann::json& value) {
  constexpr std::size_t kMax = 80;
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > kMax) text = text.substr(0, kMax) + "...";
  return text;
}

}  // namespace

JsonReader::JsonReader(const nlohmann::json& value, std::string where)
    : value_(&value), where_(std::move(where)) {
  if (!value.is_object()) {
    throw std::runtime_error(where_ + ": expected a JSON object, got " + shown(value));
  }
}

const nlohmann::json* JsonReader::find(const std::string& key) const {
  const auto it = value_->find(key);
  return it == value_->end() || it->is_null() ? nullptr : &*it;
}

void JsonReader::fail(const std::string& key, const std::string& expected) const {
  const auto* found = find(key);
  throw std::runtime_error(where_ + ": " + key + ": expected " + expected + ", got " +
                           (found ? shown(*found) : "nothing"));
}

std::optional<JsonReader> JsonReader::object(const std::string& key) const {
  const auto* found = find(key);
  if (!found) return std::nullopt;
  return JsonReader(*found, where_ + ": " + key);
}

int64_t JsonReader::integer(const std::string& key, int64_t min, int64_t max) const {
  const auto* found = find(key);
  // Above int64, nlohmann keeps an unsigned number; further up a double, which is no integer here.
  const bool fits = found && found->is_number_integer() &&
                    !(found->is_number_unsigned() && found->get<uint64_t>() > INT64_MAX);
  if (!fits || found->get<int64_t>() < min || found->get<int64_t>() > max) {
    fail(key, "an integer from " + std::to_string(min) + " to " + std::to_string(max));
  }
  return found->get<int64_t>();
}

int64_t JsonReader::integer_or(const std::string& key,
                               int64_t fallback,
                               int64_t min,
                               int64_t max) const {
  return has(key) ? integer(key, min, max) : fallback;
}

double JsonReader::positive(const std::string& key) const {
  const auto* found = find(key);
  if (!found || !found->is_number()) fail(key, "a number above 0");
  const double number = found->get<double>();
  if (!std::isfinite(number) || number <= 0.0) fail(key, "a number above 0");
  return number;
}

double JsonReader::positive_or(const std::string& key, double fallback) const {
  return has(key) ? positive(key) : fallback;
}

bool JsonReader::boolean_or(const std::string& key, bool fallback) const {
  const auto* found = find(key);
  if (!found) return fallback;
  if (!found->is_boolean()) fail(key, "true or false");
  return found->get<bool>();
}

std::string JsonReader::string(const std::string& key) const {
  const auto* found = find(key);
  if (!found || !found->is_string()) fail(key, "a string");
  return found->get<std::string>();
}

std::string JsonReader::string_or(const std::string& key, const std::string& fallback) const {
  return has(key) ? string(key) : fallback;
}

std::string as_float(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.9g", static_cast<double>(static_cast<float>(value)));
  return text.data();
}

}  // namespace meshnet
