#include "net/router.h"

#include <charconv>
#include <utility>

#include "net/http_error.h"

namespace meshnet {
namespace {

constexpr std::string_view kIdSegment = "/{id}";

bool matches(std::string_view pattern, std::string_view path) {
  if (!pattern.ends_with(kIdSegment)) return pattern == path;
  const std::string_view folder = pattern.substr(0, pattern.size() - kIdSegment.size() + 1);
  return path.size() > folder.size() && path.starts_with(folder) &&
         path.find('/', folder.size()) == std::string_view::npos;
}

}  // namespace

std::string_view path_of(std::string_view target) {
  constexpr std::string_view kScheme = "http://";
  if (target.starts_with(kScheme)) {
    const auto slash = target.find('/', kScheme.size());
    target = slash == std::string_view::npos ? "/" : target.substr(slash);
  }
  return target.substr(0, target.find('?'));
}

std::string percent_encode(std::string_view segment) {
  constexpr std::string_view kUnreserved =  // RFC 3986, 2.3
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string encoded;
  for (const char byte : segment) {
    if (kUnreserved.find(byte) != std::string_view::npos) {
      encoded += byte;
    } else {
      const auto value = static_cast<unsigned char>(byte);
      encoded += {'%', kHex[value >> 4], kHex[value & 15]};
    }
  }
  return encoded;
}

std::string percent_decode(std::string_view segment) {
  std::string decoded;
  for (std::size_t i = 0; i < segment.size(); ++i) {
    if (segment[i] != '%') {
      decoded += segment[i];
      continue;
    }
    const std::string_view digits = segment.substr(i + 1, 2);
    unsigned value = 0;
    const auto end = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16).ptr;
    if (digits.size() != 2 || end != digits.data() + 2) {
      throw HttpError(400,
                      kInvalidRequest,
                      "path: expected two hex digits after '%' in '" + std::string(segment) + "'");
    }
    decoded += static_cast<char>(value);
    i += 2;
  }
  return decoded;
}

void Router::add(http::verb method, std::string path, Handler handler) {
  routes_.push_back({method, std::move(path), std::move(handler)});
}

const Handler& Router::match(const HttpRequest& request) const {
  const std::string_view path = path_of(request.target());
  // HEAD is a GET whose body the server leaves out.
  const auto method = request.method() == http::verb::head ? http::verb::get : request.method();
  std::string allowed;
  for (const Route& route : routes_) {
    if (!matches(route.path, path)) continue;
    if (route.method == method) return route.handler;
    allowed += (allowed.empty() ? "" : ", ") + std::string(http::to_string(route.method));
  }
  if (allowed.empty()) {
    throw HttpError(404, "not_found", "there is no " + std::string(path) + " here");
  }
  throw HttpError(
      405,
      "method_not_allowed",
      std::string(path) + " takes " + allowed + ", got " + std::string(request.method_string()));
}

}  // namespace meshnet
