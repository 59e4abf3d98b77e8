#include "loopback.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "net/http_error.h"
#include "net/openai.h"

// libstdc++ counts the references of an exception_ptr in code that is not instrumented, so the
// thread sanitizer takes the last release on another thread than the catch for a race.
// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming): the sanitizer's name
extern "C" const char* __tsan_default_suppressions() {
  return "race:std::__exception_ptr::exception_ptr::_M_release\n";
}

namespace meshnet::testing {
namespace {

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

int open_socket() {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) fail("socket");
  return descriptor;
}

}  // namespace

RawSocket::RawSocket(int descriptor) : descriptor_(descriptor) {
  const timeval patience{kPatience.count(), 0};
  ::setsockopt(descriptor_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  ::setsockopt(descriptor_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
}

RawSocket RawSocket::unconnected() { return RawSocket(open_socket()); }

RawSocket RawSocket::connect(uint16_t port) {
  RawSocket socket = unconnected();
  socket.connect_to(port);
  return socket;
}

void RawSocket::connect_to(uint16_t port) {
  const sockaddr_in address = loopback(port);
  if (::connect(descriptor_, reinterpret_cast<const sockaddr*>(&address), sizeof address) < 0) {
    fail("connect");
  }
}

void RawSocket::send(std::string_view bytes) {
  if (!try_send(bytes)) fail("send");
}

bool RawSocket::try_send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

std::string RawSocket::receive() {
  if (!received_.empty()) return std::exchange(received_, {});
  std::string bytes(64 << 10, '\0');
  const ssize_t got = ::recv(descriptor_, bytes.data(), bytes.size(), 0);
  if (got < 0 && errno != ECONNRESET) fail("recv");
  bytes.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  return bytes;
}

std::string RawSocket::receive_until(std::string_view end) {
  std::string bytes;
  for (;;) {
    const std::string part = receive();
    bytes += part;
    if (const auto found = bytes.find(end); found != std::string::npos) {
      received_ = bytes.substr(found + end.size());
      bytes.resize(found + end.size());
      return bytes;
    }
    if (part.empty()) throw std::runtime_error("closed after: " + bytes);
  }
}

std::string RawSocket::receive_all() {
  std::string bytes;
  for (std::string part = receive(); !part.empty(); part = receive()) bytes += part;
  return bytes;
}

RawAnswer RawSocket::receive_answer(bool head_only) {
  RawAnswer answer;
  answer.head = receive_until("\r\n\r\n");
  answer.status = std::stoi(answer.head.substr(answer.head.find(' ')));
  constexpr std::string_view kLength = "Content-Length: ";
  const auto length = answer.head.find(kLength);
  if (length == std::string::npos || head_only) return answer;
  const std::size_t size = std::stoul(answer.head.substr(length + kLength.size()));
  while (answer.body.size() < size) {
    const std::string part = receive();
    if (part.empty()) throw std::runtime_error("closed within the body");
    answer.body += part;
  }
  received_ = answer.body.substr(size);
  answer.body.resize(size);
  return answer;
}

RawAnswer RawSocket::request(std::string_view bytes) {
  send(bytes);
  return receive_answer();
}

void RawSocket::shutdown_send() { ::shutdown(descriptor_, SHUT_WR); }

void RawSocket::close() {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

RawListener::RawListener() : descriptor_(open_socket()) {
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  if (::bind(descriptor_, reinterpret_cast<sockaddr*>(&address), size) < 0) fail("bind");
  if (::listen(descriptor_, 16) < 0) fail("listen");
  ::getsockname(descriptor_, reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.sin_port);
}

RawListener::~RawListener() { ::close(descriptor_); }

bool RawListener::pending(std::chrono::milliseconds time) {
  pollfd poll{descriptor_, POLLIN, 0};
  return ::poll(&poll, 1, static_cast<int>(time.count())) > 0;
}

RawSocket RawListener::accept() {
  if (!pending(kPatience)) throw std::runtime_error("nobody connected");
  return RawSocket(::accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC));
}

TestServer::TestServer(Handler handler, ServerLimits limits, HeaderCheck check) {
  io_.call([&] {
    const tcp::endpoint any_port(asio::ip::address_v4::loopback(), 0);
    server_ = std::make_unique<HttpServer>(
        io_.executor(), any_port, limits, std::move(handler), format_test_error, std::move(check));
    port_ = server_->local_endpoint().port();
  });
}

TestServer::~TestServer() {
  io_.call([&] { server_.reset(); });
}

HttpResponse text_answer(std::string body) {
  HttpResponse response(http::status::ok, 11);
  response.body() = std::move(body);
  return response;
}

Awaitable<void> echo(Exchange& exchange) {
  co_await exchange.send(
      text_answer(std::string(exchange.request.target()) + ":" + exchange.request.body()));
}

HttpResponse format_test_error(const HttpRequest&, std::exception_ptr error) {
  HttpResponse response(http::status::internal_server_error, 11);
  try {
    std::rethrow_exception(error);
  } catch (const HttpError& known) {
    response.result(known.status);
    response.body() = format_node_error(known);
  } catch (const std::exception& other) {
    response.body() = format_node_error(HttpError(500, "internal_error", other.what()));
  }
  return response;
}

}  // namespace meshnet::testing
