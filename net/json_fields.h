#pragma once

// Fields of a client's JSON object, checked. Internal to openai_parse.cpp.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace meshnet::json_fields {

using Json = nlohmann::ordered_json;

/// Throws HttpError 400 with `param` ("" = the whole body): "messages: ..." or "messages: expected
/// ..., got ...".
[[noreturn]] void refuse(const std::string& param, const std::string& message);
[[noreturn]] void refuse(const std::string& param, const std::string& expected, const Json& got);

/// A value as an error message shows it.
std::string in_words(const Json& value);
/// nlohmann reads every number of 0 or more as unsigned, and compares it with signed ones after a
/// cast to them.
bool is_int64(const Json& value);

/// The value of a key, or nullptr. null says the same as no key at all. These refuse what is there
/// and is no such value.
const Json* find(const Json& object, const char* key);
const Json* find_object(const Json& object, const char* key);
std::optional<double> find_number(const Json& object, const char* key, double min, double max);
std::optional<int64_t> find_integer(const Json& object, const char* key, int64_t min);
bool find_flag(const Json& object, const char* key);

}  // namespace meshnet::json_fields
