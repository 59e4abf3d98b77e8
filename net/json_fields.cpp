#include "net/json_fields.h"

#include <nlohmann/json.hpp>

#include "net/http_error.h"
#include "net/json_input.h"

namespace meshnet::json_fields {

void refuse(const std::string& param, const std::string& message) {
  HttpError error(400, kInvalidRequest, param.empty() ? message : param + ": " + message);
  error.param = param;
  throw error;
}

std::string in_words(const Json& value) {
  if (value.is_array()) return "a list";
  if (value.is_object()) return "an object";
  constexpr std::size_t kMaxQuoted = 60;
  const std::string text = dump_json(value);
  return text.size() <= kMaxQuoted ? text : text.substr(0, kMaxQuoted) + "...";
}

void refuse(const std::string& param, const std::string& expected, const Json& got) {
  refuse(param, "expected " + expected + ", got " + in_words(got));
}

const Json* find(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::optional<double> find_number(const Json& object, const char* key, double min, double max) {
  const Json* value = find(object, key);
  if (!value) return std::nullopt;
  if (!value->is_number() || *value < min || *value > max) {
    refuse(key, "a number from " + in_words(min) + " to " + in_words(max), *value);
  }
  return value->get<double>();
}

bool is_int64(const Json& value) {
  if (value.is_number_unsigned()) return value.get<uint64_t>() <= INT64_MAX;
  return value.is_number_integer();
}

std::optional<int64_t> find_integer(const Json& object, const char* key, int64_t min) {
  const Json* value = find(object, key);
  if (!value) return std::nullopt;
  if (!is_int64(*value) || *value < min) {
    refuse(key, "an integer of " + std::to_string(min) + " or more", *value);
  }
  return value->get<int64_t>();
}

bool find_flag(const Json& object, const char* key) {
  const Json* value = find(object, key);
  if (!value) return false;
  if (!value->is_boolean()) refuse(key, "true or false", *value);
  return value->get<bool>();
}

const Json* find_object(const Json& object, const char* key) {
  const Json* value = find(object, key);
  if (value && !value->is_object()) refuse(key, "an object", *value);
  return value;
}

}  // namespace meshnet::json_fields
