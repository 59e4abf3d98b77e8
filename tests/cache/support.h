#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "cache/recipe.h"
#include "cache/session_store.h"

namespace meshnet {

constexpr KvGeometry kFull{.num_key_value_heads = 1, .head_dim = 2};
constexpr SlidingKvGeometry kSliding{.num_key_value_heads = 1, .head_dim = 2, .sliding_window = 8};
constexpr RecurrentGeometry kRecurrent{
    .conv_dim = 6, .conv_kernel_size = 4, .num_v_heads = 2, .head_k_dim = 3, .head_v_dim = 5};

/// "s7". Not inlined: GCC 12 takes `"s" + std::to_string(7)` for an overflow.
std::string numbered(std::string prefix, int64_t number);

/// The same numbers in every run.
inline std::mt19937 seeded(unsigned seed) { return std::mt19937(seed); }

/// A llama in float32 that owns all its layers, of the given kinds.
Recipe recipe_of(std::vector<LayerGeometry> layers);

/// Takes up tokens in every layer; all that is written is `value`.
void take_up(SliceCache& cache, int64_t tokens, float value = 0);

/// Whether every key and value of the full-attention layers is `value`.
bool holds_only(SliceCache& cache, float value);

/// A clock that stands still until it is told to go on. Thread-safe.
class FakeClock {
 public:
  void advance(std::chrono::seconds time) { seconds_ += time.count(); }
  std::function<SessionStore::Clock::time_point()> now() {
    return
        [this] { return SessionStore::Clock::time_point(std::chrono::seconds(seconds_.load())); };
  }

 private:
  std::atomic<int64_t> seconds_{1000};
};

/// Whole steps from start layer 0, committed; the reason of a miss.
std::optional<MissReason> prefill(SessionStore& store,
                                  const SessionKey& key,
                                  int64_t tokens,
                                  float value = 0);
std::optional<MissReason> decode(SessionStore& store,
                                 const SessionKey& key,
                                 int64_t past_len,
                                 int64_t tokens = 1,
                                 float value = 0);
/// Why the session cannot be looked at.
std::optional<MissReason> miss_reason(SessionStore& store, const SessionKey& key);
std::optional<MissReason> reason_of(const std::variant<SessionStore::Lease, Miss>& result);

}  // namespace meshnet
