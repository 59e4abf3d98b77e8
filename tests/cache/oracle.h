#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>

#include "cache/session_store.h"

// What SessionStore must answer, said in plain maps for one thread.

namespace meshnet {

constexpr int64_t kTtl = 60;  ///< seconds
constexpr int64_t kMaxSessions = 4;
constexpr int64_t kMaxBytes = 80'000;

/// Of layers {kRecurrent, kFull, kFull} in float32, from `start` on.
inline int64_t bytes_of(int64_t start, int64_t peak) {
  const int64_t blocks = peak / 256 + (peak % 256 != 0);
  const int64_t full_layers = start < 2 ? 2 : 1;
  return full_layers * blocks * 4096 + (start == 0 ? (6 * 3 + 2 * 3 * 5) * 4 : 0);
}

/// What an operation gave: a miss's reason, an error's name, or "ok".
using Answer = std::string;

struct Oracle {
  struct Live {
    int64_t epoch, start, tokens, peak, used_at, rank;
    bool in_use, is_step;
  };
  struct Known {
    int64_t seen = -1, opened = -1, asked = 0;
    bool released = false;
    Answer gone = "unknown_session";
  };
  std::map<std::string, Known> known;
  std::map<std::string, Live> live;
  int64_t now = 0;
  int64_t counter = 0;

  int64_t bytes() const {
    int64_t total = 0;
    for (const auto& [id, session] : live) total += bytes_of(session.start, session.peak);
    return total;
  }

  void end(const std::string& id, const Answer& reason) {
    live.erase(id);
    known[id].gone = reason;
    known[id].asked = ++counter;
  }

  void expire() {
    // In the order of use, as the order decides who is forgotten first.
    std::map<int64_t, std::string> outlived;
    for (const auto& [id, session] : live) {
      if (!session.in_use && now - session.used_at >= kTtl) outlived[session.rank] = id;
    }
    for (const auto& [rank, id] : outlived) end(id, "evicted_ttl");
  }

  void start_access() {
    expire();
    while (known.size() - live.size() > 1024) {
      auto oldest = known.end();
      for (auto it = known.begin(); it != known.end(); ++it) {
        if (live.contains(it->first)) continue;
        if (oldest == known.end() || it->second.asked < oldest->second.asked) oldest = it;
      }
      known.erase(oldest);
    }
  }

  void evict(int64_t more_bytes, int64_t more_sessions) {
    while (bytes() + more_bytes > kMaxBytes ||
           static_cast<int64_t>(live.size()) + more_sessions > kMaxSessions) {
      const Live* oldest = nullptr;
      std::string oldest_id;
      for (const auto& [id, session] : live) {
        if (session.in_use || (oldest && oldest->rank < session.rank)) continue;
        oldest = &session;
        oldest_id = id;
      }
      if (!oldest) return;
      end(oldest_id, "evicted_lru");
    }
  }

  Answer admit(const SessionKey& key) {
    start_access();
    Known& record = known[key.id];
    record.asked = ++counter;
    if (key.epoch < record.seen) return "stale";
    record.seen = key.epoch;
    return "ok";
  }

  Answer open(const SessionKey& key, int64_t start, int64_t tokens) {
    start_access();
    Known& record = known[key.id];
    record.asked = ++counter;
    if (record.released) return "released";
    if (key.epoch < record.seen) return "superseded_epoch";
    record.opened = key.epoch;
    record.seen = std::max(record.seen, key.epoch);
    record.gone = "unknown_session";
    live.erase(key.id);
    if (bytes_of(start, tokens) > kMaxBytes) return "budget";
    evict(bytes_of(start, tokens), 1);
    live[key.id] = {key.epoch, start, 0, tokens, now, ++counter, true, true};
    return "ok";
  }

  /// "ok" when there is idle state of this very epoch.
  Answer find(const SessionKey& key) {
    start_access();
    if (!known.contains(key.id)) return "unknown_session";
    Known& record = known[key.id];
    record.asked = ++counter;
    if (record.released) return "released";
    if (key.epoch < record.seen) return "superseded_epoch";
    if (key.epoch > record.opened) return "unknown_session";
    return live.contains(key.id) ? "ok" : record.gone;
  }

  Answer append(const SessionKey& key, int64_t start, int64_t past, int64_t tokens) {
    if (const Answer found = find(key); found != "ok") return found;
    Live& session = live[key.id];
    if (start != session.start) return "start_layer_mismatch";
    if (past != session.tokens) return "seq_len_mismatch";
    const int64_t peak = std::max(session.peak, past + tokens);
    if (bytes_of(start, peak) > kMaxBytes) {
      end(key.id, "unknown_session");
      return "budget";
    }
    session.peak = peak;
    session.in_use = session.is_step = true;
    evict(0, 0);
    return "ok";
  }

  Answer resolve(const SessionKey& key) {
    if (const Answer found = find(key); found != "ok") return found;
    live[key.id].in_use = true;
    live[key.id].is_step = false;
    return "ok";
  }

  Answer truncate(const SessionKey& key, int64_t length) {
    if (const Answer found = find(key); found != "ok") return found;
    Live& session = live[key.id];
    if (length < 0 || length > session.tokens) return "invalid";
    if (session.start == 0 && length != 0 && length != session.tokens) {
      return "state_not_rewindable";
    }
    session.tokens = length;
    session.used_at = now;
    session.rank = ++counter;
    return "ok";
  }

  Answer release(const std::string& id) {
    start_access();
    Known& record = known[id];
    record.asked = ++counter;
    const bool held = live.contains(id) && !record.released;
    record.released = true;
    if (live.contains(id) && !live[id].in_use) end(id, "released");
    return held ? "held" : "not held";
  }

  void finish(const std::string& id, int64_t tokens, bool commit) {
    Live& session = live[id];
    if (known[id].released || (session.is_step && !commit)) {
      end(id, "unknown_session");
    } else {
      session.in_use = false;
      session.tokens += tokens;
      if (session.is_step) {
        session.used_at = now;
        session.rank = ++counter;
      }
    }
    expire();
    evict(0, 0);
  }
};

}  // namespace meshnet
