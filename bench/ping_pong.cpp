/// Times a request and its answer over TCP on loopback, again and again on one connection.
///
///   ping_pong REPETITIONS ANSWER_BYTES       with a child that sends that many bytes back
///   ping_pong REPETITIONS http PORT          with an HTTP server
///
/// The request is read from stdin. Prints a line for each repetition: its microseconds and, of
/// HTTP, the value of Server-Timing.

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <string>
#include <string_view>

namespace {

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

void set_no_delay(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

void send_all(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) fail("send");
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

/// Appends what has arrived; false at the end of the stream.
bool receive_some(int socket, std::string& bytes) {
  char buffer[1 << 16];
  const ssize_t got = recv(socket, buffer, sizeof(buffer), 0);
  if (got < 0) fail("recv");
  bytes.append(buffer, static_cast<std::size_t>(got));
  return got > 0;
}

void receive_more(int socket, std::string& bytes) {
  if (!receive_some(socket, bytes)) {
    std::fprintf(stderr, "the connection ended\n");
    std::exit(1);
  }
}

/// Listens on a free port, and answers in a child until the connection ends.
int start_echo(std::size_t request_bytes, std::size_t answer_bytes) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = loopback(0);
  socklen_t length = sizeof(address);
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0) fail("bind");
  if (listen(listener, 1) != 0) fail("listen");
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
  if (fork() != 0) return ntohs(address.sin_port);

  const int peer = accept(listener, nullptr, nullptr);
  set_no_delay(peer);
  const std::string answer(answer_bytes, 'x');
  for (std::string request; receive_some(peer, request);) {
    if (request.size() < request_bytes) continue;
    request.clear();
    send_all(peer, answer);
  }
  std::_Exit(0);
}

std::string header_value(std::string_view headers, std::string_view name) {
  const auto at = headers.find("\r\n" + std::string(name) + ": ");
  if (at == std::string_view::npos) return "";
  const auto value = headers.substr(at + name.size() + 4);
  return std::string(value.substr(0, value.find('\r')));
}

/// Reads one answer whole; returns its Server-Timing.
std::string receive_http(int socket) {
  std::string bytes;
  std::size_t end = 0;
  while ((end = bytes.find("\r\n\r\n")) == std::string::npos) receive_more(socket, bytes);
  const std::string headers = bytes.substr(0, end + 2);
  const std::size_t body = std::stoul(header_value(headers, "Content-Length"));
  while (bytes.size() < end + 4 + body) receive_more(socket, bytes);
  if (headers.substr(9, 3) == "200") return header_value(headers, "Server-Timing");
  std::fprintf(stderr, "%s\n", bytes.c_str());
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const int repetitions = std::atoi(argv[1]);
  const bool http = argc == 4;
  const std::string request{std::istreambuf_iterator<char>(std::cin), {}};
  const std::size_t answer_bytes = http ? 0 : std::stoul(argv[2]);
  const int port = http ? std::atoi(argv[3]) : start_echo(request.size(), answer_bytes);

  const int connection = socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in address = loopback(port);
  if (connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    fail("connect");
  set_no_delay(connection);
  for (int repetition = 0; repetition < repetitions; ++repetition) {
    const auto started = std::chrono::steady_clock::now();
    send_all(connection, request);
    std::string timing;
    if (http) {
      timing = receive_http(connection);
    } else {
      for (std::string answer; answer.size() < answer_bytes;) receive_more(connection, answer);
    }
    const std::chrono::duration<double, std::micro> elapsed =
        std::chrono::steady_clock::now() - started;
    std::printf("%.2f %s\n", elapsed.count(), timing.c_str());
  }
  close(connection);
  while (!http && wait(nullptr) > 0) {
  }
}
