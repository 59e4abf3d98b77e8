// What SessionStore's operations are made of.

#include <algorithm>
#include <numeric>

#include "cache/session_store.h"

namespace meshnet {
namespace {

std::string why(MissReason reason) {
  switch (reason) {
    case MissReason::kEvictedTtl:
      return "its state was dropped, as no step came for too long";
    case MissReason::kEvictedLru:
      return "its state was dropped to make room for other sessions";
    case MissReason::kReleased:
      return "it was released";
    case MissReason::kSupersededEpoch:
      return "a higher epoch has replaced it";
    default:
      return "no state of it is held";
  }
}

Miss miss_of(MissReason reason, const SessionKey& key) {
  return {reason, "session " + key.id + " epoch " + std::to_string(key.epoch) + ": " + why(reason)};
}

}  // namespace

void SessionStore::tidy() {
  end_outlived();
  while (forgettable_.size() > kRemembered) {
    records_.erase(forgettable_.front());
    forgettable_.pop_front();
  }
}

void SessionStore::end_outlived() {
  const Clock::time_point now = now_();
  for (auto next = sessions_.begin(); next != sessions_.end();) {
    const Session& session = *next++;
    // Not in the clock's own unit, in which a long TTL has no value.
    const auto idle = std::chrono::duration_cast<std::chrono::seconds>(now - session.last_used);
    if (!session.in_use && idle >= limits_.ttl) {
      drop(session, MissReason::kEvictedTtl);
    }
  }
}

SessionStore::Record& SessionStore::touch(const std::string& id) {
  const auto [found, is_new] = records_.try_emplace(id);
  Record& record = found->second;
  if (is_new) {
    record.place = forgettable_.insert(forgettable_.end(), id);
  } else if (!record.session) {
    forgettable_.splice(forgettable_.end(), forgettable_, record.place);
  }
  return record;
}

std::variant<SessionStore::Record*, Miss> SessionStore::find_openable(
    std::unique_lock<std::mutex>& lock, const SessionKey& key) {
  for (;;) {
    tidy();
    Record& record = touch(key.id);
    if (record.released) return miss_of(MissReason::kReleased, key);
    if (key.epoch < record.seen) return miss_of(MissReason::kSupersededEpoch, key);
    if (key.epoch > record.opened) {
      record.opened = key.epoch;
      record.seen = std::max(record.seen, key.epoch);
      changed_.notify_all();  // steps of the old epoch need not wait for its lease to end
    }
    if (!record.session || !record.session->in_use) return &record;
    changed_.wait(lock);
  }
}

std::variant<SessionStore::Session*, Miss> SessionStore::find_idle(
    std::unique_lock<std::mutex>& lock, const SessionKey& key) {
  for (;;) {
    tidy();
    const auto known = records_.find(key.id);
    if (known == records_.end()) return miss_of(MissReason::kUnknownSession, key);
    const Record& record = touch(key.id);
    if (record.released) return miss_of(MissReason::kReleased, key);
    if (key.epoch < record.seen) return miss_of(MissReason::kSupersededEpoch, key);
    if (key.epoch > record.opened) return miss_of(MissReason::kUnknownSession, key);
    if (!record.session) return miss_of(record.gone, key);
    if (!record.session->in_use) return record.session;
    // An older epoch's step delays the opening of this one: nothing is held of this one yet.
    if (record.session->epoch != key.epoch) return miss_of(MissReason::kUnknownSession, key);
    changed_.wait(lock);
  }
}

std::list<SessionStore::Session>::iterator SessionStore::place_of(const Session& session) {
  return std::find_if(
      sessions_.begin(), sessions_.end(), [&](const Session& other) { return &other == &session; });
}

int64_t SessionStore::held_bytes() const {
  return std::accumulate(
      sessions_.begin(), sessions_.end(), int64_t{0}, [](int64_t total, const Session& session) {
        return total + session.bytes;
      });
}

void SessionStore::make_room(int64_t bytes, int64_t sessions) {
  const auto is_over = [&] {
    return held_bytes() + bytes > limits_.max_bytes ||
           static_cast<int64_t>(sessions_.size()) + sessions > limits_.max_sessions;
  };
  while (is_over()) {
    const auto idle = std::find_if(
        sessions_.begin(), sessions_.end(), [](const Session& session) { return !session.in_use; });
    if (idle == sessions_.end()) return;
    drop(*idle, MissReason::kEvictedLru);
  }
}

void SessionStore::drop(const Session& session, MissReason reason) {
  Record& record = records_.at(session.id);
  record.session = nullptr;
  record.gone = reason;
  record.place = forgettable_.insert(forgettable_.end(), session.id);
  sessions_.erase(place_of(session));
}

void SessionStore::finish(Session& session, bool is_step, bool is_kept) {
  const std::lock_guard lock(mutex_);
  const Record& record = records_.at(session.id);
  const bool is_ended = record.released || session.epoch < record.opened;
  if (is_ended || !is_kept) {
    drop(session, MissReason::kUnknownSession);
  } else {
    session.in_use = false;
    session.tokens = session.cache.length();
    session.bytes = session.cache.nbytes();
    if (is_step) {
      session.last_used = now_();
      sessions_.splice(sessions_.end(), sessions_, place_of(session));
    }
  }
  end_outlived();
  make_room(0, 0);
  changed_.notify_all();
}

SessionStore::Lease::Lease(Lease&& other) noexcept
    : store_(other.store_),
      session_(std::exchange(other.session_, nullptr)),
      is_step_(other.is_step_),
      is_committed_(other.is_committed_) {}

SessionStore::Lease& SessionStore::Lease::operator=(Lease&& other) noexcept {
  if (this == &other) return *this;
  end();
  store_ = other.store_;
  session_ = std::exchange(other.session_, nullptr);
  is_step_ = other.is_step_;
  is_committed_ = other.is_committed_;
  return *this;
}

SessionStore::Lease::~Lease() { end(); }

void SessionStore::Lease::end() noexcept {
  if (session_) store_->finish(*session_, is_step_, is_committed_ || !is_step_);
  session_ = nullptr;
}

}  // namespace meshnet
