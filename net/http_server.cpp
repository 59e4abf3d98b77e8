#include "net/http_server.h"

#include <sys/resource.h>

#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/write.hpp>
#include <set>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "net/connection.h"
#include "net/refusal.h"

namespace meshnet {
namespace {

using boost::system::error_code;
using Clock = std::chrono::steady_clock;

/// Pause after a failed accept: with no file descriptors left the next would fail at once, too.
constexpr std::chrono::milliseconds kAcceptRetry{50};

tcp::acceptor bind(const asio::any_io_executor& executor, const tcp::endpoint& listen) {
  tcp::acceptor acceptor(executor);
  try {
    acceptor.open(listen.protocol());
    acceptor.set_option(asio::socket_base::reuse_address(true));  // restart within TIME_WAIT
    if (listen.address().is_v6()) acceptor.set_option(asio::ip::v6_only(false));
    acceptor.bind(listen);
    acceptor.listen();
  } catch (const boost::system::system_error& error) {
    std::ostringstream text;
    if (error.code() == asio::error::address_in_use) {
      text << listen << " is in use by another process";
    } else {
      text << "cannot listen on " << listen << ": " << error.code().message();
    }
    throw std::runtime_error(text.str());
  }
  return acceptor;
}

/// Answers a connection beyond the limit and closes it, without waiting for anything.
void turn_away(const ServerContext& context, tcp::socket socket) {
  auto refused = std::make_exception_ptr(too_many_connections(context.limits));
  HttpResponse response = context.format_error(HttpRequest(), std::move(refused));
  response.keep_alive(false);
  response.prepare_payload();
  error_code error;
  socket.non_blocking(true, error);
  http::write(socket, response, error);
  socket.shutdown(tcp::socket::shutdown_send, error);
  // What has already come: left unread, it would turn the close into a reset.
  std::array<char, 16 << 10> dropped;
  socket.read_some(asio::buffer(dropped), error);
}

}  // namespace

std::size_t default_max_connections() {
  rlimit files{RLIM_INFINITY, RLIM_INFINITY};
  ::getrlimit(RLIMIT_NOFILE, &files);
  return files.rlim_cur / 4 * 3;
}

struct HttpServer::State {
  State(const asio::any_io_executor& executor,
        const tcp::endpoint& listen,
        std::shared_ptr<ServerContext> shared)
      : acceptor(bind(executor, listen)), context(std::move(shared)), changed(executor) {}

  tcp::acceptor acceptor;
  std::shared_ptr<ServerContext> context;
  std::set<Connection*> connections;  // each lives in its coroutine, which enters and removes it
  asio::steady_timer changed;         // cancelled when the last connection has ended

  void refuse_new() {
    context->stopping = true;
    error_code ignored;
    acceptor.close(ignored);
  }

  void close_all() {
    for (Connection* connection : connections) connection->close();
  }

  Awaitable<void> wait_for_end(Clock::time_point limit) {
    while (!connections.empty() && Clock::now() < limit) {
      changed.expires_at(limit);
      co_await changed.async_wait(kAsTuple);
    }
  }

  // The coroutines hold the state, so that they may end after the server object.
  static Awaitable<void> serve(std::shared_ptr<State> state, tcp::socket socket);
  static Awaitable<void> accept(std::shared_ptr<State> state);
};

Awaitable<void> HttpServer::State::serve(std::shared_ptr<State> state, tcp::socket socket) {
  struct Entry {
    State& state;
    Connection& connection;
    Entry(State& in, Connection& entered) : state(in), connection(entered) {
      state.connections.insert(&connection);
    }
    Entry(const Entry&) = delete;
    ~Entry() {
      state.connections.erase(&connection);
      if (state.connections.empty()) state.changed.cancel();
    }
  };
  const auto connection = std::make_shared<Connection>(std::move(socket), state->context);
  const Entry entry(*state, *connection);
  co_await connection->run();
}

Awaitable<void> HttpServer::State::accept(std::shared_ptr<State> state) {
  const auto executor = state->acceptor.get_executor();
  while (!state->context->stopping) {
    auto [error, socket] = co_await state->acceptor.async_accept(kAsTuple);
    if (state->context->stopping) co_return;
    if (error) {
      asio::steady_timer pause(executor, kAcceptRetry);
      co_await pause.async_wait(kAsTuple);
      continue;
    }
    if (state->connections.size() >= state->context->limits.max_connections) {
      turn_away(*state->context, std::move(socket));
      continue;
    }
    socket.set_option(tcp::no_delay(true), error);
    asio::co_spawn(executor, serve(state, std::move(socket)), asio::detached);
  }
}

HttpServer::HttpServer(asio::any_io_executor executor,
                       const tcp::endpoint& listen,
                       ServerLimits limits,
                       Handler handler,
                       ErrorFormatter format_error,
                       HeaderCheck check_header) {
  auto context = std::make_shared<ServerContext>();
  context->limits = limits;
  context->handler = std::move(handler);
  context->format_error = std::move(format_error);
  context->check_header = std::move(check_header);
  state_ = std::make_shared<State>(executor, listen, std::move(context));
  asio::co_spawn(executor, State::accept(state_), asio::detached);
}

HttpServer::~HttpServer() {
  state_->refuse_new();
  state_->close_all();
}

tcp::endpoint HttpServer::local_endpoint() const { return state_->acceptor.local_endpoint(); }

Awaitable<void> HttpServer::stop() {
  const auto state = state_;
  state->refuse_new();
  for (Connection* connection : state->connections) {
    if (connection->idle()) connection->close();
  }
  co_await state->wait_for_end(Clock::now() + state->context->limits.shutdown_grace);
  state->close_all();
  co_await state->wait_for_end(Clock::time_point::max());
}

}  // namespace meshnet
