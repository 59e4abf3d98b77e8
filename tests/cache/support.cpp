#include "support.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <utility>

namespace meshnet {
namespace {

/// A view [1, rows, head_dim] lies in one piece.
std::pair<float*, float*> elements(const at::Tensor& view) {
  float* first = view.data_ptr<float>();
  return {first, first + view.numel()};
}

}  // namespace

std::string numbered(std::string prefix, int64_t number) {
  return std::move(prefix) + std::to_string(number);
}

Recipe recipe_of(std::vector<LayerGeometry> layers) {
  const auto count = static_cast<int64_t>(layers.size());
  return Recipe({.architecture = "llama",
                 .num_attention_heads = 1,
                 .head_dim = 2,
                 .layers = std::move(layers),
                 .dtype = at::kFloat,
                 .owned = {0, count}});
}

void take_up(SliceCache& cache, int64_t tokens, float value) {
  for (int64_t layer = cache.layers().first; layer < cache.layers().last; ++layer) {
    if (auto* full = std::get_if<KvCache>(&cache.at(layer))) {
      const KeyValue all = full->extend(tokens);
      for (const at::Tensor& half : {all.key, all.value}) {
        const auto [first, last] = elements(half.narrow(1, half.size(1) - tokens, tokens));
        std::fill(first, last, value);
      }
    } else if (auto* sliding = std::get_if<SlidingKvCache>(&cache.at(layer))) {
      const at::Tensor rows = at::full({tokens, 1, 2}, value);
      sliding->append(rows, rows);
    }
  }
  cache.advance(tokens);
}

bool holds_only(SliceCache& cache, float value) {
  for (int64_t layer = cache.layers().first; layer < cache.layers().last; ++layer) {
    auto* full = std::get_if<KvCache>(&cache.at(layer));
    if (!full) continue;
    const KeyValue all = full->extend(0);
    for (const at::Tensor& half : {all.key, all.value}) {
      const auto [first, last] = elements(half);
      if (!std::all_of(first, last, [&](float element) { return element == value; })) return false;
    }
  }
  return true;
}

std::optional<MissReason> reason_of(const std::variant<SessionStore::Lease, Miss>& result) {
  const auto* miss = std::get_if<Miss>(&result);
  return miss ? std::optional(miss->reason) : std::nullopt;
}

namespace {

std::optional<MissReason> finish_step(std::variant<SessionStore::Lease, Miss> result,
                                      int64_t tokens,
                                      float value) {
  if (auto* lease = std::get_if<SessionStore::Lease>(&result)) {
    take_up(lease->cache(), tokens, value);
    lease->commit();
  }
  return reason_of(result);
}

}  // namespace

std::optional<MissReason> prefill(SessionStore& store,
                                  const SessionKey& key,
                                  int64_t tokens,
                                  float value) {
  return finish_step(store.open(key, 0, tokens), tokens, value);
}

std::optional<MissReason> decode(
    SessionStore& store, const SessionKey& key, int64_t past_len, int64_t tokens, float value) {
  return finish_step(store.append(key, 0, past_len, tokens), tokens, value);
}

std::optional<MissReason> miss_reason(SessionStore& store, const SessionKey& key) {
  return reason_of(store.resolve(key));
}

}  // namespace meshnet
