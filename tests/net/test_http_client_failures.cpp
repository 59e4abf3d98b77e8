// Peers that close, are late, are not there or talk nonsense; callers that leave.

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>

#include "http_client_test.h"

namespace meshnet::testing {
namespace {

using ::testing::HasSubstr;

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

}  // namespace
}  // namespace meshnet::testing
