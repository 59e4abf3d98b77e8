#include "net/http_server.h"

#include <gmock/gmock.h>

#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>

#include "loopback.h"
#include "net/http_error.h"

namespace meshnet::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

std::string post(const std::string& path, const std::string& body) {
  return "POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

TEST(HttpServer, KeepsConnectionsAlive) {
  TestServer server(echo);
  RawSocket client = server.connect();
  for (const std::string body : {"one", "", "three"}) {
    const RawAnswer answer = client.request(post("/p", body));
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.body, "/p:" + body);
    EXPECT_THAT(answer.head, Not(HasSubstr("Connection: close")));
  }
}

TEST(HttpServer, ClosesWhenAsked) {
  TestServer server(echo);
  RawSocket client = server.connect();
  client.send("GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(client.receive_answer().head, HasSubstr("Connection: close"));
  EXPECT_EQ(client.receive_all(), "");
}

TEST(HttpServer, AnswersPipelinedRequestsInOrder) {
  TestServer server(echo);
  RawSocket client = server.connect();
  std::string requests;
  for (int i = 0; i < 100; ++i) requests += post("/" + std::to_string(i), "b");
  client.send(requests);
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(client.receive_answer().body, "/" + std::to_string(i) + ":b");
  }
}

TEST(HttpServer, HeadHasLengthAndNoBody) {
  TestServer server(echo);
  RawSocket client = server.connect();
  client.send("HEAD /abc HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(client.receive_answer(true).head, HasSubstr("Content-Length: 5\r\n"));
  EXPECT_EQ(client.request(kGet).body, "/a:");  // nothing of a body stands in between
}

TEST(HttpServer, Http10ClosesUnlessAskedToKeepAlive) {
  TestServer server(echo);
  RawSocket plain = server.connect();
  plain.send("GET /a HTTP/1.0\r\n\r\n");
  const RawAnswer answer = plain.receive_answer();
  EXPECT_THAT(answer.head, HasSubstr("HTTP/1.0 200"));
  EXPECT_EQ(answer.body, "/a:");
  EXPECT_EQ(plain.receive_all(), "");

  RawSocket kept = server.connect();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(kept.request("GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").status, 200);
  }
}

TEST(HttpServer, TakesChunkedBodies) {
  TestServer server(echo);
  RawSocket client = server.connect();
  const RawAnswer answer = client.request(
      "POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3\r\nabc\r\n2;extension=1\r\nde\r\n0\r\nTrailer: 1\r\n\r\n");
  EXPECT_EQ(answer.body, "/c:abcde");
  EXPECT_EQ(client.request(kGet).status, 200);
}

