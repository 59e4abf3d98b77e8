#pragma once

// An HttpClient on its own thread, and what its peers say.

#include <gmock/gmock.h>

#include <memory>
#include <string>

#include "loopback.h"
#include "net/http_client.h"

namespace meshnet::testing {

using std::chrono::milliseconds;
using std::chrono::seconds;

inline Url local(uint16_t port) { return {"127.0.0.1", port}; }

inline HttpRequest post(std::string body) {
  HttpRequest request(http::verb::post, "/forward", 11);
  request.body() = std::move(body);
  return request;
}

class HttpClientTest : public ::testing::Test {
 public:
  explicit HttpClientTest(ClientLimits limits = {}) {
    io_.call([&] { client_ = std::make_unique<HttpClient>(io_.executor(), limits); });
  }
  ~HttpClientTest() override {
    io_.call([&] { client_.reset(); });
  }

 protected:
  std::future<HttpResponse> start(const Url& url, std::string body, milliseconds timeout) {
    return io_.start(send(url, post(std::move(body)), timeout));
  }
  HttpResponse ask(uint16_t port, std::string body, milliseconds timeout = seconds(5)) {
    return await(start(local(port), std::move(body), timeout));
  }
  /// The kind and message of the failure.
  static PeerError failure(std::future<HttpResponse> future) {
    try {
      const auto response = await(std::move(future));
      ADD_FAILURE() << "answered " << response.result_int();
    } catch (const PeerError& error) {
      return error;
    }
    return {PeerError::Kind::kUnreachable, "no failure"};
  }

  Awaitable<HttpResponse> send(Url url, HttpRequest request, milliseconds timeout) {
    co_return co_await client_->send(url, std::move(request), timeout);
  }

  IoThread io_;
  std::unique_ptr<HttpClient> client_;
};

inline std::string ok(const std::string& body, const std::string& header = "") {
  return "HTTP/1.1 200 OK\r\n" + header + "Content-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

}  // namespace meshnet::testing
