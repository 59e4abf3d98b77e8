#include "cache/session_store.h"

#include <algorithm>

namespace meshnet {
namespace {

std::string name_of(const SessionKey& key) {
  return "session " + key.id + " epoch " + std::to_string(key.epoch);
}

Miss mismatch(MissReason reason,
              const SessionKey& key,
              const std::string& what,
              int64_t expected,
              int64_t held) {
  return {reason,
          name_of(key) + ": the step expects " + what + " " + std::to_string(expected) +
              ", the state here has " + std::to_string(held)};
}

SessionExceedsBudget too_large(const SessionKey& key, int64_t bytes, int64_t max_bytes) {
  return SessionExceedsBudget(name_of(key) + ": its state would take " + std::to_string(bytes) +
                              " bytes, the budget of all sessions is " + std::to_string(max_bytes));
}

}  // namespace

SessionStore::SessionStore(Recipe recipe,
                           SessionLimits limits,
                           at::Device device,
                           std::function<Clock::time_point()> now)
    : recipe_(std::move(recipe)), limits_(limits), device_(device), now_(std::move(now)) {}

void SessionStore::admit(const SessionKey& key) {
  const std::lock_guard lock(mutex_);
  tidy();
  Record& record = touch(key.id);
  if (key.epoch < record.seen) {
    throw StaleEpoch(name_of(key) + ": epoch " + std::to_string(record.seen) +
                     " has been seen already");
  }
  if (key.epoch > record.seen) changed_.notify_all();  // steps of an older epoch become misses
  record.seen = key.epoch;
}

std::variant<SessionStore::Lease, Miss> SessionStore::open(const SessionKey& key,
                                                           int64_t start_layer,
                                                           int64_t tokens) {
  const int64_t bytes = recipe_.nbytes(start_layer, tokens);
  std::unique_lock lock(mutex_);
  auto found = find_openable(lock, key);
  if (auto* miss = std::get_if<Miss>(&found)) return std::move(*miss);
  Record& record = *std::get<Record*>(found);

  if (record.session) drop(*record.session, MissReason::kUnknownSession);
  record.gone = MissReason::kUnknownSession;
  if (bytes > limits_.max_bytes) throw too_large(key, bytes, limits_.max_bytes);
  make_room(bytes, 1);
  sessions_.push_back({.id = key.id,
                       .epoch = key.epoch,
                       .cache = recipe_.make_cache(start_layer, device_),
                       .tokens = tokens,
                       .bytes = bytes,
                       .last_used = now_(),
                       .in_use = true});
  record.session = &sessions_.back();
  forgettable_.erase(record.place);
  return Lease(*this, sessions_.back(), /*is_step=*/true);
}

std::variant<SessionStore::Lease, Miss> SessionStore::append(const SessionKey& key,
                                                             int64_t start_layer,
                                                             int64_t past_len,
                                                             int64_t tokens) {
  std::unique_lock lock(mutex_);
  auto found = find_idle(lock, key);
  if (auto* miss = std::get_if<Miss>(&found)) return std::move(*miss);
  Session& session = *std::get<Session*>(found);

  const int64_t first = session.cache.layers().first;
  if (start_layer != first) {
    return mismatch(MissReason::kStartLayerMismatch, key, "start layer", start_layer, first);
  }
  const int64_t held = session.cache.length();
  if (past_len != held) {
    return mismatch(MissReason::kSeqLenMismatch, key, "past length", past_len, held);
  }
  // Memory is never given back by a truncate, so a session may hold more than its length needs.
  const int64_t bytes = std::max(session.bytes, recipe_.nbytes(start_layer, past_len + tokens));
  if (bytes > limits_.max_bytes) {
    drop(session, MissReason::kUnknownSession);
    throw too_large(key, bytes, limits_.max_bytes);
  }
  session.in_use = true;
  session.tokens = past_len + tokens;
  session.bytes = bytes;
  make_room(0, 0);
  return Lease(*this, session, /*is_step=*/true);
}

std::variant<SessionStore::Lease, Miss> SessionStore::resolve(const SessionKey& key) {
  std::unique_lock lock(mutex_);
  auto found = find_idle(lock, key);
  if (auto* miss = std::get_if<Miss>(&found)) return std::move(*miss);
  Session& session = *std::get<Session*>(found);
  session.in_use = true;
  return Lease(*this, session, /*is_step=*/false);
}

SessionStore::Lease SessionStore::get(const SessionKey& key) {
  auto found = resolve(key);
  if (auto* miss = std::get_if<Miss>(&found)) throw CacheMiss(std::move(*miss));
  return std::get<Lease>(std::move(found));
}

std::optional<Miss> SessionStore::truncate(const SessionKey& key, int64_t length) {
  std::unique_lock lock(mutex_);
  auto found = find_idle(lock, key);
  if (auto* miss = std::get_if<Miss>(&found)) return std::move(*miss);
  Session& session = *std::get<Session*>(found);
  if (!session.cache.truncate(length)) {
    return Miss{MissReason::kStateNotRewindable,
                name_of(key) + ": its state cannot be rolled back from " +
                    std::to_string(session.cache.length()) + " to " + std::to_string(length) +
                    " tokens"};
  }
  session.tokens = length;
  session.last_used = now_();
  sessions_.splice(sessions_.end(), sessions_, place_of(session));
  return std::nullopt;
}

bool SessionStore::release(std::string_view id) {
  const std::lock_guard lock(mutex_);
  tidy();
  Record& record = touch(std::string(id));
  const bool held = record.session && !record.released;
  record.released = true;
  if (record.session && !record.session->in_use) drop(*record.session, MissReason::kReleased);
  changed_.notify_all();
  return held;
}

int64_t SessionStore::total_bytes() {
  const std::lock_guard lock(mutex_);
  tidy();
  return held_bytes();
}

std::vector<SessionInfo> SessionStore::sessions() {
  const std::lock_guard lock(mutex_);
  tidy();
  const Clock::time_point now = now_();
  std::vector<SessionInfo> infos;
  for (const Session& session : sessions_) {
    const auto idle = std::chrono::duration_cast<std::chrono::seconds>(now - session.last_used);
    infos.push_back({session.id,
                     session.epoch,
                     session.cache.layers(),
                     session.tokens,
                     session.bytes,
                     session.in_use ? std::chrono::seconds(0) : idle,
                     session.in_use});
  }
  return infos;
}

}  // namespace meshnet
