#include "net/http_server.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <ctime>

#include "loopback.h"
#include "net/http_error.h"

namespace meshnet::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

Awaitable<void> echo(Exchange& exchange) {
  co_await exchange.send(
      text_answer(std::string(exchange.request.target()) + ":" + exchange.request.body()));
}

/// Waits until it is cancelled, and says so.
struct Sleeper {
  std::promise<void> started;
  std::promise<bool> cancelled;

  Handler handler() {
    return [this](Exchange& exchange) { return sleep(exchange); };
  }

  Awaitable<void> sleep(Exchange& exchange) {
    asio::steady_timer timer(co_await asio::this_coro::executor, kPatience);
    started.set_value();
    const auto [error] = co_await timer.async_wait(kAsTuple);
    cancelled.set_value(error == asio::error::operation_aborted);
    co_await exchange.send(text_answer("woke up"));
  }
};

constexpr std::string_view kGet = "GET /a HTTP/1.1\r\nHost: x\r\n\r\n";

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

TEST(HttpServer, HangUpCancelsTheHandler) {
  for (const bool half_close : {false, true}) {
    Sleeper sleeper;
    TestServer server(sleeper.handler());
    RawSocket client = server.connect();
    client.send(kGet);
    await(sleeper.started.get_future());
    if (half_close) {
      client.shutdown_send();
    } else {
      client.close();
    }
    EXPECT_TRUE(await(sleeper.cancelled.get_future()));
  }
}

TEST(HttpServer, PipelinedBytesAreNoHangUpAndDoNotSpin) {
  Sleeper sleeper;
  TestServer server(sleeper.handler());
  RawSocket client = server.connect();
  client.send(std::string(kGet) + std::string(kGet));
  await(sleeper.started.get_future());
  auto cancelled = sleeper.cancelled.get_future();
  const std::clock_t before = std::clock();
  EXPECT_EQ(cancelled.wait_for(milliseconds(200)), std::future_status::timeout);
  EXPECT_LT(std::clock() - before, CLOCKS_PER_SEC / 20);
  client.close();  // and a hang-up behind them is seen
  EXPECT_TRUE(await(std::move(cancelled)));
}

TEST(HttpServer, AClientThatReadsNothingLosesItsStream) {
  std::promise<void> ended;
  struct AtEnd {
    std::promise<void>& ended;
    ~AtEnd() { ended.set_value(); }
  };
  ServerLimits limits;
  limits.write_timeout = seconds(1);
  TestServer server(
      [&](Exchange& exchange) -> Awaitable<void> {
        const AtEnd at_end{ended};
        const std::string part(1 << 20, 'x');
        co_await exchange.begin_stream(HttpResponse(http::status::ok, 11));
        for (;;) co_await exchange.write(part);
      },
      limits);
  RawSocket client = server.connect();
  client.send(kGet);
  await(ended.get_future());
}

TEST(HttpServer, StopLetsRequestsEndAndClosesIdleConnections) {
  std::promise<void> started;
  std::promise<void> release;
  auto released = release.get_future().share();
  TestServer server([&](Exchange& exchange) -> Awaitable<void> {
    started.set_value();
    asio::steady_timer poll(co_await asio::this_coro::executor);
    while (released.wait_for(seconds(0)) != std::future_status::ready) {
      poll.expires_after(milliseconds(1));
      co_await poll.async_wait(asio::use_awaitable);
    }
    co_await exchange.send(text_answer("done"));
  });
  RawSocket idle = server.connect();
  RawSocket busy = server.connect();
  busy.send(kGet);
  await(started.get_future());
  auto stopped = server.io().start(server.server().stop());
  EXPECT_EQ(idle.receive_all(), "");
  EXPECT_THROW(server.connect(), std::system_error);
  EXPECT_EQ(stopped.wait_for(seconds(0)), std::future_status::timeout);
  release.set_value();
  const RawAnswer answer = busy.receive_answer();
  EXPECT_EQ(answer.body, "done");
  EXPECT_THAT(answer.head, HasSubstr("Connection: close"));
  await(std::move(stopped));
}

TEST(HttpServer, StopCancelsWhatOutlastsTheGrace) {
  Sleeper sleeper;
  ServerLimits limits;
  limits.shutdown_grace = seconds(0);
  TestServer server(sleeper.handler(), limits);
  RawSocket client = server.connect();
  client.send(kGet);
  await(sleeper.started.get_future());
  server.io().run(server.server().stop());
  // stop() returns after the handler has ended.
  auto cancelled = sleeper.cancelled.get_future();
  ASSERT_EQ(cancelled.wait_for(seconds(0)), std::future_status::ready);
  EXPECT_TRUE(cancelled.get());
  EXPECT_EQ(client.receive_all(), "");
}

TEST(HttpServer, MayBeDestroyedWithRequestsInProgress) {
  Sleeper sleeper;
  RawSocket client = [&] {
    auto server = std::make_unique<TestServer>(sleeper.handler());
    RawSocket connected = server->connect();
    connected.send(kGet);
    await(sleeper.started.get_future());
    return connected;
  }();
  EXPECT_EQ(client.receive_all(), "");
}

TEST(HttpServer, SaysWhichAddressIsInUse) {
  TestServer server(echo);
  IoThread io;
  const tcp::endpoint taken(asio::ip::address_v4::loopback(), server.port());
  try {
    HttpServer second(io.executor(), taken, {}, echo, format_test_error);
    FAIL() << "two servers listen on one port";
  } catch (const std::runtime_error& error) {
    EXPECT_EQ(std::string(error.what()),
              "127.0.0.1:" + std::to_string(server.port()) + " is in use by another process");
  }
}

TEST(HttpServer, ListensOnBothFamilies) {
  IoThread io;
  std::unique_ptr<HttpServer> server;
  const auto port = io.call([&] {
    server = std::make_unique<HttpServer>(
        io.executor(), tcp::endpoint(tcp::v6(), 0), ServerLimits{}, echo, format_test_error);
    return server->local_endpoint().port();
  });
  EXPECT_EQ(RawSocket::connect(port).request(kGet).body, "/a:");
  io.call([&] { server.reset(); });
}

/// While it lives, this process opens no more file descriptors.
class NoNewDescriptors {
 public:
  NoNewDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &old_);
    rlimit none = old_;
    none.rlim_cur = 0;
    ::setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoNewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &old_); }

 private:
  rlimit old_{};
};

TEST(HttpServer, SurvivesRunningOutOfFileDescriptors) {
  TestServer server(echo);
  RawSocket served = server.connect();
  ASSERT_EQ(served.request(kGet).status, 200);
  RawSocket waiting = RawSocket::unconnected();
  {
    const NoNewDescriptors none;
    waiting.connect_to(server.port());  // the kernel takes it, accept() fails
    waiting.send(kGet);
    EXPECT_EQ(served.request(kGet).status, 200);
    const std::clock_t before = std::clock();
    std::this_thread::sleep_for(milliseconds(200));  // time in which a spinning loop would show
    EXPECT_LT(std::clock() - before, CLOCKS_PER_SEC / 20);
  }
  EXPECT_EQ(waiting.receive_answer().status, 200);
}

}  // namespace
}  // namespace meshnet::testing
