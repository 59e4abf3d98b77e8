#include "net/refusal.h"

#include <boost/beast/core/string.hpp>
#include <boost/beast/http/error.hpp>
#include <iterator>
#include <string>

namespace meshnet {

std::optional<HttpError> unreadable(boost::system::error_code error,
                                    bool timed_out,
                                    const ServerLimits& limits) {
  if (timed_out) {
    return HttpError(
        408,
        "request_timeout",
        "the request did not arrive within " + std::to_string(limits.read_timeout.count()) + " s");
  }
  if (error == http::error::body_limit) {
    return HttpError(413,
                     "body_too_large",
                     "the body is larger than the limit of " + std::to_string(limits.max_body) +
                         " bytes (limits.max_body)");
  }
  if (error == http::error::header_limit) {
    return HttpError(
        431,
        "header_too_large",
        "the header is larger than the limit of " + std::to_string(limits.max_header) + " bytes");
  }
  const auto& of_http = boost::system::error_code(http::error::end_of_stream).category();
  if (error.category() != of_http) return std::nullopt;
  return HttpError(400, kInvalidRequest, "malformed HTTP request: " + error.message());
}

// Beast hands on a body in any other coding as it came, or takes it for the next request.
void check_transfer_encoding(const HttpRequest& header) {
  const auto [first, last] = header.equal_range(http::field::transfer_encoding);
  if (first == last) return;
  if (std::next(first) == last && beast::iequals(first->value(), "chunked")) return;
  throw HttpError(501,
                  "unsupported_transfer_encoding",
                  "Transfer-Encoding: expected chunked and nothing else, got '" +
                      std::string(first->value()) + "'");
}

HttpError too_many_connections(const ServerLimits& limits) {
  HttpError error(
      503,
      "too_many_connections",
      "this node already has " + std::to_string(limits.max_connections) + " connections");
  error.retry_after_seconds = 1;
  return error;
}

}  // namespace meshnet
