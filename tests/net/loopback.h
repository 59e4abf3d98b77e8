#pragma once

// Both ends of an HTTP connection on loopback: an io_context on its own thread for our code, and
// plain blocking sockets for the peer, so that a test decides about every byte.

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_future.hpp>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "net/asio.h"
#include "net/http_server.h"

namespace meshnet::testing {

/// Whatever a test waits for comes within this time, or the test fails.
inline constexpr std::chrono::seconds kPatience{10};

template <class T>
T await(std::future<T> future) {
  if (future.wait_for(kPatience) != std::future_status::ready) {
    throw std::runtime_error("nothing came within the patience of a test");
  }
  return future.get();
}

/// The one thread on which servers and clients under test run.
class IoThread {
 public:
  IoThread() : work_(context_.get_executor()), thread_([this] { context_.run(); }) {}
  ~IoThread() {
    context_.stop();
    thread_.join();
  }

  asio::any_io_executor executor() { return context_.get_executor(); }
  template <class T>
  std::future<T> start(Awaitable<T> coroutine) {
    return asio::co_spawn(context_, std::move(coroutine), asio::use_future);
  }
  template <class T>
  T run(Awaitable<T> coroutine) {
    return await(start(std::move(coroutine)));
  }
  template <class Function>
  auto call(Function function) {
    std::packaged_task<std::invoke_result_t<Function>()> task(std::move(function));
    auto result = task.get_future();
    // In a lambda, since Asio takes a bare packaged_task for a completion token.
    asio::post(context_, [task = std::move(task)]() mutable { task(); });
    return await(std::move(result));
  }

 private:
  asio::io_context context_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::thread thread_;
};

struct RawAnswer {
  int status = 0;
  std::string head;  ///< status line and headers
  std::string body;
};

/// One end of a TCP connection with blocking reads that give up after kPatience.
class RawSocket {
 public:
  explicit RawSocket(int descriptor);
  static RawSocket connect(uint16_t port);
  static RawSocket unconnected();
  void connect_to(uint16_t port);
  RawSocket(RawSocket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  ~RawSocket() { close(); }

  void send(std::string_view bytes);
  /// False once the peer no longer takes bytes.
  bool try_send(std::string_view bytes);
  /// At least one byte, or "" when the peer has closed (by reset, too).
  std::string receive();
  std::string receive_until(std::string_view end);
  std::string receive_all();
  /// An answer with Content-Length, or without a body when `head_only`.
  RawAnswer receive_answer(bool head_only = false);
  RawAnswer request(std::string_view bytes);
  void shutdown_send();
  void close();

 private:
  int descriptor_;
  std::string received_;  // and not yet returned
};

/// A listening socket on a free loopback port, for peers that a test plays itself.
class RawListener {
 public:
  RawListener();
  ~RawListener();
  uint16_t port() const { return port_; }
  RawSocket accept();
  /// True when someone is connecting right now or within the time.
  bool pending(std::chrono::milliseconds time);

 private:
  int descriptor_;
  uint16_t port_;
};

/// A server under test. Destroyed on its own thread.
class TestServer {
 public:
  explicit TestServer(Handler handler, ServerLimits limits = {}, HeaderCheck check = nullptr);
  ~TestServer();
  uint16_t port() const { return port_; }
  IoThread& io() { return io_; }
  HttpServer& server() { return *server_; }
  RawSocket connect() const { return RawSocket::connect(port_); }

 private:
  IoThread io_;
  std::unique_ptr<HttpServer> server_;
  uint16_t port_ = 0;
};

/// HttpError → its status and a node error; anything else → 500 "internal_error".
HttpResponse format_test_error(const HttpRequest& request, std::exception_ptr error);
HttpResponse text_answer(std::string body);
/// A handler: answers "TARGET:BODY".
Awaitable<void> echo(Exchange& exchange);

inline constexpr std::string_view kGet = "GET /a HTTP/1.1\r\nHost: x\r\n\r\n";

}  // namespace meshnet::testing