TEST(HttpServer, SaysContinueBeforeTheBody) {
  TestServer server(echo);
  RawSocket client = server.connect();
  client.send("POST /c HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
  EXPECT_EQ(client.receive_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  EXPECT_EQ(client.request("abc").body, "/c:abc");
}

TEST(HttpServer, NoContentHasNoLength) {
  TestServer server([](Exchange& exchange) -> Awaitable<void> {
    co_await exchange.send(HttpResponse(http::status::no_content, 11));
  });
  RawSocket client = server.connect();
  client.send(kGet);
  EXPECT_THAT(client.receive_until("\r\n\r\n"), Not(HasSubstr("Content-Length")));
  client.send(kGet);
  EXPECT_THAT(client.receive_until("\r\n\r\n"), HasSubstr("HTTP/1.1 204"));
}

Awaitable<void> stream_two(Exchange& exchange) {
  EXPECT_FALSE(exchange.streaming());
  HttpResponse head(http::status::ok, 11);
  head.set(http::field::content_type, "text/event-stream");
  co_await exchange.begin_stream(std::move(head));
  EXPECT_TRUE(exchange.streaming());
  co_await exchange.write("data: 1\n\n");
  co_await exchange.write("");  // must not end the body
  co_await exchange.write("data: 2\n\n");
  co_await exchange.end_stream();
  EXPECT_TRUE(exchange.streaming());
}

TEST(HttpServer, StreamsChunks) {
  TestServer server(stream_two);
  RawSocket client = server.connect();
  for (int i = 0; i < 2; ++i) {
    client.send(kGet);
    const std::string head = client.receive_until("\r\n\r\n");
    EXPECT_THAT(head, HasSubstr("Transfer-Encoding: chunked"));
    EXPECT_THAT(head, HasSubstr("Content-Type: text/event-stream"));
    EXPECT_EQ(client.receive_until("0\r\n\r\n"),
              "9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n0\r\n\r\n");
  }
}

TEST(HttpServer, StreamsToHttp10WithoutChunks) {
  TestServer server(stream_two);
  RawSocket client = server.connect();
  client.send("GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_THAT(client.receive_until("\r\n\r\n"), Not(HasSubstr("chunked")));
  EXPECT_EQ(client.receive_all(), "data: 1\n\ndata: 2\n\n");
}

TEST(HttpServer, SendsEachPartAtOnce) {
  std::promise<void> seen;
  auto seen_by_client = seen.get_future().share();
  TestServer server([&](Exchange& exchange) -> Awaitable<void> {
    co_await exchange.begin_stream(HttpResponse(http::status::ok, 11));
    co_await exchange.write("first");
    asio::steady_timer poll(co_await asio::this_coro::executor);
    while (seen_by_client.wait_for(seconds(0)) != std::future_status::ready) {
      poll.expires_after(milliseconds(1));
      co_await poll.async_wait(asio::use_awaitable);
    }
    co_await exchange.end_stream();
  });
  RawSocket client = server.connect();
  client.send(kGet);
  client.receive_until("first");
  seen.set_value();
  EXPECT_EQ(client.receive_until("0\r\n\r\n"), "\r\n0\r\n\r\n");
}

TEST(HttpServer, HandlerErrorsBecomeAnswers) {
  TestServer server([](Exchange& exchange) -> Awaitable<void> {
    if (exchange.request.target() == "/known") throw HttpError(409, "cache_miss", "gone");
    if (exchange.request.target() == "/other") throw std::runtime_error("broken");
    if (exchange.request.target() == "/late") {
      co_await asio::steady_timer(co_await asio::this_coro::executor, milliseconds(1))
          .async_wait(asio::use_awaitable);
      throw std::runtime_error("late");
    }
    if (exchange.request.target() == "/silent") co_return;
    co_await echo(exchange);
  });
  RawSocket client = server.connect();  // one connection outlives all of them
  const auto get = [&](const std::string& path) {
    return client.request("GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n");
  };
  const RawAnswer known = get("/known");
  EXPECT_EQ(known.status, 409);
  EXPECT_THAT(known.body, HasSubstr("\"cache_miss\""));
  for (const auto& [path, text] : {std::pair{"/other", "broken"},
                                   std::pair{"/late", "late"},
                                   std::pair{"/silent", "the handler gave no answer"}}) {
    const RawAnswer answer = get(path);
    EXPECT_EQ(answer.status, 500) << path;
    EXPECT_THAT(answer.body, HasSubstr(text));
  }
  EXPECT_EQ(get("/fine").status, 200);
}

TEST(HttpServer, AHandlerThatIsNoCoroutineMayThrow) {
  TestServer server([](Exchange&) -> Awaitable<void> { throw HttpError(404, "not_found", "no"); });
  RawSocket client = server.connect();
  EXPECT_EQ(client.request(kGet).status, 404);
  EXPECT_EQ(client.request(kGet).status, 404);
}

TEST(HttpServer, AnErrorWithinAStreamLeavesItUnfinished) {
  TestServer server([](Exchange& exchange) -> Awaitable<void> {
    co_await exchange.begin_stream(HttpResponse(http::status::ok, 11));
    co_await exchange.write("part");
    if (exchange.request.target() == "/throw") throw std::runtime_error("broken");
  });
  for (const std::string path : {"/throw", "/forget"}) {
    RawSocket client = server.connect();
    client.send("GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n");
    client.receive_until("\r\n\r\n");
    EXPECT_EQ(client.receive_all(), "4\r\npart\r\n") << path;
  }
}

TEST(HttpServer, AnswersOnce) {
  std::promise<bool> refused;
  TestServer server([&](Exchange& exchange) -> Awaitable<void> {
    co_await exchange.send(text_answer("first"));
    bool threw = false;
    try {
      co_await exchange.send(text_answer("second"));
    } catch (const std::logic_error&) {
      threw = true;
    }
    refused.set_value(threw);
  });
  RawSocket client = server.connect();
  EXPECT_EQ(client.request(kGet).body, "first");
  EXPECT_TRUE(await(refused.get_future()));
}

}  // namespace
}  // namespace meshnet::testing
