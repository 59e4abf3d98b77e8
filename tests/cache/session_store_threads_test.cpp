// Many threads; to be run under the thread sanitizer.

#include <ATen/Parallel.h>
#include <gmock/gmock.h>

#include <array>
#include <random>
#include <thread>

#include "cache/session_store.h"
#include "support.h"

namespace meshnet {
namespace {

using namespace std::chrono_literals;

constexpr int kThreads = 16;
constexpr int kSteps = 1000;  ///< of each thread
constexpr int kShared = 6;    ///< sessions at a time that all threads use
constexpr int kLives = 100;   ///< a released session is followed by another
constexpr int kSessions = (kShared + kThreads) * kLives;

/// Random steps on shared sessions and on each thread's own. Every session is filled with a value
/// of its own, so that a step on memory of another session, or of another's step, is seen.
class Crowd {
 public:
  void run(int thread) {
    std::mt19937 random(static_cast<unsigned>(thread));
    for (int i = 0; i < kSteps; ++i) {
      const bool is_own = random() % 2 == 0;
      const int slot = is_own ? kShared + thread : static_cast<int>(random() % kShared);
      const int session = slot * kLives + lives_[static_cast<std::size_t>(slot)];
      act(session, {numbered("s", session), 1 + static_cast<int64_t>(random() % 2)}, random);
    }
  }

  void expect_empty_after_release() {
    for (int session = 0; session < kSessions; ++session) store_.release(numbered("s", session));
    EXPECT_EQ(store_.total_bytes(), 0);
    EXPECT_TRUE(store_.sessions().empty());
    EXPECT_GT(served_, kThreads * kSteps / 10);
  }

  void expect_within_bounds() {
    EXPECT_LE(store_.sessions().size(), 4U);
    EXPECT_LE(store_.total_bytes(), store_.limits().max_bytes);
  }

 private:
  using Result = std::variant<SessionStore::Lease, Miss>;

  void act(int session, const SessionKey& key, std::mt19937& random) {
    const auto draw = random() % 100;
    if (draw < 35) {
      const auto tokens = static_cast<int64_t>(random() % 300);
      use(store_.open(key, 0, tokens), session, tokens, /*is_fresh=*/true, random);
    } else if (draw < 85) {
      const int64_t past = held(session, key);
      const auto tokens = static_cast<int64_t>(random() % 40);
      use(store_.append(key, 0, past, tokens), session, tokens, /*is_fresh=*/false, random);
    } else if (draw < 90) {
      clock_.advance(std::chrono::seconds(random() % 20));
    } else if (draw < 92) {
      int life = session % kLives;
      if (life + 1 == kLives) return;
      store_.release(key.id);
      lives_[static_cast<std::size_t>(session / kLives)].compare_exchange_strong(life, life + 1);
    } else if (draw < 96) {
      store_.truncate(key, 0);
    } else {
      for (const SessionInfo& info : store_.sessions()) EXPECT_GE(info.bytes, 0);
      EXPECT_GE(store_.total_bytes(), 0);
    }
  }

  /// Tokens held, as far as anyone can say who does not hold a lease.
  int64_t held(int session, const SessionKey& key) {
    auto result = store_.resolve(key);
    auto* lease = std::get_if<SessionStore::Lease>(&result);
    if (!lease) return 0;
    const Alone alone(users_[static_cast<std::size_t>(session)]);
    return lease->cache().length();
  }

  void use(Result result, int session, int64_t tokens, bool is_fresh, std::mt19937& random) {
    auto* lease = std::get_if<SessionStore::Lease>(&result);
    if (!lease) return;
    const Alone alone(users_[static_cast<std::size_t>(session)]);
    SliceCache& cache = lease->cache();
    const auto value = static_cast<float>(session + 1);
    if (is_fresh) {
      EXPECT_EQ(cache.length(), 0);
    }
    EXPECT_TRUE(holds_only(cache, value));
    const int64_t past = cache.length();
    // A step writes layer by layer, with others at work in between.
    take_up(cache, tokens, value);
    if (random() % 4 == 0) std::this_thread::yield();
    EXPECT_TRUE(holds_only(cache, value));
    EXPECT_EQ(cache.length(), past + tokens);
    if (random() % 10 != 0) lease->commit();
    ++served_;
  }

  /// Sees that a session has one user at a time.
  class Alone {
   public:
    explicit Alone(std::atomic<int>& users) : users_(users) { EXPECT_EQ(users_.fetch_add(1), 0); }
    ~Alone() { --users_; }
    Alone(const Alone&) = delete;
    Alone& operator=(const Alone&) = delete;

   private:
    std::atomic<int>& users_;
  };

  FakeClock clock_;
  SessionStore store_{recipe_of({kFull, kFull}),
                      {.ttl = 30s, .max_sessions = 4, .max_bytes = int64_t{12} * 4096},
                      at::kCPU,
                      clock_.now()};
  std::array<std::atomic<int>, kShared + kThreads> lives_{};  ///< of each slot, those before
  std::array<std::atomic<int>, kSessions> users_{};
  std::atomic<int> served_{0};
};

TEST(SessionStoreThreadsTest, SessionsStayApartAndNothingIsLeft) {
  at::set_num_threads(1);
  Crowd crowd;
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&crowd, thread] { crowd.run(thread); });
    }
  }
  crowd.expect_within_bounds();
  crowd.expect_empty_after_release();
}

// B08: one slow step while 50 other sessions arrive, at a bound of one session and a short TTL.
TEST(SessionStoreThreadsTest, SlowStepKeepsItsStateWhileOthersArrive) {
  at::set_num_threads(1);
  FakeClock clock;
  SessionStore store(recipe_of({kFull, kFull}),
                     {.ttl = 1s, .max_sessions = 1, .max_bytes = 1'000'000},
                     at::kCPU,
                     clock.now());
  ASSERT_EQ(prefill(store, {"s1"}, 100, 1), std::nullopt);
  {
    auto result = store.append({"s1"}, 0, 100, 200);
    auto& lease = std::get<SessionStore::Lease>(result);
    std::atomic<int> arrived{0};
    std::jthread slow([&] {
      int64_t left = 200;
      while (left > 0 || arrived < 50) {  // until all others have come and gone
        EXPECT_TRUE(holds_only(lease.cache(), 1));
        if (left > 0) take_up(lease.cache(), 1, 1);
        if (left > 0) --left;
        clock.advance(1s);
        std::this_thread::yield();
      }
    });
    std::vector<std::jthread> others;
    for (int thread = 0; thread < 5; ++thread) {
      others.emplace_back([&, thread] {
        for (int i = 0; i < 10; ++i) {
          const SessionKey key{numbered("other", thread * 10 + i)};
          EXPECT_EQ(prefill(store, key, 20, 2), std::nullopt);
          decode(store, key, 20, 1, 2);  // served, or evicted by then
          ++arrived;
        }
      });
    }
    others.clear();
    slow.join();
    EXPECT_EQ(lease.cache().length(), 300);
    EXPECT_TRUE(holds_only(lease.cache(), 1));
    lease.commit();
  }
  EXPECT_EQ(decode(store, {"s1"}, 300, 1, 1), std::nullopt);
  EXPECT_EQ(store.sessions().size(), 1U);
  store.release("s1");
  EXPECT_EQ(store.total_bytes(), 0);
}

}  // namespace
}  // namespace meshnet
