#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "net/http_server.h"

namespace meshnet {

/// The path of "/path?query", or of the absolute form "http://host/path" that proxies send.
std::string_view path_of(std::string_view target);

/// One segment of a path, with every byte that may mean something there as "%2F" and the like.
std::string percent_encode(std::string_view segment);
/// The reverse. Throws HttpError 400 for a '%' without two hex digits.
std::string percent_decode(std::string_view segment);

/// (method, path) → handler. A path may end in "/{id}", which stands for one segment.
/// Query strings are ignored.
class Router {
 public:
  void add(http::verb method, std::string path, Handler handler);
  /// The handler of this request; throws HttpError 404 (unknown path) or 405 (known path, other
  /// method; names the allowed).
  const Handler& match(const HttpRequest& request) const;

 private:
  struct Route {
    http::verb method;
    std::string path;
    Handler handler;
  };
  std::vector<Route> routes_;
};

}  // namespace meshnet
