// Random operations against an oracle that says in plain maps what the store must answer.

#include <gmock/gmock.h>

#include <map>
#include <random>
#include <stdexcept>

#include "cache/session_store.h"
#include "oracle.h"
#include "support.h"

namespace meshnet {
namespace {

/// The store and the oracle side by side, and leases that are out.
class Machine {
 public:
  explicit Machine(unsigned seed) : random_(seed) {}

  void step() {
    if (random_() % 25 == 0) ++window_;  // ids come and go: a released one stays so
    const std::string id = pick_id();
    const bool is_leased = leases_.contains(id);
    switch (random_() % 12) {
      case 0:
        return admit({id, epoch()});
      case 1:
        if (random_() % 3 == 0) return release(id);
        return;
      case 2:
        return advance(static_cast<int64_t>(random_() % (random_() % 10 == 0 ? 70 : 4)));
      case 3:
      case 4:
        if (!is_leased) open({id, epoch()});
        return;
      case 5:
        if (!is_leased) look({id, epoch_of(id)});
        return;
      case 6:
        if (!is_leased) truncate({id, epoch_of(id)});
        return;
      case 7:
      case 8:
        if (!leases_.empty()) end_lease();
        return;
      default:
        if (!is_leased) append({id, epoch_of(id)});
    }
  }

  /// That store and oracle hold the same.
  void compare() {
    oracle_.start_access();
    ASSERT_EQ(store_.total_bytes(), oracle_.bytes());
    const auto infos = store_.sessions();
    ASSERT_EQ(infos.size(), oracle_.live.size());
    int64_t last_rank = -1;
    for (const SessionInfo& info : infos) {
      ASSERT_TRUE(oracle_.live.contains(info.id)) << info.id;
      const Oracle::Live& expected = oracle_.live[info.id];
      ASSERT_EQ(info.epoch, expected.epoch);
      ASSERT_EQ(info.layers, (LayerRange{expected.start, 3}));
      ASSERT_EQ(info.in_use, expected.in_use);
      ASSERT_EQ(info.bytes, bytes_of(expected.start, expected.peak));
      ASSERT_GT(expected.rank, last_rank) << "not in the order of use";
      last_rank = expected.rank;
      if (info.in_use) continue;
      ASSERT_EQ(info.tokens, expected.tokens);
      ASSERT_EQ(info.idle.count(), oracle_.now - expected.used_at);
    }
  }

  void release_all() {
    while (!leases_.empty()) end_lease();
    for (const SessionInfo& info : store_.sessions()) store_.release(info.id);
    EXPECT_EQ(store_.total_bytes(), 0);
    EXPECT_TRUE(store_.sessions().empty());
  }

  std::map<Answer, int> answers;  ///< how often each came

 private:
  struct Out {
    SessionStore::Lease lease;
    int64_t tokens;
  };

  void check(const Answer& got, const Answer& expected, const std::string& what) {
    ++answers[got];
    ASSERT_EQ(got, expected) << what;
  }

  /// Mostly a few recent ids, among them those in use; sometimes one of many.
  std::string pick_id() {
    if (random_() % 20 == 0) return numbered("any", static_cast<int64_t>(random_() % 3000));
    if (random_() % 10 == 0 && !leases_.empty()) return leases_.begin()->first;
    return numbered("s", window_ + static_cast<int64_t>(random_() % 8));
  }

  int64_t epoch() { return 1 + static_cast<int64_t>(random_() % 3); }
  int64_t epoch_of(const std::string& id) {
    if (random_() % 10 == 0 || !oracle_.live.contains(id)) return epoch();
    return oracle_.live[id].epoch;
  }
  int64_t some_tokens() {
    const auto draw = random_() % 20;
    return static_cast<int64_t>(draw == 0 ? random_() % 4000 : draw < 8 ? random_() % 600 : 1);
  }

  void admit(const SessionKey& key) {
    Answer got = "ok";
    try {
      store_.admit(key);
    } catch (const StaleEpoch&) {
      got = "stale";
    }
    check(got, oracle_.admit(key), "admit " + key.id);
  }

  void release(const std::string& id) {
    const bool held = store_.release(id);
    check(held ? "held" : "not held", oracle_.release(id), "release " + id);
  }

  void advance(int64_t seconds) {
    clock_.advance(std::chrono::seconds(seconds));
    oracle_.now += seconds;
  }

