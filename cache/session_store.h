#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "cache/miss.h"
#include "cache/recipe.h"
#include "cache/slice_cache.h"

namespace meshnet {

/// A route epoch older than one seen for the session.
struct StaleEpoch : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// A session that alone is larger than the byte budget.
struct SessionExceedsBudget : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct SessionKey {
  std::string id;
  int64_t epoch = 1;
};

struct SessionLimits {
  std::chrono::seconds ttl{600};  ///< since the last step's end
  int64_t max_sessions = 8;
  int64_t max_bytes = 0;  ///< of all state together; with 0 no state fits
};

/// What a session holds, for people.
struct SessionInfo {
  std::string id;
  int64_t epoch = 1;
  LayerRange layers;
  int64_t tokens = 0;  ///< while a step runs, those at its end, as bytes
  int64_t bytes = 0;
  std::chrono::seconds idle{0};  ///< since the last step's end; 0 while in use
  bool in_use = false;
};

/// The state of all sessions on one node. Thread-safe. State in use (leased) is never freed: what
/// ends its session meanwhile takes effect when the lease ends, and until then the bounds may be
/// exceeded by it. Steps of one session are serialised: whoever asks for a session in use waits, so
/// one thread must not ask for a session that it has a lease of. Every access first ends what its
/// TTL has outlived. All leases end before the store does.
class SessionStore {
 public:
  using Clock = std::chrono::steady_clock;
  class Lease;

  /// Gone sessions whose epochs and reason are remembered; the least recently asked for are
  /// forgotten first.
  static constexpr std::size_t kRemembered = 1024;

  /// `now` is called under the store's lock.
  SessionStore(Recipe recipe,
               SessionLimits limits,
               at::Device device,
               std::function<Clock::time_point()> now = Clock::now);

  /// A request of this session has arrived: notes its epoch, and steps of older ones that wait are
  /// superseded. Throws StaleEpoch for one older than an epoch seen before.
  void admit(const SessionKey& key);

  /// For a fresh prefill of `tokens`: frees what the session held, then makes empty state. A
  /// session that was released stays so (a miss); one that was admitted or opened with a higher
  /// epoch is superseded (a miss). A higher epoch supersedes the old one at once, even while it
  /// waits for the old one's lease to end. Throws SessionExceedsBudget, then the old state is gone,
  /// too; std::out_of_range for a start layer that is not owned (nothing is touched); and what
  /// making the state throws (c10::Error: out of memory), then the session is gone.
  std::variant<Lease, Miss> open(const SessionKey& key, int64_t start_layer, int64_t tokens);

  /// For a decode or a continued chunk that adds `tokens` to a session that holds exactly
  /// `past_len` and started at `start_layer`; a mismatch changes nothing. An epoch that was never
  /// opened is an unknown session. Throws SessionExceedsBudget; then the session is gone.
  std::variant<Lease, Miss> append(const SessionKey& key,
                                   int64_t start_layer,
                                   int64_t past_len,
                                   int64_t tokens);

  /// The session as it stands, to look at: no step, so the lease needs no commit() and neither TTL
  /// nor LRU take it for a use.
  std::variant<Lease, Miss> resolve(const SessionKey& key);
  /// resolve(), throwing CacheMiss.
  Lease get(const SessionKey& key);

  /// Rolls a session back to `length` tokens; counts as a step. A miss of kStateNotRewindable
  /// changes nothing. Throws std::invalid_argument, changing nothing, for less than 0 or more than
  /// are held.
  std::optional<Miss> truncate(const SessionKey& key, int64_t length);

  /// Ends a session, known or not, whatever its epoch: a prefill that arrives later does not revive
  /// it. Whether it held state that no earlier release had ended.
  bool release(std::string_view id);

  /// Of all state, in use included; while a step runs, what it will have allocated by its end.
  int64_t total_bytes();
  /// All sessions with state, the least recently used first.
  std::vector<SessionInfo> sessions();
  const Recipe& recipe() const { return recipe_; }
  const SessionLimits& limits() const { return limits_; }

 private:
  struct Session {
    std::string id;
    int64_t epoch;
    SliceCache cache;
    int64_t tokens;  ///< as SessionInfo's
    int64_t bytes;   ///< as SessionInfo's
    Clock::time_point last_used;
    bool in_use;
  };
  /// What is known of an id, with or without state.
  struct Record {
    int64_t seen = std::numeric_limits<int64_t>::min();    ///< highest epoch admitted or opened
    int64_t opened = std::numeric_limits<int64_t>::min();  ///< highest epoch opened
    MissReason gone = MissReason::kUnknownSession;  ///< why `opened` has no state, if it has none
    bool released = false;
    Session* session = nullptr;              ///< into sessions_
    std::list<std::string>::iterator place;  ///< in forgettable_; only while there is no session
  };

  // All but finish() run under the lock.
  /// What every access starts with: ends what TTL has outlived, forgets the oldest records.
  void tidy();
  void end_outlived();
  /// The record of an id that is being asked for, made when there is none.
  Record& touch(const std::string& id);
  /// The record of a session that may be opened now: no state of it is in use.
  std::variant<Record*, Miss> find_openable(std::unique_lock<std::mutex>& lock,
                                            const SessionKey& key);
  /// The session, once no one uses it.
  std::variant<Session*, Miss> find_idle(std::unique_lock<std::mutex>& lock, const SessionKey& key);
  std::list<Session>::iterator place_of(const Session& session);
  int64_t held_bytes() const;
  /// Evicts idle sessions until `bytes` and `sessions` more fit, or none is left.
  void make_room(int64_t bytes, int64_t sessions);
  /// Frees the state.
  void drop(const Session& session, MissReason reason);
  /// A lease has ended.
  void finish(Session& session, bool is_step, bool is_kept);

  Recipe recipe_;
  SessionLimits limits_;
  at::Device device_;
  std::function<Clock::time_point()> now_;
  std::mutex mutex_;                 ///< of all that follows, but not of the cache of a lease
  std::condition_variable changed_;  ///< a lease has ended, or a waiter may have become a miss
  std::list<Session> sessions_;      ///< the least recently used first
  std::map<std::string, Record, std::less<>> records_;
  std::list<std::string> forgettable_;  ///< ids without state, the least recently asked for first
};

/// One step's exclusive use of a session. A lease that ends without commit() drops its session: a
/// failed step never leaves half-advanced state.
class SessionStore::Lease {
 public:
  Lease(Lease&& other) noexcept;
  Lease& operator=(Lease&& other) noexcept;
  ~Lease();

  SliceCache& cache() { return session_->cache; }
  /// The step has taken up its tokens in every layer.
  void commit() { is_committed_ = true; }

 private:
  friend class SessionStore;
  Lease(SessionStore& store, Session& session, bool is_step)
      : store_(&store), session_(&session), is_step_(is_step) {}
  void end() noexcept;

  SessionStore* store_;
  Session* session_;  ///< null once moved from
  bool is_step_;
  bool is_committed_ = false;
};

}  // namespace meshnet
