#include "net/json_input.h"

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <vector>

namespace meshnet {
namespace {

using Json = nlohmann::ordered_json;

/// Parser callback that throws at the first bracket or key beyond the limits.
class Limits {
 public:
  explicit Limits(int max_depth)
      : max_depth_(max_depth), keys_(static_cast<std::size_t>(max_depth) + 1) {}

  bool operator()(int depth, Json::parse_event_t event, Json&) {
    using Event = Json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) {
      if (depth >= max_depth_) {
        throw std::invalid_argument("nested deeper than " + std::to_string(max_depth_) + " levels");
      }
      keys_[static_cast<std::size_t>(depth) + 1] = 0;
    } else if (event == Event::key && ++keys_[static_cast<std::size_t>(depth)] > kMaxJsonKeys) {
      throw std::invalid_argument("an object with more than " + std::to_string(kMaxJsonKeys) +
                                  " keys");
    }
    return true;
  }

 private:
  int max_depth_;
  std::vector<std::size_t> keys_;  // seen so far in the open object of each depth
};

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
    return Json::parse(text, Limits(max_depth));
  } catch (const Json::exception& error) {
    throw std::invalid_argument(reason(error));
  }
}

std::string dump_json(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace meshnet
