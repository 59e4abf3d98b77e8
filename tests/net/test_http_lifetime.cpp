// How connections, handlers and the server itself end, and what they live through.

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <ctime>

#include "loopback.h"
#include "net/http_server.h"

namespace meshnet::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

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

TEST(HttpLifetime, HangUpCancelsTheHandler) {
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

TEST(HttpLifetime, PipelinedBytesAreNoHangUpAndDoNotSpin) {
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

TEST(HttpLifetime, AClientThatReadsNothingLosesItsStream) {
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

TEST(HttpLifetime, StopLetsRequestsEndAndClosesIdleConnections) {
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

TEST(HttpLifetime, StopCancelsWhatOutlastsTheGrace) {
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

TEST(HttpLifetime, MayBeDestroyedWithRequestsInProgress) {
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

TEST(HttpLifetime, SaysWhichAddressIsInUse) {
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

TEST(HttpLifetime, ListensOnBothFamilies) {
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

TEST(HttpLifetime, SurvivesRunningOutOfFileDescriptors) {
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
