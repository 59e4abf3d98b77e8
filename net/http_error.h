#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace meshnet {

/// HttpError::error of every 400: a malformed or impossible request, whatever the endpoint.
inline constexpr char kInvalidRequest[] = "invalid_request";
/// HttpError::error of a 502 for an answer that no node of ours would give.
inline constexpr char kBadAnswer[] = "bad_answer";

/// What ends a request with a status other than 200. Thrown anywhere, turned into a JSON answer
/// once, at the HTTP edge. `error` is the machine-readable code ("cache_miss",
/// kInvalidRequest, ...), what() the sentence for people. node, hop_index and layers say
/// where it happened; the edge fills in its own where they are empty.
struct HttpError : std::runtime_error {
  HttpError(unsigned status_code, std::string error_code, const std::string& message)
      : std::runtime_error(message), status(status_code), error(std::move(error_code)) {}

  unsigned status;
  std::string error;
  std::string reason;  ///< of a cache_miss: "unknown_session", ..., "caching_disabled"
  std::string param;   ///< request field at fault, for the OpenAI error shape
  std::string node;
  std::optional<int64_t> hop_index;
  std::string layers;  ///< inclusive, "0-20"
  std::optional<int> retry_after_seconds;
};

}  // namespace meshnet
