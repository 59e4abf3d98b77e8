#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <exception>
#include <optional>
#include <span>
#include <vector>

#include "cache/session_store.h"
#include "models/slice.h"
#include "runtime/engine.h"

namespace meshnet {

/// Steps of different sessions as one packed batch: projections and MLP run once over all rows.
/// State is committed for the steps that succeed, and dropped with the others.
class Batch {
 public:
  Batch(const ModelSlice& slice, std::span<const StepInput> inputs)
      : slice_(slice), inputs_(inputs), results_(inputs.size()) {}

  /// Takes inputs[index] into the batch. hidden_states [tokens, hidden_size].
  void add(std::size_t index, at::Tensor hidden_states, std::optional<SessionStore::Lease> lease);
  /// inputs[index] stays out of the batch.
  void fail(std::size_t index, std::exception_ptr error) { results_[index] = std::move(error); }

  /// Runs what was added. What it throws concerns all of it.
  void run();
  void fail_all(const std::exception_ptr& error);

  std::vector<StepResult> take_results() { return std::move(results_); }

 private:
  struct Member {
    std::size_t index;  ///< in inputs_
    Sequence sequence;
    std::optional<SessionStore::Lease> lease;  ///< none for a stateless step
  };

  void hand_on(const at::Tensor& hidden_states);
  void sample_tokens(const at::Tensor& hidden_states);

  const ModelSlice& slice_;
  std::span<const StepInput> inputs_;
  std::vector<StepResult> results_;
  std::vector<Member> members_;
  std::vector<at::Tensor> rows_;  ///< each member's, [tokens, hidden_size]
  int64_t tokens_ = 0;
};

}  // namespace meshnet
