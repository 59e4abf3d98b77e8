// TTL, session count, byte budget, and what is remembered of gone sessions.

#include <gmock/gmock.h>

#include <stdexcept>

#include "cache/session_store.h"
#include "support.h"

namespace meshnet {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::Optional;
using testing::ThrowsMessage;

constexpr int64_t kBlock = 4096;  ///< bytes of 256 tokens in one kFull layer

struct BoundedStore {
  explicit BoundedStore(int64_t max_sessions, int64_t max_blocks)
      : store(recipe_of({kFull}),
              {.ttl = 60s, .max_sessions = max_sessions, .max_bytes = max_blocks * kBlock},
              at::kCPU,
              clock.now()) {}

  SessionStore::Lease open(const SessionKey& key, int64_t tokens) {
    return std::get<SessionStore::Lease>(store.open(key, 0, tokens));
  }

  std::vector<std::string> ids() {
    std::vector<std::string> ids;
    for (const SessionInfo& info : store.sessions()) ids.push_back(info.id);
    return ids;
  }

  FakeClock clock;
  SessionStore store;
};

/// Ends a step well.
void finish(SessionStore::Lease lease, int64_t tokens) {
  take_up(lease.cache(), tokens);
  lease.commit();
}

TEST(SessionTtlTest, CountsFromTheEndOfTheLastStep) {
  BoundedStore bounded(8, 100);
  SessionStore& store = bounded.store;
  prefill(store, {"s1"}, 5);
  bounded.clock.advance(59s);
  EXPECT_EQ(decode(store, {"s1"}, 5), std::nullopt);
  bounded.clock.advance(59s);
  EXPECT_EQ(miss_reason(store, {"s1"}), std::nullopt);  // a look is no step
  bounded.clock.advance(1s);
  EXPECT_THAT(decode(store, {"s1"}, 6), Optional(MissReason::kEvictedTtl));
  EXPECT_THAT(miss_reason(store, {"s1"}), Optional(MissReason::kEvictedTtl));
  EXPECT_EQ(prefill(store, {"s1"}, 5), std::nullopt);  // a new prefill revives it
}

TEST(SessionTtlTest, MayBeLongerThanAClockOfNanosecondsRuns) {
  FakeClock clock;
  SessionStore store(recipe_of({kFull}),
                     {.ttl = std::chrono::seconds(int64_t{1} << 40), .max_bytes = kBlock},
                     at::kCPU,
                     clock.now());
  prefill(store, {"s1"}, 5);
  clock.advance(1h);
  EXPECT_EQ(decode(store, {"s1"}, 5), std::nullopt);
}

TEST(SessionTtlTest, IsCheckedOnEveryAccess) {
  const std::vector<std::function<void(SessionStore&)>> accesses{
      [](SessionStore& store) { store.admit({"other"}); },
      [](SessionStore& store) { prefill(store, {"other"}, 1); },
      [](SessionStore& store) { decode(store, {"other"}, 1); },
      [](SessionStore& store) { miss_reason(store, {"other"}); },
      [](SessionStore& store) { EXPECT_THROW(store.get({"other"}), CacheMiss); },
      [](SessionStore& store) { store.truncate({"other"}, 0); },
      [](SessionStore& store) { store.release("other"); },
      [](SessionStore& store) { store.total_bytes(); },
      [](SessionStore& store) { store.sessions(); },
      [](SessionStore& store) { EXPECT_FALSE(store.release("s1")); },
  };
  for (std::size_t i = 0; i < accesses.size(); ++i) {
    BoundedStore bounded(8, 100);
    prefill(bounded.store, {"s1"}, 5);
    bounded.clock.advance(60s);
    accesses[i](bounded.store);
    bounded.clock.advance(-60s);  // only the access itself can have seen that time
    EXPECT_THAT(miss_reason(bounded.store, {"s1"}),
                Optional(i + 1 < accesses.size() ? MissReason::kEvictedTtl : MissReason::kReleased))
        << i;
  }
}

TEST(SessionTtlTest, SparesStateInUse) {
  BoundedStore bounded(8, 100);
  auto lease = bounded.open({"s1"}, 5);
  bounded.clock.advance(1000s);
  EXPECT_EQ(bounded.store.total_bytes(), kBlock);
  take_up(lease.cache(), 5);
  lease.commit();
  {
    const auto last = std::move(lease);
  }
  EXPECT_EQ(decode(bounded.store, {"s1"}, 5), std::nullopt);
  {
    const auto look = bounded.store.get({"s1"});
    bounded.clock.advance(60s);
    EXPECT_EQ(bounded.store.total_bytes(), kBlock);
  }
  EXPECT_THAT(miss_reason(bounded.store, {"s1"}), Optional(MissReason::kEvictedTtl));
}

TEST(SessionLruTest, EvictsTheLeastRecentlyUsed) {
  BoundedStore bounded(3, 100);
  SessionStore& store = bounded.store;
  for (const auto* id : {"s1", "s2", "s3"}) prefill(store, {id}, 5);
  decode(store, {"s1"}, 5);
  miss_reason(store, {"s2"});  // a look is no use
  EXPECT_THAT(bounded.ids(), testing::ElementsAre("s2", "s3", "s1"));
  prefill(store, {"s4"}, 5);
  EXPECT_THAT(miss_reason(store, {"s2"}), Optional(MissReason::kEvictedLru));
  EXPECT_THAT(bounded.ids(), testing::ElementsAre("s3", "s1", "s4"));
  store.truncate({"s3"}, 2);
  prefill(store, {"s1"}, 5);  // itself needs no other's place
  EXPECT_THAT(bounded.ids(), testing::ElementsAre("s4", "s3", "s1"));
}

TEST(SessionLruTest, SparesStateInUseAndKeepsTheBoundAfterwards) {
  BoundedStore bounded(2, 100);
  SessionStore& store = bounded.store;
  auto first = bounded.open({"s1"}, 5);
  auto second = bounded.open({"s2"}, 5);
  auto third = bounded.open({"s3"}, 5);
  EXPECT_EQ(store.sessions().size(), 3U);
  finish(std::move(first), 5);  // the only idle one goes
  EXPECT_THAT(miss_reason(store, {"s1"}), Optional(MissReason::kEvictedLru));
  finish(std::move(second), 5);
  EXPECT_EQ(store.sessions().size(), 2U);
  finish(std::move(third), 5);
  EXPECT_THAT(bounded.ids(), testing::ElementsAre("s2", "s3"));
}

TEST(SessionBytesTest, EvictsUntilTheStepFits) {
  BoundedStore bounded(8, 4);
  SessionStore& store = bounded.store;
  for (const auto* id : {"s1", "s2", "s3", "s4"}) prefill(store, {id}, 256);
  EXPECT_EQ(store.total_bytes(), 4 * kBlock);
  EXPECT_EQ(decode(store, {"s2"}, 256), std::nullopt);  // its second block
  EXPECT_THAT(bounded.ids(), testing::ElementsAre("s3", "s4", "s2"));
  EXPECT_THAT(miss_reason(store, {"s1"}), Optional(MissReason::kEvictedLru));
  EXPECT_EQ(prefill(store, {"s5"}, 700), std::nullopt);
  EXPECT_THAT(bounded.ids(), testing::ElementsAre("s5"));
  EXPECT_EQ(store.total_bytes(), 3 * kBlock);
}

TEST(SessionBytesTest, OwnOldStateMakesRoomFirst) {
  BoundedStore bounded(8, 4);
  prefill(bounded.store, {"s1"}, 256);
  prefill(bounded.store, {"s2"}, 700);
  EXPECT_EQ(prefill(bounded.store, {"s2"}, 600), std::nullopt);
  EXPECT_THAT(bounded.ids(), testing::ElementsAre("s1", "s2"));
}

TEST(SessionBytesTest, CountsWhatAStepWillHaveAllocated) {
  BoundedStore bounded(8, 4);
  prefill(bounded.store, {"s1"}, 256);
  auto lease = bounded.open({"s2"}, 600);
  EXPECT_EQ(bounded.store.total_bytes(), 4 * kBlock);
  EXPECT_EQ(lease.cache().nbytes(), 0);
  prefill(bounded.store, {"s3"}, 1);  // only s1 is idle: the bound is exceeded by what is in use
  EXPECT_THAT(miss_reason(bounded.store, {"s1"}), Optional(MissReason::kEvictedLru));
  EXPECT_EQ(bounded.store.total_bytes(), 4 * kBlock);
  finish(std::move(lease), 600);
  EXPECT_EQ(bounded.store.total_bytes(), 4 * kBlock);
}

TEST(SessionBytesTest, BoundIsKeptAfterALease) {
  BoundedStore bounded(8, 4);
  auto first = bounded.open({"s1"}, 600);
  auto second = bounded.open({"s2"}, 600);
  EXPECT_EQ(bounded.store.total_bytes(), 6 * kBlock);
  finish(std::move(first), 600);
  EXPECT_THAT(miss_reason(bounded.store, {"s1"}), Optional(MissReason::kEvictedLru));
  EXPECT_EQ(bounded.store.total_bytes(), 3 * kBlock);
  finish(std::move(second), 600);
  EXPECT_EQ(bounded.store.total_bytes(), 3 * kBlock);
}

TEST(SessionBytesTest, SessionThatAloneIsTooLargeEvictsNobody) {
  BoundedStore bounded(8, 4);
  SessionStore& store = bounded.store;
  prefill(store, {"s1"}, 5);
  prefill(store, {"s2"}, 5);
  EXPECT_THAT([&] { store.open({"s2"}, 0, 1025); },
              ThrowsMessage<SessionExceedsBudget>(HasSubstr(std::to_string(5 * kBlock))));
  EXPECT_THAT(bounded.ids(), testing::ElementsAre("s1"));
  EXPECT_THAT(miss_reason(store, {"s2"}), Optional(MissReason::kUnknownSession));
  EXPECT_EQ(store.total_bytes(), kBlock);

  EXPECT_EQ(prefill(store, {"s2"}, 700), std::nullopt);
  EXPECT_THROW(store.append({"s2"}, 0, 700, 325), SessionExceedsBudget);
  EXPECT_THAT(bounded.ids(), testing::ElementsAre("s1"));
  EXPECT_THAT(decode(store, {"s2"}, 700), Optional(MissReason::kUnknownSession));
  EXPECT_EQ(prefill(store, {"s2"}, 1024), std::nullopt);  // exactly the budget
  EXPECT_EQ(store.total_bytes(), 4 * kBlock);
}

TEST(SessionMemoryTest, RemembersTheLast1024Gone) {
  BoundedStore bounded(1, 100);
  SessionStore& store = bounded.store;
  const auto key = [](int i) { return SessionKey{numbered("s", i)}; };
  for (int i = 0; i <= 1024; ++i) prefill(store, key(i), 1);  // 1,024 evicted, one is live
  EXPECT_THAT(miss_reason(store, key(0)), Optional(MissReason::kEvictedLru));  // now the newest
  store.release("another");
  store.release("and another");
  EXPECT_THAT(miss_reason(store, key(0)), Optional(MissReason::kEvictedLru));
  EXPECT_THAT(miss_reason(store, key(1)), Optional(MissReason::kUnknownSession));
  EXPECT_THAT(miss_reason(store, key(2)), Optional(MissReason::kUnknownSession));
  EXPECT_THAT(miss_reason(store, key(3)), Optional(MissReason::kEvictedLru));
  EXPECT_EQ(miss_reason(store, key(1024)), std::nullopt);
}

TEST(SessionMemoryTest, StateIsNotForgottenWithTheGone) {
  BoundedStore bounded(8, 100);
  SessionStore& store = bounded.store;
  prefill(store, {"s1", 5}, 1);
  for (int i = 0; i < 3000; ++i) store.admit({numbered("other", i)});
  EXPECT_THROW(store.admit({"s1", 4}), StaleEpoch);
  EXPECT_EQ(decode(store, {"s1", 5}, 1), std::nullopt);
  store.release("s1");
  for (int i = 0; i < 1023; ++i) store.admit({numbered("other", i)});
  EXPECT_THAT(prefill(store, {"s1", 5}, 1), Optional(MissReason::kReleased));
  for (int i = 0; i < 1026; ++i) store.admit({numbered("more", i)});
  EXPECT_EQ(prefill(store, {"s1", 1}, 1), std::nullopt);
}

}  // namespace
}  // namespace meshnet
