#include "runtime/peers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/steady_timer.hpp>

#include <optional>
#include <string>

#include "net/http_error.h"
#include "tests/runtime/stub_node.h"

namespace meshnet {
namespace {

using testing::HasSubstr;

/// Answers GET /status with a body that a test may change.
StubNode::Answer status(const std::string& body, http::status code = http::status::ok) {
  return [=](const HttpRequest&) -> Awaitable<HttpResponse> {
    HttpResponse response{code, 11};
    response.body() = body;
    co_return response;
  };
}

ModelConfig config() {
  ModelConfig config;
  config.num_hidden_layers = 4;
  config.hidden_size = 8;
  return config;
}

class PeersTest : public testing::Test {
 protected:
  PeersTest() : client_(io_.get_executor(), {}) {
    topology_.nodes.resize(2);
    topology_.nodes[0].name = "head";
    topology_.nodes[0].layers = {0, 2};
    topology_.nodes[1].name = "tail";
    topology_.nodes[1].layers = {2, 4};
    topology_.nodes[1].url = {"127.0.0.1", 1};  // nothing listens there
  }
  std::vector<Hop> choose() {
    Peers peers(
        client_, topology_, topology_.nodes[0], "secret", "f00d", config(), Dtype::kFloat32);
    return run_until_done(io_, peers.choose_hops());
  }
  std::string refusal() {
    try {
      choose();
    } catch (const HttpError& error) {
      EXPECT_EQ(error.status, 502U);
      return error.what();
    }
    return "no error";
  }

