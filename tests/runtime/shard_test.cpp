#include "runtime/shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <functional>

#include "net/http_error.h"
#include "tests/runtime/shards.h"

namespace meshnet {
namespace {

using testing::ElementsAre;

constexpr int64_t kMaxQueue = 2;
constexpr int64_t kLong = 4000;  // tokens: more arrives while such a prefill runs

StepInput prefill(const std::string& session, int64_t tokens, int64_t epoch = 1) {
  StepInput step;
  step.input = Ids(static_cast<std::size_t>(tokens), 7);
  step.mode = CacheMode::kPrefill;
  step.session = session;
  step.epoch = epoch;
  return step;
}

StepInput decode(const std::string& session, int64_t past_len) {
  StepInput step = prefill(session, 1);
  step.mode = CacheMode::kDecode;
  step.position = past_len;
  return step;
}

class ShardTest : public testing::Test {
 protected:
  ShardTest() : shard_(load_shard(io_, 0, kMaxQueue)) {}

  /// A request: it is in the queue, or on the compute thread, when this returns.
  void send(const std::string& name, StepInput step, bool admitted = true) {
    asio::co_spawn(
        io_,
        shard_->step(std::move(step), admitted),
        asio::bind_cancellation_slot(cancellations_[name].slot(),
                                     [this, name](auto error, const TimedOutput& output) {
                                       ended_.push_back(name);
                                       outcomes_[name] = error ? outcome_of(error) : "served";
                                       compute_ms_[name] = output.compute_ms;
                                       if (then_[name]) then_[name]();
                                     }));
    io_.restart();
    io_.poll();
  }
  void run() {
    io_.restart();
    io_.run();
  }

  static std::string outcome_of(const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const HttpError& http) {
      return http.reason.empty() ? std::to_string(http.status) : http.reason;
    } catch (const boost::system::system_error&) {
      return "cancelled";
    }
  }

  asio::io_context io_;
  std::unique_ptr<Shard> shard_;
  std::vector<std::string> ended_;  ///< in their order
  std::map<std::string, std::string> outcomes_;
  std::map<std::string, double> compute_ms_;
  std::map<std::string, std::function<void()>> then_;
  std::map<std::string, asio::cancellation_signal> cancellations_;
};

TEST_F(ShardTest, ADecodeWaitsForOnePrefillAndAPrefillForOneRoundOfDecodes) {
  send("open", prefill("s", 3));
  run();
  send("first", prefill("a", kLong));
  send("second", prefill("b", kLong));
  send("third", prefill("c", kLong));
  send("decode", decode("s", 3));
  then_["decode"] = [&] { send("next decode", decode("s", 4)); };
  run();
  EXPECT_THAT(ended_, ElementsAre("open", "first", "decode", "second", "next decode", "third"));
  for (const auto& [name, outcome] : outcomes_) EXPECT_EQ(outcome, "served") << name;
}

TEST_F(ShardTest, DecodesThatWaitRunAsOne) {
  for (const char* session : {"s", "t", "u"}) send(session, prefill(session, 3));
  run();
  send("long", prefill("a", kLong));
  for (const char* session : {"s", "t", "u"}) send(session, decode(session, 3));
  run();
  EXPECT_EQ(compute_ms_["s"], compute_ms_["t"]);
  EXPECT_EQ(compute_ms_["s"], compute_ms_["u"]);
}

TEST_F(ShardTest, StepsOfOneSessionKeepTheirOrder) {
  send("long", prefill("a", kLong));
  send("prefill", prefill("s", 3));
  send("decode", decode("s", 3));
  send("next decode", decode("s", 4));
  run();
  EXPECT_THAT(ended_, ElementsAre("long", "prefill", "decode", "next decode"));
  for (const auto& [name, outcome] : outcomes_) EXPECT_EQ(outcome, "served") << name;
}

TEST_F(ShardTest, AFullQueueIsForNewSessionsOnly) {
  send("open", prefill("s", 3));
  run();
  send("running", prefill("a", kLong));
  for (int i = 0; i < kMaxQueue; ++i) send("waiting", prefill("b", 1));
  send("new", prefill("c", 1), /*admitted=*/false);
  EXPECT_EQ(outcomes_["new"], "429");
  send("decode", decode("s", 3));
  EXPECT_EQ(shard_->queued(), kMaxQueue + 2);
  run();
  EXPECT_EQ(outcomes_["decode"], "served");
}

TEST_F(ShardTest, AStepWhoseCallerIsGoneIsDropped) {
  send("running", prefill("a", kLong));
  send("gone", prefill("s", 3));
  cancellations_["gone"].emit(asio::cancellation_type::terminal);
  io_.poll();
  EXPECT_EQ(outcomes_["gone"], "cancelled");
  EXPECT_EQ(shard_->queued(), 1);
  send("decode", decode("s", 3));
  run();
  EXPECT_EQ(outcomes_["decode"], "unknown_session") << "it never ran";
}

TEST_F(ShardTest, AStepThatWaitsIsSupersededByAHigherEpoch) {
  send("open", prefill("s", 3));
  run();
  send("running", prefill("a", kLong));
  send("old", decode("s", 3));
  send("new", prefill("s", 4, /*epoch=*/2));
  run();
  EXPECT_EQ(outcomes_["old"], "superseded_epoch");
  EXPECT_EQ(outcomes_["new"], "served");
  EXPECT_EQ(shard_->cache_status().sessions.back().epoch, 2);
}

}  // namespace
}  // namespace meshnet
