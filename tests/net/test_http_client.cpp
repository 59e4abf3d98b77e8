// Requests that are answered: connections, interim answers, sizes.

#include "http_client_test.h"

namespace meshnet::testing {
namespace {

using ::testing::HasSubstr;

TEST_F(HttpClientTest, SendsWholeRequestsOnOneConnection) {
  RawListener peer;
  auto first = start(local(peer.port()), "abc", seconds(5));
  RawSocket socket = peer.accept();
  EXPECT_EQ(socket.receive_until("abc"),
            "POST /forward HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(peer.port()) +
                "\r\nContent-Length: 3\r\n\r\nabc");
  socket.send(ok("one"));
  EXPECT_EQ(await(std::move(first)).body(), "one");

  auto second = start(local(peer.port()), "def", seconds(5));
  socket.receive_until("def");
  socket.send(ok("two"));
  EXPECT_EQ(await(std::move(second)).body(), "two");
  EXPECT_FALSE(peer.pending(milliseconds(0)));
}

TEST_F(HttpClientTest, RequestsAtOnceHaveTheirOwnConnections) {
  RawListener peer;
  auto first = start(local(peer.port()), "a", seconds(5));
  RawSocket one = peer.accept();
  auto second = start(local(peer.port()), "b", seconds(5));
  RawSocket two = peer.accept();
  one.receive_until("\r\n\r\na");
  two.receive_until("\r\n\r\nb");
  two.send(ok("2"));
  one.send(ok("1"));
  EXPECT_EQ(await(std::move(first)).body(), "1");
  EXPECT_EQ(await(std::move(second)).body(), "2");
}

TEST_F(HttpClientTest, ErrorStatusesAreAnswers) {
  RawListener peer;
  auto answer = start(local(peer.port()), "a", seconds(5));
  RawSocket socket = peer.accept();
  socket.send("HTTP/1.1 409 Conflict\r\nContent-Length: 2\r\n\r\n{}");
  EXPECT_EQ(await(std::move(answer)).result_int(), 409u);
}

TEST_F(HttpClientTest, InterimAnswersAreNotTheAnswer) {
  RawListener peer;
  auto first = start(local(peer.port()), "a", seconds(5));
  RawSocket socket = peer.accept();
  socket.receive_until("\r\n\r\na");
  socket.send("HTTP/1.1 100 Continue\r\n\r\n");
  socket.send(ok("1"));
  EXPECT_EQ(await(std::move(first)).body(), "1");
  auto second = start(local(peer.port()), "b", seconds(5));
  socket.receive_until("\r\n\r\nb");
  socket.send("HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n" + ok("2"));
  EXPECT_EQ(await(std::move(second)).body(), "2");
}

TEST_F(HttpClientTest, DoesNotReuseAConnectionThatThePeerEnds) {
  RawListener peer;
  auto first = start(local(peer.port()), "a", seconds(5));
  RawSocket one = peer.accept();
  one.send(ok("1", "Connection: close\r\n"));
  EXPECT_EQ(await(std::move(first)).body(), "1");
  auto second = start(local(peer.port()), "b", seconds(5));
  RawSocket two = peer.accept();
  two.send(ok("2"));
  EXPECT_EQ(await(std::move(second)).body(), "2");
  EXPECT_THAT(one.receive_all(), ::testing::Not(HasSubstr("\r\n\r\nb")));
}

TEST_F(HttpClientTest, ResolvesNames) {
  RawListener peer;
  auto answer = start({"localhost", peer.port()}, "a", seconds(5));
  RawSocket socket = peer.accept();
  EXPECT_THAT(socket.receive_until("\r\n\r\na"), HasSubstr("Host: localhost:"));
  socket.send(ok("1"));
  EXPECT_EQ(await(std::move(answer)).body(), "1");
}

Awaitable<std::string> host_of(Exchange& exchange) {
  co_return std::string(exchange.request[http::field::host]);
}

TEST_F(HttpClientTest, BracketsIpv6InHost) {
  std::unique_ptr<HttpServer> server;
  const auto port = io_.call([&]() -> uint16_t {
    server = std::make_unique<HttpServer>(
        io_.executor(),
        tcp::endpoint(asio::ip::address_v6::loopback(), 0),
        ServerLimits{},
        [](Exchange& exchange) -> Awaitable<void> {
          const std::string host = co_await host_of(exchange);
          co_await exchange.send(text_answer(host));
        },
        format_test_error);
    return server->local_endpoint().port();
  });
  EXPECT_EQ(await(start({"::1", port}, "", seconds(5))).body(), "[::1]:" + std::to_string(port));
  io_.call([&] { server.reset(); });
}

TEST_F(HttpClientTest, CarriesLargeBodiesBothWays) {
  TestServer server([](Exchange& exchange) -> Awaitable<void> {
    co_await exchange.send(text_answer(std::move(exchange.request.body())));
  });
  for (const std::size_t size : {std::size_t{1'200'000}, std::size_t{20} << 20}) {
    std::string body(size, '\0');
    for (std::size_t i = 0; i < size; ++i) body[i] = static_cast<char>(i * 2654435761u >> 13);
    EXPECT_TRUE(ask(server.port(), body).body() == body) << size;
  }
}

TEST_F(HttpClientTest, ReadsChunkedAnswersAndReusesTheConnection) {
  TestServer server([](Exchange& exchange) -> Awaitable<void> {
    co_await exchange.begin_stream(HttpResponse(http::status::ok, 11));
    co_await exchange.write("ab");
    co_await exchange.write("cd");
    co_await exchange.end_stream();
  });
  EXPECT_EQ(ask(server.port(), "").body(), "abcd");
  EXPECT_EQ(ask(server.port(), "").body(), "abcd");
}

TEST_F(HttpClientTest, SeesThe413OfABodyItStillSends) {
  ServerLimits limits;
  limits.max_body = 1 << 20;
  TestServer server([](Exchange& exchange) { return exchange.send(text_answer("")); }, limits);
  EXPECT_EQ(ask(server.port(), std::string((1 << 20) + (1 << 19), 'x')).result_int(), 413u);
}

class SmallHttpClientTest : public HttpClientTest {
 protected:
  static ClientLimits limits() {
    ClientLimits limits;
    limits.max_body = 1000;
    limits.idle_timeout = seconds(0);
    return limits;
  }
  SmallHttpClientTest() : HttpClientTest(limits()) {}
};

TEST_F(SmallHttpClientTest, AnswersAboveTheLimitAreUnreachable) {
  TestServer server([](Exchange& exchange) -> Awaitable<void> {
    const std::size_t size = std::stoul(exchange.request.body());
    co_await exchange.send(text_answer(std::string(size, 'x')));
  });
  EXPECT_EQ(ask(server.port(), "1000").body().size(), 1000u);
  const PeerError error = failure(start(local(server.port()), "1001", seconds(5)));
  EXPECT_EQ(error.kind, PeerError::Kind::kUnreachable);
  EXPECT_THAT(error.what(), HasSubstr("larger than the limit of 1000 bytes"));
}

TEST_F(SmallHttpClientTest, ConnectionsIdleForTooLongAreClosed) {
  RawListener peer;
  auto first = start(local(peer.port()), "a", seconds(5));
  RawSocket one = peer.accept();
  one.receive_until("\r\n\r\na");
  one.send(ok("1"));
  await(std::move(first));
  auto second = start(local(peer.port()), "b", seconds(5));
  RawSocket two = peer.accept();
  EXPECT_EQ(one.receive_all(), "");
  two.send(ok("2"));
  await(std::move(second));
}

}  // namespace
}  // namespace meshnet::testing