  asio::io_context io_;
  Topology topology_;
  HttpClient client_;
};

TEST_F(PeersTest, ANodeThatAnswersIsAHop) {
  StubNode tail(io_, status(R"({"protocol": 1, "state": "ready", "model_fingerprint": "f00d"})"));
  topology_.nodes[1].url = tail.url();
  const auto hops = choose();
  ASSERT_EQ(hops.size(), 1U);
  EXPECT_EQ(hops[0].name, "tail");
  EXPECT_EQ(hops[0].start_layer, 2);
  EXPECT_EQ(hops[0].protocol, 1);
  EXPECT_EQ(tail.requests.at(0)[http::field::authorization], "Bearer secret");
}

TEST_F(PeersTest, ANodeWithoutStatusSpeaksProtocolZero) {
  StubNode tail(io_, status("not found", http::status::not_found));
  topology_.nodes[1].url = tail.url();
  EXPECT_EQ(choose().at(0).protocol, 0);
}

TEST_F(PeersTest, AnOldNodeThatMissesAnUnknownSessionKeepsState) {
  for (const auto& [answered, keeps] :
       std::vector<std::pair<http::status, bool>>{{http::status::conflict, true},
                                                  {http::status::ok, false},
                                                  {http::status::bad_request, false}}) {
    StubNode tail(io_, [&](const HttpRequest& request) -> Awaitable<HttpResponse> {
      const bool step = request.target() == "/forward";
      co_return HttpResponse{step ? answered : http::status::not_found, 11};
    });
    topology_.nodes[1].url = tail.url();
    Peers peers(
        client_, topology_, topology_.nodes[0], "secret", "f00d", config(), Dtype::kFloat32);
    EXPECT_EQ(run_until_done(io_, peers.choose_hops()).at(0).keeps_state, keeps);
    const HttpRequest& probe = tail.requests.at(1);
    EXPECT_EQ(probe["X-Meshnet-Cache"], "decode");
    EXPECT_EQ(probe["X-Meshnet-Start-Layer"], "2");
    EXPECT_EQ(probe.body(), std::string(32, '\0')) << "one row of float32 zeros";
    EXPECT_EQ(probe[http::field::authorization], "Bearer secret");
  }
}

TEST_F(PeersTest, AnOldNodeThatDoesNotStandItsProbeIsNotUsed) {
  topology_.nodes[0].timeouts.decode = std::chrono::milliseconds(50);
  StubNode tail(io_, [&](const HttpRequest& request) -> Awaitable<HttpResponse> {
    if (request.target() == "/forward") {
      asio::steady_timer busy(io_, std::chrono::milliseconds(400));
      co_await busy.async_wait(asio::use_awaitable);
    }
    co_return HttpResponse{http::status::not_found, 11};
  });
  topology_.nodes[1].url = tail.url();
  Peers peers(client_, topology_, topology_.nodes[0], "", "f00d", config(), Dtype::kFloat32);
  EXPECT_THROW(run_until_done(io_, peers.choose_hops()), HttpError);
  EXPECT_FALSE(peers.states().at("tail").usable);
  EXPECT_THROW(run_until_done(io_, peers.choose_hops()), HttpError) << "it is asked again";
  EXPECT_EQ(tail.requests.size(), 4U);
}

TEST_F(PeersTest, AnOldNodeThatIsBusyLaterStaysAsItIsKnown) {
  topology_.nodes[0].timeouts.decode = std::chrono::milliseconds(50);
  bool busy = false;
  int probes = 0;
  StubNode tail(io_, [&](const HttpRequest& request) -> Awaitable<HttpResponse> {
    const bool step = request.target() == "/forward";
    if (step) ++probes;
    if (step && busy) {
      asio::steady_timer prompt(io_, std::chrono::milliseconds(400));
      co_await prompt.async_wait(asio::use_awaitable);
    }
    co_return HttpResponse{step ? http::status::conflict : http::status::not_found, 11};
  });
  topology_.nodes[1].url = tail.url();
  auto now = Peers::Clock::now();
  Peers peers(client_, topology_, topology_.nodes[0], "", "f00d", config(), Dtype::kFloat32, [&] {
    return now;
  });
  asio::co_spawn(io_, peers.watch(), asio::detached);
  io_.run_for(std::chrono::milliseconds(300));
  ASSERT_TRUE(peers.states().at("tail").usable);
  busy = true;
  now += std::chrono::seconds(11);
  io_.run_for(std::chrono::milliseconds(1500));
  EXPECT_EQ(probes, 2);
  EXPECT_TRUE(peers.states().at("tail").usable);
  EXPECT_TRUE(peers.states().at("tail").keeps_state);
}

TEST_F(PeersTest, SaysWhyNoRouteIsComplete) {
  EXPECT_THAT(
      refusal(),
      HasSubstr("no usable node holds layers 2-3; tail (2-3) at 127.0.0.1:1 does not answer"));
  StubNode loading(io_,
                   status(R"({"protocol": 1, "state": "loading", "model_fingerprint": "f00d"})"));
  topology_.nodes[1].url = loading.url();
  EXPECT_THAT(refusal(), HasSubstr("still loading"));
  StubNode other(io_, status(R"({"protocol": 1, "state": "ready", "model_fingerprint": "beef"})"));
  topology_.nodes[1].url = other.url();
  EXPECT_THAT(refusal(), HasSubstr("serves another model (fingerprint beef, ours is f00d)"));
  StubNode stale(io_, status(R"({"protocol": 1, "state": "ready", "shard": {"layers": "2"}})"));
  topology_.nodes[1].url = stale.url();
  EXPECT_THAT(refusal(), HasSubstr("holds layers 2, not 2-3 as the topology here says"));
  StubNode strict(io_, status("{}", http::status::unauthorized));
  topology_.nodes[1].url = strict.url();
  EXPECT_THAT(refusal(), HasSubstr("refuses our cluster token"));
}

TEST_F(PeersTest, AnErrorIsNoOldNode) {
  StubNode proxy(io_, status("<html>", http::status::bad_gateway));
  topology_.nodes[1].url = proxy.url();
  EXPECT_THAT(refusal(), HasSubstr("answered GET /status with 502"));
}

TEST_F(PeersTest, AFailedNodeIsLeftOutUntilItAnswersAgain) {
  StubNode first(io_, status(R"({"protocol": 1, "state": "ready"})"));
  StubNode second(io_, status(R"({"protocol": 1, "state": "ready"})"));
  topology_.nodes[1].url = first.url();
  topology_.nodes.push_back(topology_.nodes[1]);
  topology_.nodes[2].name = "spare";
  topology_.nodes[2].url = second.url();
  Peers peers(client_, topology_, topology_.nodes[0], "", "f00d", config(), Dtype::kFloat32);
  EXPECT_EQ(run_until_done(io_, peers.choose_hops()).at(0).name, "tail");
  peers.mark_failed("tail", "connection refused");
  EXPECT_EQ(run_until_done(io_, peers.choose_hops()).at(0).name, "spare");
  peers.mark_failed("spare", "connection refused");
  EXPECT_EQ(run_until_done(io_, peers.choose_hops()).at(0).name, "tail") << "asked again";
}

TEST_F(PeersTest, ANodeStartedLaterIsFoundByTheNextRequest) {
  Peers peers(client_, topology_, topology_.nodes[0], "", "f00d", config(), Dtype::kFloat32);
  EXPECT_THROW(run_until_done(io_, peers.choose_hops()), HttpError);
  StubNode tail(io_, status(R"({"protocol": 1, "state": "ready"})"));
  topology_.nodes[1].url = tail.url();
  EXPECT_EQ(run_until_done(io_, peers.choose_hops()).size(), 1U);
  EXPECT_TRUE(peers.unavailable_reason().empty());
}

}  // namespace
}  // namespace meshnet
