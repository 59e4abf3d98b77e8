#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace meshnet {

// Far above any model, low enough that the product of three sizes fits an int64.
inline constexpr int64_t kMaxSize = int64_t{1} << 20;
inline constexpr int64_t kMaxPositions = int64_t{1} << 31;

/// Typed, bounded reads of one JSON object. Every complaint is a std::runtime_error with file, key,
/// expected and got. A key that holds null counts as absent, as in Hugging Face.
class JsonReader {
 public:
  /// `where` is the file, and within it the object: "DIR/config.json" or "DIR/config.json:
  /// rope_parameters". Throws unless `value` is an object. Keeps a reference to it.
  JsonReader(const nlohmann::json& value, std::string where);

  bool has(const std::string& key) const { return find(key) != nullptr; }
  /// The object under `key`, if there is one.
  std::optional<JsonReader> object(const std::string& key) const;

  int64_t integer(const std::string& key, int64_t min, int64_t max) const;
  int64_t integer_or(const std::string& key, int64_t fallback, int64_t min, int64_t max) const;
  /// A finite number above zero.
  double positive(const std::string& key) const;
  double positive_or(const std::string& key, double fallback) const;
  bool boolean_or(const std::string& key, bool fallback) const;
  std::string string(const std::string& key) const;
  std::string string_or(const std::string& key, const std::string& fallback) const;

  const nlohmann::json& value() const { return *value_; }
  const std::string& where() const { return where_; }
  /// Throws "WHERE: KEY: expected EXPECTED, got <the value>".
  [[noreturn]] void fail(const std::string& key, const std::string& expected) const;

 private:
  const nlohmann::json* find(const std::string& key) const;

  const nlohmann::json* value_;
  std::string where_;
};

/// A number as float32 arithmetic sees it, in as many digits as tell it from its neighbours: tools
/// write the same epsilon as 1e-05 or 9.999999747378752e-06.
std::string as_float(double value);

}  // namespace meshnet
