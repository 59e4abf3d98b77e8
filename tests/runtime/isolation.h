#pragma once

// Sessions side by side on two nodes, in-process: whatever happens to their state, each must give
// the answer it gives alone.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "runtime/engine.h"

namespace meshnet {

constexpr int kGenerations = 16;
constexpr int64_t kTokens = 24;  // of each answer
constexpr int64_t kMaxSessions = 6;
constexpr std::size_t kMaxBatch = 5;
constexpr int64_t kVocab = 199;
constexpr int64_t kCut = 2;
constexpr LayerRange kLayers[] = {{0, kCut}, {kCut, 4}};

using Random = std::mt19937;
using Ids = std::vector<int64_t>;

int64_t pick(Random& random, int64_t from, int64_t to);

/// Of node 0, the head, or 1, the tail, of the tiny model that ctest makes.
EngineOptions options_of(int node, Dtype dtype = Dtype::kFloat32);

/// The reason of a 409; every other error is thrown on.
std::string miss_reason(const std::exception_ptr& error);

/// The tail's part of a step.
StepInput after(const StepInput& head, HiddenStates hidden);

/// One answer as a head drives it: its ids, and how many of them the nodes should hold.
class Generation {
 public:
  Generation(std::string name, Ids prompt)
      : name_(std::move(name)), tokens_(std::move(prompt)), prompt_(tokens_.size()) {}

  std::string session() const { return name_ + "." + std::to_string(released_); }
  int64_t epoch() const { return epoch_; }
  int64_t held() const { return held_; }
  int64_t missing() const { return static_cast<int64_t>(tokens_.size()) - held_; }
  bool decodes() const { return held_ > 0 && missing() == 1; }
  Ids answer() const { return {tokens_.begin() + static_cast<int64_t>(prompt_), tokens_.end()}; }
  bool done() const { return tokens_.size() == prompt_ + kTokens; }

  /// The step that adds the next `count` ids.
  StepInput step(int64_t count) const {
    StepInput input;
    input.input = Ids(tokens_.begin() + held_, tokens_.begin() + held_ + count);
    input.position = held_;
    input.more = count < missing();
    input.mode = decodes() ? CacheMode::kDecode : CacheMode::kPrefill;
    input.session = session();
    input.epoch = epoch_;
    return input;
  }

  void served(int64_t count, std::optional<int64_t> token) {
    held_ += count;
    if (token) tokens_.push_back(*token);
  }
  /// All has to be prefilled again; a released session is over, so under another id.
  void missed(const std::string& reason) {
    held_ = 0;
    if (reason == "released") ++released_;
  }
  void reroute() {
    held_ = 0;
    ++epoch_;
  }

 private:
  std::string name_;
  Ids tokens_;
  std::size_t prompt_;
  int64_t held_ = 0;
  int64_t epoch_ = 1;
  int released_ = 0;
};

/// kGenerations of them with prompts of different lengths, the same in every call.
std::vector<Generation> generations(const std::string& name);

/// Both nodes on this thread, one step of several sessions after the other.
class Route {
 public:
  explicit Route(Dtype dtype = Dtype::kFloat32);

  struct Member {
    Generation* generation;
    int64_t count;  ///< ids to add
  };

  /// Carries the next step of each as one batch over both nodes. Returns the seams: what the head
  /// made, empty for a miss there.
  std::vector<HiddenStates> carry(const std::vector<Member>& members);

  void release(const std::string& session) {
    head->release(session);
    tail->release(session);
  }

  std::unique_ptr<Engine> head, tail;
  std::map<std::string, int> misses;

 private:
  bool missed(Generation& generation, const StepResult& result);
};

/// Each generation's answer when nothing else runs: one whole prefill, then decodes.
const std::vector<Ids>& serial_answers();

/// How much of what is missing goes in the next step: all of it half the time, else a chunk.
int64_t some(Random& random, const Generation& generation);

void expect_empty(const CacheStatus& status);

}  // namespace meshnet
