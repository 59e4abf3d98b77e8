// Steps that ask for a session in use.

#include <gmock/gmock.h>

#include <future>

#include "cache/session_store.h"
#include "support.h"

namespace meshnet {
namespace {

using namespace std::chrono_literals;
using testing::Optional;

class SessionStoreWaitingTest : public testing::Test {
 protected:
  static SessionStore::Lease lease_of(std::variant<SessionStore::Lease, Miss> result) {
    return std::get<SessionStore::Lease>(std::move(result));
  }

  SessionStore store_{
      recipe_of({kFull, kFull}), {.ttl = 60s, .max_sessions = 8, .max_bytes = 400'000}, at::kCPU};
  const SessionKey s1_{"s1"};
  const SessionKey s1_next_{"s1", 2};
};

/// Starts `ask` on a thread and sees that it is still waiting after a while.
template <typename Ask>
auto start_waiting(Ask ask) {
  auto answer = std::async(std::launch::async, std::move(ask));
  EXPECT_EQ(answer.wait_for(50ms), std::future_status::timeout) << "did not wait for the lease";
  return answer;
}

TEST_F(SessionStoreWaitingTest, StepsOfOneSessionWaitForEachOther) {
  auto lease = lease_of(store_.open(s1_, 0, 5));
  auto step = start_waiting([&] { return decode(store_, s1_, 5); });
  auto look = start_waiting([&] { return miss_reason(store_, s1_); });
  EXPECT_EQ(prefill(store_, {"s2"}, 5), std::nullopt);  // others do not wait
  take_up(lease.cache(), 5);
  lease.commit();
  {
    const auto last = std::move(lease);
  }
  EXPECT_EQ(step.get(), std::nullopt);
  EXPECT_EQ(look.get(), std::nullopt);
  EXPECT_EQ(store_.get(s1_).cache().length(), 6);
}

TEST_F(SessionStoreWaitingTest, WaitingStepOfAFailedOneIsAMiss) {
  prefill(store_, s1_, 5);
  auto lease = lease_of(store_.append(s1_, 0, 5, 1));
  auto step = start_waiting([&] { return decode(store_, s1_, 6); });
  {
    const auto last = std::move(lease);
  }
  EXPECT_THAT(step.get(), Optional(MissReason::kUnknownSession));
}

TEST_F(SessionStoreWaitingTest, ReleaseWakesWaitersAtOnce) {
  prefill(store_, s1_, 5);
  auto lease = lease_of(store_.append(s1_, 0, 5, 1));
  auto step = start_waiting([&] { return decode(store_, s1_, 6); });
  auto fresh = start_waiting([&] { return prefill(store_, s1_, 6); });
  store_.release("s1");
  EXPECT_THAT(step.get(), Optional(MissReason::kReleased));
  EXPECT_THAT(fresh.get(), Optional(MissReason::kReleased));
}

TEST_F(SessionStoreWaitingTest, HigherEpochWakesOldWaitersAtOnceAndOpensAfterTheLease) {
  prefill(store_, s1_, 5, 1);
  auto lease = lease_of(store_.append(s1_, 0, 5, 1));
  auto old_step = start_waiting([&] { return decode(store_, s1_, 6); });
  auto next = start_waiting([&] { return prefill(store_, s1_next_, 3, 2); });
  EXPECT_THAT(old_step.get(), Optional(MissReason::kSupersededEpoch));
  EXPECT_THAT(decode(store_, s1_, 6), Optional(MissReason::kSupersededEpoch));
  EXPECT_THAT(decode(store_, s1_next_, 3), Optional(MissReason::kUnknownSession));
  EXPECT_TRUE(holds_only(lease.cache(), 1));  // nothing was freed under its user
  lease.commit();
  {
    const auto last = std::move(lease);
  }
  EXPECT_EQ(next.get(), std::nullopt);
  EXPECT_EQ(store_.get(s1_next_).cache().length(), 3);
  EXPECT_EQ(store_.total_bytes(), 8192);
}

TEST_F(SessionStoreWaitingTest, WaitingOpenIsItselfSuperseded) {
  auto lease = lease_of(store_.open(s1_, 0, 5));
  auto second = start_waiting([&] { return prefill(store_, {"s1", 2}, 3); });
  auto third = start_waiting([&] { return prefill(store_, {"s1", 3}, 4); });
  EXPECT_THAT(second.get(), Optional(MissReason::kSupersededEpoch));
  {
    const auto last = std::move(lease);
  }
  EXPECT_EQ(third.get(), std::nullopt);
  EXPECT_EQ(store_.get({"s1", 3}).cache().length(), 4);
}

}  // namespace
}  // namespace meshnet