  template <typename Ask>
  Answer take(const SessionKey& key, int64_t tokens, const Ask& ask) {
    try {
      auto result = ask();
      if (const auto* miss = std::get_if<Miss>(&result))
        return std::string(to_string(miss->reason));
      leases_.emplace(key.id, Out{std::get<SessionStore::Lease>(std::move(result)), tokens});
      return "ok";
    } catch (const SessionExceedsBudget&) {
      return "budget";
    }
  }

  /// A step goes on for a while or ends at once.
  void maybe_end(const Answer& got) {
    if (got == "ok" && (leases_.size() > 3 || random_() % 4 != 0)) end_lease();
  }

  void open(const SessionKey& key) {
    const auto start = static_cast<int64_t>(random_() % 3);
    const int64_t tokens = some_tokens();
    const Answer got = take(key, tokens, [&] { return store_.open(key, start, tokens); });
    check(got, oracle_.open(key, start, tokens), "open " + key.id);
    maybe_end(got);
  }

  void append(const SessionKey& key) {
    int64_t start = static_cast<int64_t>(random_() % 3);
    int64_t past = static_cast<int64_t>(random_() % 3);
    if (oracle_.live.contains(key.id) && random_() % 10 != 0) {
      start = oracle_.live[key.id].start;
      past = oracle_.live[key.id].tokens + (random_() % 10 == 0);
    }
    const int64_t tokens = some_tokens();
    const Answer got = take(key, tokens, [&] { return store_.append(key, start, past, tokens); });
    check(got, oracle_.append(key, start, past, tokens), "append " + key.id);
    maybe_end(got);
  }

  void look(const SessionKey& key) {
    const Answer got = take(key, 0, [&] { return store_.resolve(key); });
    check(got, oracle_.resolve(key), "resolve " + key.id);
    maybe_end(got);
  }

  void truncate(const SessionKey& key) {
    int64_t length = static_cast<int64_t>(random_() % 4) - 1;
    if (oracle_.live.contains(key.id)) {
      const int64_t tokens = oracle_.live[key.id].tokens;
      length = random_() % 2 == 0 ? tokens / 2 : tokens - length;
    }
    Answer got = "ok";
    try {
      if (const auto miss = store_.truncate(key, length)) got = to_string(miss->reason);
    } catch (const std::invalid_argument&) {
      got = "invalid";
    }
    check(got, oracle_.truncate(key, length), "truncate " + key.id);
  }

  void end_lease() {
    auto out = std::next(leases_.begin(), static_cast<int64_t>(random_() % leases_.size()));
    const std::string id = out->first;
    const bool is_step = oracle_.live[id].is_step;
    const bool commit = is_step && random_() % 12 != 0;
    const int64_t tokens = out->second.tokens;
    {
      SliceCache& cache = out->second.lease.cache();
      ASSERT_EQ(cache.length(), oracle_.live[id].tokens);
      if (commit) {
        take_up(cache, tokens);
        out->second.lease.commit();
      }
      leases_.erase(out);
    }
    oracle_.finish(id, commit ? tokens : 0, commit);
  }

  std::mt19937 random_;
  int64_t window_ = 0;
  FakeClock clock_;
  Oracle oracle_;
  SessionStore store_{
      recipe_of({kRecurrent, kFull, kFull}),
      {.ttl = std::chrono::seconds(kTtl), .max_sessions = kMaxSessions, .max_bytes = kMaxBytes},
      at::kCPU,
      clock_.now()};
  std::map<std::string, Out> leases_;  ///< before the store in destruction
};

TEST(SessionStoreModelTest, AnswersAsTheOracleDoes) {
  Machine machine(20);
  for (int i = 0; i < 150'000; ++i) {  // in about a third there is nothing to do
    machine.step();
    machine.compare();
    ASSERT_FALSE(testing::Test::HasFailure()) << "operation " << i;
  }
  machine.release_all();
  for (const auto* answer : {"ok",
                             "held",
                             "not held",
                             "stale",
                             "budget",
                             "invalid",
                             "unknown_session",
                             "evicted_ttl",
                             "evicted_lru",
                             "released",
                             "superseded_epoch",
                             "seq_len_mismatch",
                             "start_layer_mismatch",
                             "state_not_rewindable"}) {
    EXPECT_GT(machine.answers[answer], 100) << answer << " hardly came up";
  }
}

}  // namespace
}  // namespace meshnet
