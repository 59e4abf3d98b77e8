#include "runtime/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/steady_timer.hpp>
#include <string>
#include <vector>

#include "net/http_error.h"
#include "net/openai.h"
#include "net/wire.h"
#include "runtime/server_timing.h"
#include "tests/runtime/stub_node.h"

namespace meshnet {
namespace {

using testing::HasSubstr;

constexpr int64_t kHidden = 4;
constexpr int64_t kLongestChunk = 100;

HiddenStates hidden(char fill) {
  return {Dtype::kBFloat16, 2, kHidden, std::string(2 * kHidden * 2, fill)};
}

/// Answers of the two kinds of node. A node of protocol 0 says nothing about itself.
StubNode::Answer tensor(char fill, int64_t protocol) {
  return [=](const HttpRequest&) -> Awaitable<HttpResponse> {
    HttpResponse response = format_forward_reply({hidden(fill), "compute;desc=\"stub\";dur=1.0"});
    if (protocol == 0) {
      HttpResponse bare{http::status::ok, 11};
      bare.body() = response.body();
      response = std::move(bare);
    }
    co_return response;
  };
}

StubNode::Answer token(int64_t id) {
  return [=](const HttpRequest&) -> Awaitable<HttpResponse> {
    co_return format_forward_reply({TokenReply{"x", id}, "compute;desc=\"tail\";dur=2.0"});
  };
}

class PipelineTest : public testing::Test {
 protected:
  PipelineTest()
      : client_(io_.get_executor(), {}), pipeline_(client_, self_, "secret", kLongestChunk) {
    self_.name = "head";
  }

  ForwardRequest request() const {
    ForwardRequest forward;
    forward.session = "s1";
    forward.mode = CacheMode::kPrefill;
    forward.meta = R"({"sampling": {}})";
    forward.hidden = hidden('h');
    return forward;
  }
  ForwardReply carry(std::vector<Hop> hops) {
    return run_until_done(io_, pipeline_.carry(request(), hops));
  }
  HttpError error_of(std::vector<Hop> hops) {
    try {
      carry(std::move(hops));
    } catch (const HttpError& error) {
      return error;
    }
    return {200, "none", "no error"};
  }

