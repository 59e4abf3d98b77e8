#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "net/asio.h"

namespace meshnet {

/// Three quarters of the files that this process may have open: the others are for hops and
/// weights.
std::size_t default_max_connections();

struct ServerLimits {
  std::size_t max_body = 64 << 20;    ///< bytes; a larger body is answered 413
  std::size_t max_header = 16 << 10;  ///< bytes; larger is answered 431
  std::size_t max_connections =
      default_max_connections();          ///< one more is answered 503 and closed at once
  std::chrono::seconds idle_timeout{75};  ///< between requests of one connection
  std::chrono::seconds read_timeout{
      30};  ///< to receive one request; for the body, renewed with every part received
  std::chrono::seconds write_timeout{30};   ///< for each write, renewed before it
  std::chrono::seconds shutdown_grace{10};  ///< requests in progress get this long after stop()
};

/// One request in progress. Exactly one of send() or begin_stream() answers it.
/// When the client closes its connection, the handler's coroutine is cancelled (operation_aborted
/// at its co_await).
class Exchange {
 public:
  virtual ~Exchange() = default;
  HttpRequest request;
  /// Answers with a whole response; Content-Length, keep-alive and version are set here.
  virtual Awaitable<void> send(HttpResponse response) = 0;
  /// Starts a chunked response; then write() each part (one flush each), then end_stream().
  virtual Awaitable<void> begin_stream(HttpResponse head) = 0;
  virtual Awaitable<void> write(std::string_view part) = 0;
  virtual Awaitable<void> end_stream() = 0;
  /// True once begin_stream() was called: the status can no longer change.
  virtual bool streaming() const = 0;
};

using Handler = std::function<Awaitable<void>(Exchange&)>;

/// Looks at a request whose header has been read and whose body has not; throws HttpError to refuse
/// it. For what must be known before a client may send much: whether it may call this endpoint.
using HeaderCheck = std::function<void(const HttpRequest& header)>;

/// Turns what a handler or a header check threw, or what the server itself refuses (400, 408, 413,
/// 431, 501, 503), into the answer. The request is empty where none was read.
using ErrorFormatter =
    std::function<HttpResponse(const HttpRequest& request, std::exception_ptr error)>;

/// Listener and sessions: one coroutine per connection on `executor`. Destroying it closes
/// everything.
class HttpServer {
 public:
  /// Binds at once; throws std::runtime_error naming the address when it cannot ("0.0.0.0:8001 is
  /// in use by another process").
  HttpServer(asio::any_io_executor executor,
             const tcp::endpoint& listen,
             ServerLimits limits,
             Handler handler,
             ErrorFormatter format_error,
             HeaderCheck check_header = nullptr);
  ~HttpServer();

  tcp::endpoint local_endpoint() const;  ///< the real port when 0 was asked for
  /// Stops accepting, lets requests in progress end within the grace period, then cancels their
  /// handlers and closes them. Idle connections close at once. Returns when the last handler has
  /// ended: what handlers use may be destroyed then.
  Awaitable<void> stop();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace meshnet
