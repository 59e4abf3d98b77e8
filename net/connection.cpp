#include "net/connection.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/experimental/parallel_group.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/chunk_encode.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/write.hpp>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "net/refusal.h"

namespace meshnet {
namespace {

using boost::system::error_code;
using Clock = std::chrono::steady_clock;

/// One read from the socket at most. Also how far a client may send ahead while its request runs.
constexpr std::size_t kReadBytes = 64 << 10;

/// After a refusal the rest of what the client sends is read and dropped for this long, so that it
/// sees the answer and not a reset connection.
constexpr std::chrono::seconds kLingerTime{5};

constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

/// The answer to one request, and how far it has come.
class ServerExchange final : public Exchange {
 public:
  ServerExchange(Connection& connection, HttpRequest received) : connection_(connection) {
    request = std::move(received);
    keep_alive_ = request.keep_alive();
  }

  Awaitable<void> send(HttpResponse response) override {
    begin(response);
    response.prepare_payload();
    if (response.result() == http::status::no_content) response.erase(http::field::content_length);
    co_await connection_.write_message(response, is_head());
    state_ = State::kDone;
  }

  Awaitable<void> begin_stream(HttpResponse head) override {
    // HTTP/1.0 knows no chunks: there the end of the connection is the end of the body.
    if (!chunked()) keep_alive_ = false;
    begin(head);
    state_ = State::kStreaming;
    streaming_ = true;
    head.body().clear();
    head.chunked(chunked());
    co_await connection_.write_message(head, true);
  }

  Awaitable<void> write(std::string_view part) override {
    if (state_ != State::kStreaming) throw std::logic_error("write() outside of a stream");
    if (part.empty() || is_head()) co_return;  // an empty chunk would end the body
    if (chunked()) {
      co_await connection_.write_chunk(part);
    } else {
      co_await connection_.write_bytes(part);
    }
  }

  Awaitable<void> end_stream() override {
    if (state_ != State::kStreaming) throw std::logic_error("end_stream() outside of a stream");
    if (chunked() && !is_head()) co_await connection_.write_bytes("0\r\n\r\n");
    state_ = State::kDone;
  }

  bool streaming() const override { return streaming_; }
  bool started() const { return state_ != State::kOpen; }
  bool done() const { return state_ == State::kDone; }
  bool keep_alive() const { return keep_alive_; }

 private:
  enum class State { kOpen, kSending, kStreaming, kDone };

  bool is_head() const { return request.method() == http::verb::head; }
  bool chunked() const { return request.version() >= 11; }

  void begin(HttpResponse& response) {
    if (started()) throw std::logic_error("the request is already answered");
    state_ = State::kSending;
    keep_alive_ = keep_alive_ && response.keep_alive() && !connection_.stopping();
    response.version(request.version());
    response.keep_alive(keep_alive_);
  }

