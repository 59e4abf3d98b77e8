#include <gmock/gmock.h>

#include <algorithm>

#include "loopback.h"
#include "net/http_error.h"

namespace meshnet::testing {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

Awaitable<void> answer_size(Exchange& exchange) {
  co_await exchange.send(text_answer(std::to_string(exchange.request.body().size())));
}

ServerLimits small_limits() {
  ServerLimits limits;
  limits.max_body = 1000;
  limits.max_header = 2000;
  limits.read_timeout = seconds(1);
  limits.idle_timeout = seconds(1);
  return limits;
}

std::string post_head(std::size_t length) {
  return "POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(length) + "\r\n\r\n";
}

/// The answer to something that the server refuses, and that the connection then ends.
RawAnswer refused(TestServer& server, const std::string& bytes) {
  RawSocket client = server.connect();
  client.try_send(bytes);
  RawAnswer answer = client.receive_answer();
  EXPECT_THAT(answer.head, HasSubstr("Connection: close"));
  EXPECT_EQ(client.receive_all(), "");
  return answer;
}

/// The server still serves.
void expect_alive(TestServer& server) {
  EXPECT_EQ(server.connect().request(post_head(2) + "ab").body, "2");
}

TEST(HttpLimits, BodyUpToTheLimit) {
  TestServer server(answer_size, small_limits());
  RawSocket client = server.connect();
  EXPECT_EQ(client.request(post_head(1000) + std::string(1000, 'x')).body, "1000");
}

TEST(HttpLimits, LargerBodyIs413) {
  TestServer server(answer_size, small_limits());
  for (const std::size_t size : {std::size_t{1001}, std::size_t{500'000}, SIZE_MAX / 4}) {
    const std::string sent(std::min<std::size_t>(size, 1500), 'x');
    const RawAnswer answer = refused(server, post_head(size) + sent);
    EXPECT_EQ(answer.status, 413);
    EXPECT_THAT(answer.body, HasSubstr("\"body_too_large\""));
    EXPECT_THAT(answer.body, HasSubstr("limit of 1000 bytes"));
  }
  expect_alive(server);
}

TEST(HttpLimits, LargerChunkedBodyIs413) {
  TestServer server(answer_size, small_limits());
  const std::string head = "POST /p HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  std::string chunks;
  for (int i = 0; i < 5; ++i) chunks += "fa\r\n" + std::string(250, 'x') + "\r\n";
  EXPECT_EQ(refused(server, head + chunks).status, 413);
  EXPECT_EQ(refused(server, head + "ffffffff\r\nabc").status, 413);
  expect_alive(server);
}

TEST(HttpLimits, NoContinueForABodyThatIsTooLarge) {
  TestServer server(answer_size, small_limits());
  const RawAnswer answer = refused(
      server,
      "POST /p HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1001\r\n\r\n");
  EXPECT_EQ(answer.status, 413);
}

// A client such as Python's sends all of its body before it reads.
TEST(HttpLimits, AClientThatSendsItsWholeBodyFirstSeesThe413) {
  ServerLimits limits;
  limits.max_body = 4 << 20;
  TestServer server(answer_size, limits);
  RawSocket client = server.connect();
  client.send(post_head(6 << 20));
  client.send(std::string(6 << 20, 'x'));
  EXPECT_EQ(client.receive_answer().status, 413);
}

TEST(HttpLimits, LargeHeaderIs431) {
  TestServer server(answer_size, small_limits());
  const std::string start = "GET / HTTP/1.1\r\nHost: x\r\nX: ";
  EXPECT_EQ(refused(server, start + std::string(3000, 'x')).status, 431);
  EXPECT_EQ(refused(server, "GET /" + std::string(3000, 'x')).status, 431);
  EXPECT_EQ(refused(server, start + std::string(1 << 20, 'x')).status, 431);
  expect_alive(server);
}

TEST(HttpLimits, MalformedRequestsAre400) {
  TestServer server(answer_size, small_limits());
  for (const std::string& bytes :
       {std::string("nonsense\r\n\r\n"),
        std::string("GET\r\n\r\n"),
        std::string("GET / HTTP/9.9\r\n\r\n"),
        std::string("GET / HTTP/1.1\r\nno colon\r\n\r\n"),
        std::string("GET / HTTP/1.1\r\nA: \x01\r\n\r\n"),
        std::string("\x16\x03\x01\x02\x00\x01", 6),
        std::string("POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n"),
        std::string("POST / HTTP/1.1\r\nContent-Length: 1x\r\n\r\n"),
        std::string("POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n"),
        std::string("POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"),
        std::string("POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"),
        std::string("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")}) {
    const RawAnswer answer = refused(server, bytes);
    EXPECT_EQ(answer.status, 400) << bytes;
    EXPECT_THAT(answer.body, HasSubstr("\"invalid_request\"")) << bytes;
  }
  expect_alive(server);
}

TEST(HttpLimits, EndlessChunkExtensionIsRefused) {
  TestServer server(answer_size, small_limits());
  const RawAnswer answer = refused(
      server,
      "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;" + std::string(1 << 20, 'x'));
  EXPECT_THAT(answer.status, ::testing::AnyOf(400, 431));
}

TEST(HttpLimits, HalfARequestIs400) {
  TestServer server(answer_size, small_limits());
  for (const std::string& bytes : {std::string("POST / HT"), post_head(10) + "abc"}) {
    RawSocket client = server.connect();
    client.send(bytes);
    client.shutdown_send();
    EXPECT_EQ(client.receive_answer().status, 400) << bytes;
    EXPECT_EQ(client.receive_all(), "");
  }
}

TEST(HttpLimits, AConnectionClosedWithoutARequestGetsNoAnswer) {
  TestServer server(answer_size, small_limits());
  RawSocket client = server.connect();
  client.shutdown_send();
  EXPECT_EQ(client.receive_all(), "");
}

// Bytes that come one by one do not renew the limit of a header. (The pace is the client's, the
// end is the server's: the loop ends when the server has answered.)
TEST(HttpLimits, SlowHeaderIs408) {
  TestServer server(answer_size, small_limits());
  RawSocket client = server.connect();
  const auto start = std::chrono::steady_clock::now();
  client.send("GET / HTTP/1.1\r\n");
  std::thread drip([&] {
    while (client.try_send("X: y\r\n") && std::chrono::steady_clock::now() - start < kPatience) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  });
  EXPECT_EQ(client.receive_answer().status, 408);
  const auto passed = std::chrono::steady_clock::now() - start;
  client.shutdown_send();
  drip.join();
  EXPECT_GE(passed, seconds(1));
  EXPECT_LT(passed, seconds(4));
}

TEST(HttpLimits, StalledBodyIs408) {
  TestServer server(answer_size, small_limits());
  RawSocket client = server.connect();
  client.send(post_head(100) + "abc");
  EXPECT_EQ(client.receive_answer().status, 408);
}

TEST(HttpLimits, IdleConnectionsAreClosed) {
  TestServer server(answer_size, small_limits());
  RawSocket fresh = server.connect();
  RawSocket used = server.connect();
  EXPECT_EQ(used.request(post_head(1) + "a").status, 200);
  EXPECT_EQ(fresh.receive_all(), "");
  EXPECT_EQ(used.receive_all(), "");
}

}  // namespace
}  // namespace meshnet::testing
