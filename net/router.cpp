#include "net/router.h"

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
