// Operations, misses, epochs and leases. Bounds have a file of their own.

#include "cache/session_store.h"

#include <gmock/gmock.h>

#include <stdexcept>

#include "support.h"

namespace meshnet {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::Optional;

constexpr int64_t kBlock = 4096;  ///< bytes of 256 tokens in one kFull layer

SessionLimits roomy() { return {.ttl = 60s, .max_sessions = 8, .max_bytes = 100 * kBlock}; }

class SessionStoreTest : public testing::Test {
 protected:
  /// The message of a miss; empty when there is none.
  static std::string message_of(const std::variant<SessionStore::Lease, Miss>& result) {
    const auto* miss = std::get_if<Miss>(&result);
    return miss ? miss->message : "";
  }

  SessionStore::Lease lease_of(std::variant<SessionStore::Lease, Miss> result) {
    EXPECT_TRUE(std::holds_alternative<SessionStore::Lease>(result));
    return std::get<SessionStore::Lease>(std::move(result));
  }

  FakeClock clock_;
  SessionStore store_{recipe_of({kFull, kFull}), roomy(), at::kCPU, clock_.now()};
  const SessionKey s1_{"s1"};
  const SessionKey s1_next_{"s1", 2};
};

TEST(MissReasonTest, HasItsWireName) {
  EXPECT_EQ(to_string(MissReason::kUnknownSession), "unknown_session");
  EXPECT_EQ(to_string(MissReason::kEvictedTtl), "evicted_ttl");
  EXPECT_EQ(to_string(MissReason::kEvictedLru), "evicted_lru");
  EXPECT_EQ(to_string(MissReason::kReleased), "released");
  EXPECT_EQ(to_string(MissReason::kSupersededEpoch), "superseded_epoch");
  EXPECT_EQ(to_string(MissReason::kSeqLenMismatch), "seq_len_mismatch");
  EXPECT_EQ(to_string(MissReason::kStartLayerMismatch), "start_layer_mismatch");
  EXPECT_EQ(to_string(MissReason::kCachingDisabled), "caching_disabled");
  EXPECT_EQ(to_string(MissReason::kStateNotRewindable), "state_not_rewindable");
}

TEST_F(SessionStoreTest, PrefillThenDecodes) {
  EXPECT_EQ(prefill(store_, s1_, 5, 7), std::nullopt);
  EXPECT_EQ(decode(store_, s1_, 5, 3, 7), std::nullopt);
  EXPECT_EQ(decode(store_, s1_, 8, 1, 7), std::nullopt);
  auto lease = store_.get(s1_);
  EXPECT_EQ(lease.cache().length(), 9);
  EXPECT_TRUE(holds_only(lease.cache(), 7));
}

// B04: whether state exists decides, not the number of tokens.
TEST_F(SessionStoreTest, OneTokenPrefillStartsFromNothing) {
  prefill(store_, s1_, 50, 1);
  store_.release("s1");
  EXPECT_EQ(prefill(store_, {"s2"}, 1, 2), std::nullopt);
  EXPECT_EQ(store_.get({"s2"}).cache().length(), 1);
  EXPECT_TRUE(holds_only(store_.get({"s2"}).cache(), 2));
  EXPECT_EQ(prefill(store_, {"s2"}, 1, 3), std::nullopt);  // again, over state
  EXPECT_EQ(store_.get({"s2"}).cache().length(), 1);
  EXPECT_TRUE(holds_only(store_.get({"s2"}).cache(), 3));
}

TEST_F(SessionStoreTest, UnknownSessionIsAMiss) {
  EXPECT_THAT(decode(store_, s1_, 0), Optional(MissReason::kUnknownSession));
  EXPECT_THAT(miss_reason(store_, s1_), Optional(MissReason::kUnknownSession));
  EXPECT_EQ(store_.truncate(s1_, 0).value().reason, MissReason::kUnknownSession);
  EXPECT_THAT(message_of(store_.resolve(s1_)), HasSubstr("s1"));
  store_.admit(s1_);
  EXPECT_THAT(decode(store_, s1_, 0), Optional(MissReason::kUnknownSession));
}

TEST_F(SessionStoreTest, GetThrowsTheMiss) {
  try {
    store_.get(s1_);
    FAIL();
  } catch (const CacheMiss& error) {
    EXPECT_EQ(error.miss.reason, MissReason::kUnknownSession);
    EXPECT_EQ(error.what(), error.miss.message);
  }
}

TEST_F(SessionStoreTest, MismatchIsAMissAndLeavesTheState) {
  prefill(store_, s1_, 5);
  EXPECT_THAT(decode(store_, s1_, 4), Optional(MissReason::kSeqLenMismatch));  // a repeated step
  EXPECT_THAT(decode(store_, s1_, 6), Optional(MissReason::kSeqLenMismatch));
  EXPECT_THAT(message_of(store_.append(s1_, 0, 6, 1)), AllOf(HasSubstr("6"), HasSubstr("5")));
  EXPECT_THAT(reason_of(store_.append(s1_, 1, 5, 1)), Optional(MissReason::kStartLayerMismatch));
  EXPECT_THAT(reason_of(store_.append(s1_, 9, 5, 1)), Optional(MissReason::kStartLayerMismatch));
  EXPECT_EQ(store_.total_bytes(), 2 * kBlock);
  EXPECT_EQ(decode(store_, s1_, 5), std::nullopt);
}

TEST_F(SessionStoreTest, StartLayerIsWhereTheStateBegins) {
  {
    auto lease = lease_of(store_.open(s1_, 1, 5));
    EXPECT_EQ(lease.cache().layers(), (LayerRange{1, 2}));
    take_up(lease.cache(), 5);
    lease.commit();
  }
  EXPECT_EQ(store_.total_bytes(), kBlock);
  EXPECT_THAT(decode(store_, s1_, 5), Optional(MissReason::kStartLayerMismatch));
  EXPECT_EQ(reason_of(store_.resolve(s1_)), std::nullopt);
  EXPECT_THROW(store_.open({"s1", 2}, 2, 5), std::out_of_range);
  EXPECT_EQ(miss_reason(store_, s1_), std::nullopt);  // nothing was touched
}

TEST_F(SessionStoreTest, FailedStepDropsTheSession) {
  {
    const auto lease = lease_of(store_.open(s1_, 0, 5));
  }
  EXPECT_THAT(miss_reason(store_, s1_), Optional(MissReason::kUnknownSession));
  prefill(store_, s1_, 5);
  {
    auto lease = lease_of(store_.append(s1_, 0, 5, 1));
    take_up(lease.cache(), 1);
  }
  EXPECT_THAT(decode(store_, s1_, 5), Optional(MissReason::kUnknownSession));
  EXPECT_EQ(store_.total_bytes(), 0);
  EXPECT_EQ(prefill(store_, s1_, 6), std::nullopt);
}

TEST_F(SessionStoreTest, LookingDropsNothing) {
  prefill(store_, s1_, 5);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(store_.get(s1_).cache().length(), 5);
  EXPECT_EQ(decode(store_, s1_, 5), std::nullopt);
}

TEST_F(SessionStoreTest, MovedLeaseEndsOnce) {
  prefill(store_, s1_, 5);
  prefill(store_, {"s2"}, 5);
  auto lease = lease_of(store_.append(s1_, 0, 5, 1));
  {
    auto other = lease_of(store_.append({"s2"}, 0, 5, 1));
    take_up(other.cache(), 1);
    other.commit();
    lease = std::move(other);  // ends that of s1, uncommitted
    EXPECT_THAT(miss_reason(store_, s1_), Optional(MissReason::kUnknownSession));
  }
  EXPECT_TRUE(store_.sessions().at(0).in_use);
  {
    const auto last = std::move(lease);
  }
  EXPECT_EQ(store_.get({"s2"}).cache().length(), 6);
}

TEST_F(SessionStoreTest, StateThatCannotBeMadeEndsTheSession) {
  // No tensor has a negative size: making layer 0's state throws.
  SessionStore store(recipe_of({RecurrentGeometry{.conv_dim = -1, .conv_kernel_size = 4}, kFull}),
                     roomy(),
                     at::kCPU);
  {
    auto lease = lease_of(store.open(s1_, 1, 5));
    lease.commit();
  }
  EXPECT_EQ(miss_reason(store, s1_), std::nullopt);
  EXPECT_THROW(store.open(s1_, 0, 5), c10::Error);
  EXPECT_THAT(miss_reason(store, s1_), Optional(MissReason::kUnknownSession));
  EXPECT_EQ(store.total_bytes(), 0);
  EXPECT_TRUE(store.sessions().empty());
  lease_of(store.open(s1_, 1, 5)).commit();
  EXPECT_EQ(miss_reason(store, s1_), std::nullopt);
}

TEST_F(SessionStoreTest, ReleasedStaysReleased) {
  prefill(store_, s1_, 5);
  EXPECT_TRUE(store_.release("s1"));
  EXPECT_FALSE(store_.release("s1"));
  EXPECT_EQ(store_.total_bytes(), 0);
  for (const int64_t epoch : {0, 1, 2}) {
    EXPECT_THAT(prefill(store_, {"s1", epoch}, 5), Optional(MissReason::kReleased));
    EXPECT_THAT(decode(store_, {"s1", epoch}, 5), Optional(MissReason::kReleased));
    EXPECT_THAT(miss_reason(store_, {"s1", epoch}), Optional(MissReason::kReleased));
  }
  EXPECT_FALSE(store_.release("s2"));  // before its prefill has come
  EXPECT_THAT(prefill(store_, {"s2", 7}, 5), Optional(MissReason::kReleased));
  EXPECT_EQ(store_.total_bytes(), 0);
}

TEST_F(SessionStoreTest, ReleaseDuringAStepTakesEffectAtItsEnd) {
  auto lease = lease_of(store_.open(s1_, 0, 300));
  EXPECT_TRUE(store_.release("s1"));
  EXPECT_FALSE(store_.release("s1"));
  EXPECT_EQ(store_.total_bytes(), 4 * kBlock);
  take_up(lease.cache(), 300, 3);
  EXPECT_TRUE(holds_only(lease.cache(), 3));
  lease.commit();
  {
    const auto last = std::move(lease);
  }
  EXPECT_EQ(store_.total_bytes(), 0);
  EXPECT_THAT(decode(store_, s1_, 300), Optional(MissReason::kReleased));
}

TEST_F(SessionStoreTest, HigherEpochSupersedes) {
  prefill(store_, s1_, 300, 1);
  EXPECT_THAT(decode(store_, s1_next_, 300), Optional(MissReason::kUnknownSession));
  EXPECT_EQ(miss_reason(store_, s1_), std::nullopt);  // asking for the next one changes nothing
  EXPECT_EQ(prefill(store_, s1_next_, 10, 2), std::nullopt);
  EXPECT_EQ(store_.total_bytes(), 2 * kBlock);
  EXPECT_THAT(decode(store_, s1_, 300), Optional(MissReason::kSupersededEpoch));
  EXPECT_THAT(prefill(store_, s1_, 5), Optional(MissReason::kSupersededEpoch));
  EXPECT_THAT(miss_reason(store_, s1_), Optional(MissReason::kSupersededEpoch));
  EXPECT_EQ(store_.truncate(s1_, 1).value().reason, MissReason::kSupersededEpoch);
  EXPECT_EQ(decode(store_, s1_next_, 10, 1, 2), std::nullopt);
  EXPECT_TRUE(holds_only(store_.get(s1_next_).cache(), 2));
}

TEST_F(SessionStoreTest, AdmitRefusesOlderEpochs) {
  store_.admit({"s1", 3});
  store_.admit({"s1", 3});
  EXPECT_THROW(store_.admit({"s1", 2}), StaleEpoch);
  prefill(store_, {"s1", 5}, 1);  // counts as seen
  EXPECT_THROW(store_.admit({"s1", 4}), StaleEpoch);
  store_.admit({"s1", 5});
  store_.admit({"s2", 1});
  store_.release("s1");
  EXPECT_THROW(store_.admit({"s1", 4}), StaleEpoch);
}

TEST_F(SessionStoreTest, AdmittedEpochSupersedesBeforeItIsOpened) {
  prefill(store_, s1_, 5);
  store_.admit(s1_next_);
  EXPECT_THAT(decode(store_, s1_, 5), Optional(MissReason::kSupersededEpoch));
  EXPECT_THAT(prefill(store_, s1_, 5), Optional(MissReason::kSupersededEpoch));
  EXPECT_EQ(prefill(store_, s1_next_, 5), std::nullopt);
  EXPECT_EQ(store_.sessions().size(), 1U);
}

TEST_F(SessionStoreTest, TruncateRollsBack) {
  prefill(store_, s1_, 300);
  EXPECT_EQ(store_.truncate(s1_, 10), std::nullopt);
  EXPECT_EQ(store_.sessions().at(0).tokens, 10);
  EXPECT_EQ(store_.total_bytes(), 4 * kBlock);  // the memory stays
  EXPECT_THAT(decode(store_, s1_, 300), Optional(MissReason::kSeqLenMismatch));
  {
    auto lease = lease_of(store_.append(s1_, 0, 10, 1));
    EXPECT_EQ(store_.total_bytes(), 4 * kBlock);
    take_up(lease.cache(), 1);
    lease.commit();
  }
  EXPECT_EQ(store_.total_bytes(), 4 * kBlock);
  EXPECT_EQ(decode(store_, s1_, 11, 600), std::nullopt);
  EXPECT_EQ(store_.total_bytes(), 6 * kBlock);
  EXPECT_THROW(store_.truncate(s1_, 612), std::invalid_argument);
  EXPECT_THROW(store_.truncate(s1_, -1), std::invalid_argument);
  EXPECT_EQ(store_.get(s1_).cache().length(), 611);
}

TEST_F(SessionStoreTest, TruncateOfRecurrentStateIsRefused) {
  SessionStore store(recipe_of({kRecurrent, kFull}), roomy(), at::kCPU);
  prefill(store, s1_, 5);
  const auto miss = store.truncate(s1_, 4);
  ASSERT_TRUE(miss);
  EXPECT_EQ(miss->reason, MissReason::kStateNotRewindable);
  EXPECT_THAT(miss->message, AllOf(HasSubstr("5"), HasSubstr("4")));
  EXPECT_EQ(decode(store, s1_, 5), std::nullopt);
  EXPECT_EQ(store.truncate(s1_, 0), std::nullopt);
  EXPECT_EQ(decode(store, s1_, 0), std::nullopt);
}

TEST_F(SessionStoreTest, SessionsForPeople) {
  prefill(store_, s1_, 5);
  clock_.advance(7s);
  auto lease = lease_of(store_.open({"s2", 4}, 1, 300));
  clock_.advance(1s);
  const auto infos = store_.sessions();
  ASSERT_EQ(infos.size(), 2U);
  EXPECT_EQ(infos[0].id, "s1");
  EXPECT_EQ(infos[0].layers, (LayerRange{0, 2}));
  EXPECT_EQ(infos[0].tokens, 5);
  EXPECT_EQ(infos[0].bytes, 2 * kBlock);
  EXPECT_EQ(infos[0].idle, 8s);
  EXPECT_FALSE(infos[0].in_use);
  EXPECT_EQ(infos[1].id, "s2");
  EXPECT_EQ(infos[1].epoch, 4);
  EXPECT_EQ(infos[1].layers, (LayerRange{1, 2}));
  EXPECT_EQ(infos[1].tokens, 300);  // what it will be at the step's end
  EXPECT_EQ(infos[1].bytes, 2 * kBlock);
  EXPECT_EQ(infos[1].idle, 0s);
  EXPECT_TRUE(infos[1].in_use);
}

}  // namespace
}  // namespace meshnet
