#include "net/json_input.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <vector>

namespace meshnet {
namespace {

using Json = nlohmann::ordered_json;

/// Throws at the first bracket or key beyond the limits; whether the text is JSON at all is for the
/// parser to say. A pass of its own, because nlohmann's parser callback costs time that grows with
/// the square of an array's length.
void check_limits(const std::string& text, int max_depth) {
  std::vector<std::size_t> keys;  // seen so far in each open bracket
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;  // whatever is escaped, a quote perhaps
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (keys.size() >= static_cast<std::size_t>(max_depth)) {
        throw std::invalid_argument("nested deeper than " + std::to_string(max_depth) + " levels");
      }
      keys.push_back(0);
    } else if ((c == '}' || c == ']') && !keys.empty()) {
      keys.pop_back();
    } else if (c == ':' && !keys.empty() && ++keys.back() > kMaxJsonKeys) {
      throw std::invalid_argument("an object with more than " + std::to_string(kMaxJsonKeys) +
                                  " keys");
    }
  }
}

/// nlohmann's message without its tag, and without the part that repeats the input.
std::string reason(const Json::exception& error) {
  std::string text = error.what();
  text.erase(0, text.find("] ") + 2);
  text.erase(std::min(text.find("; last read"), text.size()));
  constexpr std::size_t kMaxReason = 200;
  return text.substr(0, kMaxReason);
}

}  // namespace

Json parse_json(const std::string& text, int max_depth) {
  try {
    check_limits(text, max_depth);
    return Json::parse(text);
  } catch (const Json::exception& error) {
    throw std::invalid_argument(reason(error));
  }
}

std::string dump_json(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace meshnet
