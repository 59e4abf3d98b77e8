#pragma once

// One client connection of the HTTP server: reads requests, runs the handler, watches for the
// client's hang-up, and answers what the server itself refuses. Internal to http_server.cpp.

#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/parser.hpp>
#include <chrono>
#include <exception>
#include <memory>

#include "net/asio.h"
#include "net/http_server.h"

namespace meshnet {

/// What all connections of a server share.
struct ServerContext {
  ServerLimits limits;
  Handler handler;
  ErrorFormatter format_error;
  HeaderCheck check_header;  ///< may be empty
  bool stopping = false;     ///< every answer from now on ends its connection
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, std::shared_ptr<const ServerContext> context);

  /// Serves requests until the client, a limit or the server ends the connection.
  Awaitable<void> run();
  /// No request is in progress: closing it now loses nothing.
  bool idle() const { return idle_; }
  /// Ends the connection; a handler in progress sees it as a hang-up.
  void close();

  // For the exchange: writes within write_timeout, renewed with every part. They throw
  // boost::system::system_error.
  Awaitable<void> write_message(HttpResponse& response, bool header_only);
  Awaitable<void> write_bytes(std::string_view bytes);
  Awaitable<void> write_chunk(std::string_view bytes);
  bool stopping() const { return context_->stopping; }

 private:
  using Parser = http::request_parser<http::string_body>;

  Awaitable<bool> wait_for_bytes();
  Awaitable<bool> serve_request();
  Awaitable<boost::system::error_code> read_header(Parser& parser);
  std::exception_ptr check_header(const HttpRequest& header) const;
  Awaitable<boost::system::error_code> read_body(Parser& parser);
  Awaitable<bool> answer(HttpRequest request);
  Awaitable<void> hang_up();
  std::exception_ptr refusal(boost::system::error_code error) const;
  Awaitable<void> refuse(const HttpRequest& request, std::exception_ptr error);
  Awaitable<void> linger();

  void set_deadline(std::chrono::steady_clock::duration limit);
  void clear_deadline();

  tcp::socket socket_;
  std::shared_ptr<const ServerContext> context_;
  beast::flat_buffer buffer_;  // bytes received and not yet parsed
  asio::steady_timer deadline_;
  bool timed_out_ = false;
  bool idle_ = true;
};

}  // namespace meshnet
