#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "net/asio.h"

namespace meshnet {

/// "http://host:port" with an optional trailing slash; IPv6 hosts are bracketed. Scheme http only,
/// the port is required.
struct Url {
  std::string host;  ///< without brackets
  uint16_t port = 0;
  bool operator==(const Url&) const = default;
};
/// Throws std::invalid_argument saying what is wrong ("an IPv6 address needs brackets:
/// http://[::1]:8001").
Url parse_url(std::string_view text);
/// "[::1]:8001" or "host:8001", for Host headers and logs.
std::string authority(const Url& url);
/// "0.0.0.0:8001" or "[::]:8001" → endpoint. Throws std::invalid_argument saying what is wrong.
tcp::endpoint parse_listen(std::string_view text);

/// A peer that could not be reached, closed the connection, or answered too late.
struct PeerError : std::runtime_error {
  enum class Kind { kUnreachable, kTimeout };
  PeerError(Kind error_kind, const std::string& message)
      : std::runtime_error(message), kind(error_kind) {}
  Kind kind;
};

struct ClientLimits {
  std::chrono::milliseconds connect_timeout{2000};
  std::size_t max_body = 64 << 20;        ///< bytes of an answer
  std::chrono::seconds idle_timeout{60};  ///< a connection idle for longer is closed, not reused
};

/// Keep-alive connections to peers, TCP_NODELAY. For one executor without parallelism: no locks.
/// A request on a reused idle connection that closes before the first response byte is sent again
/// once on a new connection; nothing else is retried.
class HttpClient {
 public:
  HttpClient(asio::any_io_executor executor, ClientLimits limits);
  ~HttpClient();

  /// Sends and returns the whole answer, whatever its status. `timeout` covers everything after the
  /// connect. Throws PeerError. Cancelling the coroutine closes the connection.
  Awaitable<HttpResponse> send(const Url& url,
                               HttpRequest request,
                               std::chrono::milliseconds timeout);

 private:
  struct Pool;
  std::shared_ptr<Pool> pool_;
};

}  // namespace meshnet