  Connection& connection_;
  State state_ = State::kOpen;
  bool keep_alive_ = false;
  bool streaming_ = false;
};

bool expects_continue(const HttpRequest& request) {
  return request.version() >= 11 && beast::iequals(request[http::field::expect], "100-continue");
}

}  // namespace

Connection::Connection(tcp::socket socket, std::shared_ptr<const ServerContext> context)
    : socket_(std::move(socket)),
      context_(std::move(context)),
      buffer_(context_->limits.max_header + 2 * kReadBytes),
      deadline_(socket_.get_executor()) {
  buffer_.reserve(kReadBytes);
}

Awaitable<void> Connection::run() {
  // GCC 12 miscompiles co_await as a part of a condition; as an initialiser it is safe.
  bool open = true;
  while (open && !stopping()) {
    open = co_await wait_for_bytes();
    if (open) open = co_await serve_request();
  }
  close();
}

void Connection::close() {
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  socket_.close(ignored);
  clear_deadline();
}

/// True when there are bytes of a request, false when none came in time or the client has left.
Awaitable<bool> Connection::wait_for_bytes() {
  if (buffer_.size() > 0) co_return true;
  idle_ = true;
  set_deadline(context_->limits.idle_timeout);
  const auto [error, bytes] =
      co_await socket_.async_read_some(buffer_.prepare(kReadBytes), kAsTuple);
  buffer_.commit(bytes);
  co_return !error;
}

/// Reads and answers one request; true when the connection can take another.
Awaitable<bool> Connection::serve_request() {
  idle_ = false;
  Parser parser;
  error_code error = co_await read_header(parser);
  std::exception_ptr refused;
  // A Content-Length over the limit is found when the whole header is there. Who may not call at
  // all is told that first.
  if (!error || error == http::error::body_limit) refused = check_header(parser.get());
  if (!error && !refused) error = co_await read_body(parser);
  clear_deadline();
  if (!error && !refused) co_return co_await answer(parser.release());
  if (!refused) refused = refusal(error);
  if (refused) co_await refuse(parser.get(), refused);
  co_return false;
}

Awaitable<error_code> Connection::read_header(Parser& parser) {
  const ServerLimits& limits = context_->limits;
  parser.header_limit(static_cast<std::uint32_t>(limits.max_header));
  parser.body_limit(limits.max_body);
  set_deadline(limits.read_timeout);
  const auto [error, bytes] = co_await http::async_read_header(socket_, buffer_, parser, kAsTuple);
  co_return error;
}

/// Why a request is refused before its body is read; nothing when it is not.
std::exception_ptr Connection::check_header(const HttpRequest& header) const {
  try {
    check_transfer_encoding(header);
    if (context_->check_header) context_->check_header(header);
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

Awaitable<error_code> Connection::read_body(Parser& parser) {
  if (!parser.is_done() && expects_continue(parser.get())) co_await write_bytes(kContinue);
  parser.eager(true);
  while (!parser.is_done()) {
    set_deadline(context_->limits.read_timeout);
    const auto [error, bytes] = co_await http::async_read_some(socket_, buffer_, parser, kAsTuple);
    if (error) co_return error;
  }
  co_return error_code{};
}

/// Runs the handler until it ends or the client hangs up, whichever is first; the other is
/// cancelled, and both have ended before this goes on.
Awaitable<bool> Connection::answer(HttpRequest request) {
  ServerExchange exchange(*this, std::move(request));
  const auto executor = co_await asio::this_coro::executor;
  auto group = asio::experimental::make_parallel_group(
      asio::co_spawn(
          executor, [&] { return context_->handler(exchange); }, asio::deferred),
      asio::co_spawn(executor, [this] { return hang_up(); }, asio::deferred));
  auto [order, error, ignored] =
      co_await group.async_wait(asio::experimental::wait_for_one(), asio::use_awaitable);
  const bool client_left = order[0] != 0;
  if (client_left) co_return false;
  if (!error && !exchange.started()) {
    error = std::make_exception_ptr(std::logic_error("the handler gave no answer"));
  }
  if (error && !exchange.started()) {
    co_await exchange.send(context_->format_error(exchange.request, error));
    error = nullptr;
  }
  // After an error in the middle of an answer its missing end is all that can still tell the
  // client.
  co_return !error && exchange.done() && exchange.keep_alive();
}

/// Returns when the client has closed its side. Requests that it sends ahead are no hang-up: they
/// are kept in the buffer. With the buffer full only a failing write will tell.
Awaitable<void> Connection::hang_up() {
  while (buffer_.size() < kReadBytes) {
    const auto [error, bytes] =
        co_await socket_.async_read_some(buffer_.prepare(kReadBytes), kAsTuple);
    buffer_.commit(bytes);
    if (error) co_return;
  }
  asio::steady_timer never(socket_.get_executor(), Clock::time_point::max());
  co_await never.async_wait(kAsTuple);
}

/// Why a request that could not be read is refused; nothing when nobody is there to be told.
std::exception_ptr Connection::refusal(error_code error) const {
  const auto refused = unreadable(error, timed_out_, context_->limits);
  return refused ? std::make_exception_ptr(*refused) : nullptr;
}

Awaitable<void> Connection::refuse(const HttpRequest& request, std::exception_ptr error) {
  HttpResponse response = context_->format_error(request, error);
  response.keep_alive(false);
  response.prepare_payload();
  co_await write_message(response, request.method() == http::verb::head);
  co_await linger();
}

/// Ends our side, then drops what still comes: a body over the limit is longer than the limit, so
/// only time bounds it.
Awaitable<void> Connection::linger() {
  idle_ = true;
  error_code error;
  socket_.shutdown(tcp::socket::shutdown_send, error);
  set_deadline(kLingerTime);
  while (!error && !timed_out_) {
    buffer_.clear();
    std::size_t bytes = 0;
    std::tie(error, bytes) =
        co_await socket_.async_read_some(buffer_.prepare(kReadBytes), kAsTuple);
  }
}

Awaitable<void> Connection::write_message(HttpResponse& response, bool header_only) {
  http::response_serializer<http::string_body> serializer(response);
  serializer.split(header_only);
  while (header_only ? !serializer.is_header_done() : !serializer.is_done()) {
    set_deadline(context_->limits.write_timeout);
    co_await http::async_write_some(socket_, serializer, asio::use_awaitable);
  }
  clear_deadline();
}

Awaitable<void> Connection::write_bytes(std::string_view bytes) {
  set_deadline(context_->limits.write_timeout);
  co_await asio::async_write(
      socket_, asio::buffer(bytes.data(), bytes.size()), asio::use_awaitable);
  clear_deadline();
}

Awaitable<void> Connection::write_chunk(std::string_view bytes) {
  set_deadline(context_->limits.write_timeout);
  const auto chunk = http::make_chunk(asio::const_buffer(bytes.data(), bytes.size()));
  co_await asio::async_write(socket_, chunk, asio::use_awaitable);
  clear_deadline();
}

/// When the limit passes, the socket's pending operations end with operation_aborted. Unlike
/// beast::tcp_stream's limit this leaves the socket open, so that the client can be answered 408.
void Connection::set_deadline(Clock::duration limit) {
  timed_out_ = false;
  deadline_.expires_after(limit);
  deadline_.async_wait([weak = weak_from_this()](error_code error) {
    const auto self = weak.lock();
    // A wait that had already ended when the limit was renewed still gets here, without an error.
    if (!self || error || self->deadline_.expiry() > Clock::now()) return;
    self->timed_out_ = true;
    self->socket_.cancel(error);
  });
}

void Connection::clear_deadline() { deadline_.expires_at(Clock::time_point::max()); }

}  // namespace meshnet
