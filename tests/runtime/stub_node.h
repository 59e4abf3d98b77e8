#pragma once

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "net/http_client.h"
#include "net/http_server.h"

namespace meshnet {

/// A server on a free loopback port that answers with a function and remembers what it was asked.
class StubNode {
 public:
  using Answer = std::function<Awaitable<HttpResponse>(const HttpRequest&)>;

  StubNode(asio::io_context& io, Answer answer)
      : answer_(std::move(answer)),
        server_(
            io.get_executor(),
            tcp::endpoint(asio::ip::address_v4::loopback(), 0),
            ServerLimits{},
            [this](Exchange& exchange) -> Awaitable<void> {
              requests.push_back(exchange.request);
              co_await exchange.send(co_await answer_(exchange.request));
            },
            [](const HttpRequest&, std::exception_ptr) {
              return HttpResponse{http::status::internal_server_error, 11};
            }) {}

  Url url() const { return {"127.0.0.1", server_.local_endpoint().port()}; }

  std::vector<HttpRequest> requests;

 private:
  Answer answer_;
  HttpServer server_;
};

/// Runs a coroutine to its end on `io` and returns its result, or throws what it threw.
template <class T>
T run_until_done(asio::io_context& io, Awaitable<T> coroutine) {
  std::exception_ptr error;
  std::optional<T> result;
  asio::co_spawn(io, std::move(coroutine), [&](std::exception_ptr thrown, T value) {
    error = thrown;
    result = std::move(value);
    io.stop();
  });
  io.restart();
  io.run();
  if (error) std::rethrow_exception(error);
  return std::move(*result);
}

}  // namespace meshnet
