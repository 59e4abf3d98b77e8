#include "net/http_client.h"

#include <gmock/gmock.h>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>

#include "loopback.h"

namespace meshnet::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

Url local(uint16_t port) { return {"127.0.0.1", port}; }

HttpRequest post(std::string body) {
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

std::string ok(const std::string& body, const std::string& header = "") {
  return "HTTP/1.1 200 OK\r\n" + header + "Content-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

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

TEST_F(HttpClientTest, ResendsOnceOnAStaleConnection) {
  RawListener peer;
  auto first = start(local(peer.port()), "a", seconds(5));
  {
    RawSocket socket = peer.accept();
    socket.send(ok("1"));
    EXPECT_EQ(await(std::move(first)).body(), "1");
  }  // the peer closes while the connection is idle
  auto second = start(local(peer.port()), "b", seconds(5));
  RawSocket fresh = peer.accept();
  fresh.receive_until("\r\n\r\nb");
  fresh.send(ok("2"));
  EXPECT_EQ(await(std::move(second)).body(), "2");
}

TEST_F(HttpClientTest, ResendsOnlyOnce) {
  RawListener peer;
  auto first = start(local(peer.port()), "a", seconds(5));
  RawSocket reused = peer.accept();
  reused.receive_until("\r\n\r\na");
  reused.send(ok("1"));
  await(std::move(first));

  auto second = start(local(peer.port()), "b", seconds(5));
  reused.receive_until("\r\n\r\nb");  // read, and closed without a byte of an answer
  reused.close();
  RawSocket fresh = peer.accept();
  fresh.receive_until("\r\n\r\nb");
  fresh.close();
  const PeerError error = failure(std::move(second));
  EXPECT_EQ(error.kind, PeerError::Kind::kUnreachable);
  EXPECT_FALSE(peer.pending(milliseconds(100)));
}

TEST_F(HttpClientTest, DoesNotResendAfterTheFirstByteOfAnAnswer) {
  RawListener peer;
  auto first = start(local(peer.port()), "a", seconds(5));
  RawSocket reused = peer.accept();
  reused.receive_until("\r\n\r\na");
  reused.send(ok("1"));
  await(std::move(first));

  auto second = start(local(peer.port()), "b", seconds(5));
  reused.receive_until("\r\n\r\nb");
  reused.send("H");
  reused.close();
  EXPECT_EQ(failure(std::move(second)).kind, PeerError::Kind::kUnreachable);
  EXPECT_FALSE(peer.pending(milliseconds(100)));
}

TEST_F(HttpClientTest, DoesNotResendOnAFreshConnection) {
  RawListener peer;
  auto answer = start(local(peer.port()), "a", seconds(5));
  peer.accept().receive_until("\r\n\r\na");
  const PeerError error = failure(std::move(answer));
  EXPECT_EQ(error.kind, PeerError::Kind::kUnreachable);
  EXPECT_THAT(error.what(), HasSubstr("http://127.0.0.1:" + std::to_string(peer.port())));
  EXPECT_THAT(error.what(), HasSubstr("closed the connection"));
  EXPECT_FALSE(peer.pending(milliseconds(100)));
}

TEST_F(HttpClientTest, TimesOutWithinBounds) {
  RawListener peer;
  const auto begin = std::chrono::steady_clock::now();
  auto answer = start(local(peer.port()), "a", milliseconds(150));
  RawSocket socket = peer.accept();
  const PeerError error = failure(std::move(answer));
  const auto passed = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(error.kind, PeerError::Kind::kTimeout);
  EXPECT_THAT(error.what(), HasSubstr("no answer within 150 ms"));
  EXPECT_GE(passed, milliseconds(150));
  EXPECT_LT(passed, seconds(2));
  EXPECT_THAT(socket.receive_all(), HasSubstr("\r\n\r\na"));  // and the connection is closed
}

TEST_F(HttpClientTest, PartsOfAnAnswerDoNotRenewTheTimeout) {
  RawListener peer;
  auto answer = start(local(peer.port()), "a", milliseconds(300));
  RawSocket socket = peer.accept();
  socket.send("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n");
  while (socket.try_send("x") && answer.wait_for(milliseconds(20)) != std::future_status::ready) {
  }
  EXPECT_EQ(failure(std::move(answer)).kind, PeerError::Kind::kTimeout);
}

TEST_F(HttpClientTest, RefusedIsUnreachable) {
  uint16_t port = 0;
  {
    port = RawListener().port();
  }
  const PeerError error = failure(start(local(port), "a", seconds(5)));
  EXPECT_EQ(error.kind, PeerError::Kind::kUnreachable);
  EXPECT_THAT(error.what(), HasSubstr("http://127.0.0.1:" + std::to_string(port)));
  EXPECT_THAT(error.what(), HasSubstr("refused"));
}

TEST_F(HttpClientTest, UnresolvedIsUnreachable) {
  const PeerError error = failure(start({"no-such-host.invalid", 1}, "a", seconds(5)));
  EXPECT_EQ(error.kind, PeerError::Kind::kUnreachable);
  EXPECT_THAT(error.what(), HasSubstr("http://no-such-host.invalid:1: its name d"));
}

TEST_F(HttpClientTest, MalformedAnswersAreUnreachable) {
  for (const std::string& bytes : {std::string("220 smtp.example.com ESMTP\r\n"),
                                   std::string("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"),
                                   std::string("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab")}) {
    RawListener peer;
    auto answer = start(local(peer.port()), "a", seconds(5));
    RawSocket socket = peer.accept();
    socket.receive_until("\r\n\r\na");
    socket.send(bytes);
    socket.close();
    EXPECT_EQ(failure(std::move(answer)).kind, PeerError::Kind::kUnreachable) << bytes;
  }
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

TEST_F(HttpClientTest, SurvivesARestartOfThePeer) {
  auto handler = [](Exchange& exchange) { return exchange.send(text_answer("up")); };
  auto server = std::make_unique<TestServer>(handler);
  const uint16_t port = server->port();
  EXPECT_EQ(ask(port, "").body(), "up");
  server.reset();
  EXPECT_EQ(failure(start(local(port), "", seconds(5))).kind, PeerError::Kind::kUnreachable);
  std::unique_ptr<HttpServer> restarted;
  io_.call([&] {
    restarted = std::make_unique<HttpServer>(io_.executor(),
                                             tcp::endpoint(asio::ip::address_v4::loopback(), port),
                                             ServerLimits{},
                                             handler,
                                             format_test_error);
  });
  EXPECT_EQ(ask(port, "").body(), "up");
  io_.call([&] { restarted.reset(); });
}

TEST_F(HttpClientTest, CancellingClosesTheConnection) {
  RawListener peer;
  asio::cancellation_signal signal;
  auto answer = asio::co_spawn(io_.executor(),
                               send(local(peer.port()), post("a"), seconds(30)),
                               asio::bind_cancellation_slot(signal.slot(), asio::use_future));
  RawSocket socket = peer.accept();
  socket.receive_until("\r\n\r\na");
  io_.call([&] { signal.emit(asio::cancellation_type::terminal); });
  try {
    await(std::move(answer));
    ADD_FAILURE() << "not cancelled";
  } catch (const boost::system::system_error& error) {
    EXPECT_EQ(error.code(), asio::error::operation_aborted);
  }
  EXPECT_EQ(socket.receive_all(), "");
}

TEST_F(HttpClientTest, MayBeDestroyedWithARequestInProgress) {
  RawListener peer;
  auto answer = start(local(peer.port()), "a", seconds(5));
  RawSocket socket = peer.accept();
  io_.call([&] { client_.reset(); });
  socket.receive_until("\r\n\r\na");
  socket.send(ok("1"));
  EXPECT_EQ(await(std::move(answer)).body(), "1");
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