  asio::io_context io_;
  NodeSettings self_;
  HttpClient client_;
  Pipeline pipeline_;
};

TEST_F(PipelineTest, NodesOfProtocolOneAreChained) {
  StubNode middle(io_, token(7));
  StubNode tail(io_, token(8));
  const auto reply = carry({{"middle", middle.url(), 3, 1}, {"tail", tail.url(), 5, 1}});
  EXPECT_EQ(std::get<TokenReply>(reply.result).token_id, 7)
      << "the answer climbs through the middle";
  ASSERT_EQ(middle.requests.size(), 1U);
  EXPECT_TRUE(tail.requests.empty());
  const auto sent = parse_forward(middle.requests[0], {Dtype::kFloat32, kHidden, 100});
  EXPECT_EQ(sent.route, (std::vector<std::string>{"middle", "tail"}));
  EXPECT_EQ(sent.start_layer, 3);
  EXPECT_EQ(sent.hop_index, 1);
  EXPECT_EQ(sent.meta, request().meta);
  EXPECT_EQ(sent.hidden.bytes, hidden('h').bytes);
  EXPECT_EQ(middle.requests[0][http::field::authorization], "Bearer secret");
}

TEST_F(PipelineTest, ATensorOfProtocolZeroIsCarriedOn) {
  StubNode old(io_, tensor('o', 0));
  StubNode tail(io_, token(8));
  const auto reply = carry({{"old", old.url(), 3, 0}, {"tail", tail.url(), 5, 1}});
  EXPECT_EQ(std::get<TokenReply>(reply.result).token_id, 8);
  ASSERT_EQ(old.requests.size(), 1U);
  const auto& first = old.requests[0];
  EXPECT_EQ(first["X-Meshnet-Session"], "s1");
  EXPECT_EQ(first.count("X-Meshnet-Route"), 0U);
  EXPECT_EQ(first.count("X-Meshnet-Meta-Length"), 0U);
  EXPECT_EQ(first.body(), hidden('h').bytes) << "an old node reads the body as the tensor alone";
  const auto second = parse_forward(tail.requests.at(0), {Dtype::kFloat32, kHidden, 100});
  EXPECT_EQ(second.hidden.bytes, hidden('o').bytes);
  EXPECT_EQ(second.start_layer, 5);
  EXPECT_EQ(second.hop_index, 2);
  EXPECT_EQ(second.meta, request().meta) << "every later hop speaks protocol 1";
}

TEST_F(PipelineTest, AChainEndsBeforeAnOldNode) {
  StubNode first(io_, tensor('1', 1));
  StubNode second(io_, tensor('2', 1));
  StubNode old(io_, tensor('o', 0));
  StubNode tail(io_, token(9));
  const auto reply = carry({{"first", first.url(), 1, 1},
                            {"second", second.url(), 2, 1},
                            {"old", old.url(), 3, 0},
                            {"tail", tail.url(), 4, 1}});
  EXPECT_EQ(std::get<TokenReply>(reply.result).token_id, 9);
  EXPECT_TRUE(second.requests.empty()) << "the first passes it on itself";
  EXPECT_EQ(first.requests.at(0)["X-Meshnet-Route"], "first,second");
  EXPECT_EQ(first.requests.at(0).count("X-Meshnet-Meta-Length"), 0U) << "an old node comes later";
  EXPECT_EQ(old.requests.at(0).body(), hidden('1').bytes);
  EXPECT_EQ(tail.requests.at(0)["X-Meshnet-Hop-Index"], "4");
}

TEST_F(PipelineTest, TheAnswerCarriesTheTimingOfEveryHop) {
  StubNode old(io_, tensor('o', 0));
  StubNode tail(io_, token(8));
  const auto timings = parse_server_timing(
      carry({{"old", old.url(), 3, 0}, {"tail", tail.url(), 5, 1}}).server_timing);
  ASSERT_EQ(timings.size(), 3U);
  EXPECT_EQ(timings[0].part + timings[0].node, "wireold");
  EXPECT_EQ(timings[1].part + timings[1].node, "wiretail");
  EXPECT_EQ(timings[2].part + timings[2].node, "computetail");
}

TEST_F(PipelineTest, AHopsOwnErrorClimbsUnchanged) {
  StubNode middle(io_, [](const HttpRequest&) -> Awaitable<HttpResponse> {
    HttpError miss(409, "cache_miss", "gone");
    miss.reason = "evicted_ttl";
    miss.node = "tail";
    miss.hop_index = 2;
    miss.layers = "5-7";
    HttpResponse response{http::status::conflict, 11};
    response.body() = format_node_error(miss);
    co_return response;
  });
  const auto error = error_of({{"middle", middle.url(), 3, 1}});
  EXPECT_EQ(error.status, 409U);
  EXPECT_EQ(error.error, "cache_miss");
  EXPECT_EQ(error.reason, "evicted_ttl");
  EXPECT_EQ(error.node, "tail");
  EXPECT_EQ(error.hop_index, 2);
  EXPECT_EQ(error.layers, "5-7");
}

TEST_F(PipelineTest, AnswersThatCannotBeAreRefusedNamingTheHop) {
  StubNode early(io_, token(3));
  StubNode old(io_, tensor('o', 0));
  StubNode shorter(io_, [](const HttpRequest&) -> Awaitable<HttpResponse> {
    const HiddenStates one_row{Dtype::kBFloat16, 1, kHidden, std::string(kHidden * 2, 's')};
    co_return format_forward_reply({one_row, ""});
  });
  StubNode garbage(io_, [](const HttpRequest&) -> Awaitable<HttpResponse> {
    HttpResponse response{http::status::ok, 11};
    response.set(http::field::content_type, "application/json");
    response.body() = "{";
    co_return response;
  });
  const auto early_error = error_of({{"early", early.url(), 3, 1}, {"old", old.url(), 4, 0}});
  EXPECT_THAT(early_error.what(), HasSubstr("early answered with a token, but old comes after it"));
  const auto short_error = error_of({{"shorter", shorter.url(), 3, 1}});
  EXPECT_THAT(short_error.what(), HasSubstr("expected 2 tokens, got 1"));
  const auto garbage_error = error_of({{"garbage", garbage.url(), 3, 1}});
  for (const auto* error : {&early_error, &short_error, &garbage_error})
    EXPECT_EQ(error->status, 502U);
  EXPECT_EQ(early_error.node, "early");
  EXPECT_EQ(short_error.node, "shorter");
  EXPECT_EQ(garbage_error.node, "garbage");
}

TEST_F(PipelineTest, AnUnreachableHopIs502NamingIt) {
  Url gone;
  {
    StubNode closed(io_, token(1));
    gone = closed.url();
  }
  const auto error = error_of({{"tail", gone, 3, 1}});
  EXPECT_EQ(error.status, 502U);
  EXPECT_EQ(error.node, "tail");
  EXPECT_THAT(error.what(), HasSubstr(authority(gone)));
}

TEST_F(PipelineTest, AHopMayFirstEndTheChunkOfAnotherSession) {
  self_.timeouts.decode = std::chrono::milliseconds(50);
  self_.timeouts.prefill_per_token = std::chrono::milliseconds(10);
  StubNode busy(io_, [&](const HttpRequest& request) -> Awaitable<HttpResponse> {
    asio::steady_timer chunk(io_, std::chrono::milliseconds(400));
    co_await chunk.async_wait(asio::use_awaitable);
    StubNode::Answer answer = token(8);
    co_return co_await answer(request);
  });
  const auto reply = carry({{"tail", busy.url(), 3, 1}});
  EXPECT_EQ(std::get<TokenReply>(reply.result).token_id, 8);
}

TEST_F(PipelineTest, ALateHopIs504NamingIt) {
  self_.timeouts.decode = std::chrono::milliseconds(50);
  self_.timeouts.prefill_per_token = std::chrono::milliseconds(1);
  asio::steady_timer never(io_);
  never.expires_after(std::chrono::hours(1));
  StubNode slow(io_, [&](const HttpRequest&) -> Awaitable<HttpResponse> {
    co_await never.async_wait(asio::use_awaitable);
    co_return HttpResponse{http::status::ok, 11};
  });
  const auto error = error_of({{"slow", slow.url(), 3, 1}});
  EXPECT_EQ(error.status, 504U);
  EXPECT_EQ(error.node, "slow");
}

TEST(ResolveRouteTest, EachHopStartsWhereTheOneBeforeEnds) {
  Topology topology;
  for (const auto& [name, layers] :
       {std::pair<const char*, LayerRange>{"head", {0, 4}}, {"wide", {2, 7}}, {"tail", {6, 9}}}) {
    NodeSettings node;
    node.name = name;
    node.layers = layers;
    topology.nodes.push_back(node);
  }
  const auto& head = topology.node("head");
  EXPECT_TRUE(resolve_route({}, head, topology).empty());
  const auto hops = resolve_route({"head", "wide", "tail"}, head, topology);
  ASSERT_EQ(hops.size(), 2U);
  EXPECT_EQ(hops[0].start_layer, 4);
  EXPECT_EQ(hops[1].start_layer, 7);

  for (const auto& [names, what] : std::vector<std::pair<std::vector<std::string>, const char*>>{
           {{"tail"}, "expected this node, 'head'"},
           {{"head", "other"}, "no node 'other'"},
           {{"head", "tail"}, "layer 4 comes next, but 'tail' holds 6-8"}}) {
    try {
      resolve_route(names, head, topology);
      FAIL() << what;
    } catch (const HttpError& error) {
      EXPECT_EQ(error.status, 400U);
      EXPECT_THAT(error.what(), HasSubstr(what));
    }
  }
}

}  // namespace
}  // namespace meshnet
