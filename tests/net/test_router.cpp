#include "net/router.h"

#include <gmock/gmock.h>

#include "net/http_error.h"

namespace meshnet {
namespace {

using ::testing::HasSubstr;

class NoExchange : public Exchange {
  Awaitable<void> send(HttpResponse) override { throw std::logic_error("not called"); }
  Awaitable<void> begin_stream(HttpResponse) override { throw std::logic_error("not called"); }
  Awaitable<void> write(std::string_view) override { throw std::logic_error("not called"); }
  Awaitable<void> end_stream() override { throw std::logic_error("not called"); }
  bool streaming() const override { return false; }
};

class RouterTest : public ::testing::Test {
 protected:
  RouterTest() {
    add(http::verb::get, "/health", 1);
    add(http::verb::post, "/v1/chat/completions", 2);
    add(http::verb::options, "/v1/chat/completions", 3);
    add(http::verb::delete_, "/sessions/{id}", 4);
  }

  void add(http::verb method, std::string path, int number) {
    router_.add(method, std::move(path), [this, number](Exchange&) -> Awaitable<void> {
      called_ = number;
      throw std::runtime_error("reached");
    });
  }

  /// Number of the handler, or minus the status of the refusal.
  int route(http::verb method, const std::string& target) {
    called_ = 0;
    try {
      const Handler& handler = router_.match(HttpRequest(method, target, 11));
      // The handlers are no coroutines: they run, and throw, when called.
      NoExchange exchange;
      EXPECT_THROW(handler(exchange), std::runtime_error);
      return called_;
    } catch (const HttpError& error) {
      message_ = error.what();
      return -static_cast<int>(error.status);
    }
  }

  Router router_;
  int called_ = 0;
  std::string message_;
};

TEST_F(RouterTest, MatchesMethodAndPath) {
  EXPECT_EQ(route(http::verb::get, "/health"), 1);
  EXPECT_EQ(route(http::verb::get, "/health?verbose=1"), 1);
  EXPECT_EQ(route(http::verb::head, "/health"), 1);
  EXPECT_EQ(route(http::verb::post, "/v1/chat/completions"), 2);
  EXPECT_EQ(route(http::verb::options, "/v1/chat/completions"), 3);
  EXPECT_EQ(route(http::verb::delete_, "/sessions/a-b.c"), 4);
}

TEST_F(RouterTest, ASegmentMayBeAnyText) {
  for (const std::string text : {"a/b", "a?b", "50%", "a%2Fb", "\xff \n", "a-b.c_d~1"}) {
    const std::string encoded = percent_encode(text);
    EXPECT_EQ(percent_decode(encoded), text);
    EXPECT_EQ(route(http::verb::delete_, "/sessions/" + encoded), 4) << encoded;
  }
  EXPECT_EQ(percent_encode("a/b?c%"), "a%2Fb%3Fc%25");
  EXPECT_EQ(percent_decode("a%2fb"), "a/b");
  for (const char* bad : {"%", "a%2", "%zz", "%-1", "%%41"}) {
    EXPECT_THROW(percent_decode(bad), HttpError) << bad;
  }
}

TEST_F(RouterTest, UnknownPathIs404) {
  for (const char* path :
       {"/", "/healthy", "/health/", "/sessions", "/sessions/", "/sessions/a/b", "*", "/v1"}) {
    EXPECT_EQ(route(http::verb::get, path), -404) << path;
  }
}

TEST_F(RouterTest, OtherMethodIs405AndNamesTheAllowed) {
  EXPECT_EQ(route(http::verb::put, "/v1/chat/completions"), -405);
  EXPECT_THAT(message_, HasSubstr("takes POST, OPTIONS, got PUT"));
  EXPECT_EQ(route(http::verb::get, "/sessions/s1"), -405);
  EXPECT_THAT(message_, HasSubstr("DELETE"));
}

TEST(Router, TakesTheAbsoluteFormOfProxies) {
  Router router;
  router.add(http::verb::get, "/health", [](Exchange&) -> Awaitable<void> { co_return; });
  HttpRequest request{http::verb::get, "http://host:8001/health?x=1", 11};
  EXPECT_NO_THROW(router.match(request));
  request.target("http://host:8001");
  EXPECT_THROW(router.match(request), HttpError);
}

}  // namespace
}  // namespace meshnet
