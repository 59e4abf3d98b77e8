#include "runtime/batch.h"

#include <ATen/ATen.h>

#include <utility>
#include <variant>

#include "models/device_copy.h"
#include "net/http_error.h"
#include "runtime/sampler.h"
#include "runtime/tensor_wire.h"

namespace meshnet {

void Batch::add(std::size_t index,
                at::Tensor hidden_states,
                std::optional<SessionStore::Lease> lease) {
  const int64_t tokens = hidden_states.size(0);
  members_.push_back({index, {tokens_, tokens, inputs_[index].position}, std::move(lease)});
  rows_.push_back(std::move(hidden_states));
  tokens_ += tokens;
}

void Batch::run() {
  if (members_.empty()) return;
  std::vector<Sequence> sequences;
  for (Member& member : members_) {
    if (member.lease) member.sequence.cache = &member.lease->cache();
    sequences.push_back(member.sequence);
  }
  const at::Tensor hidden_states = slice_.forward(rows_.size() == 1 ? rows_[0] : at::cat(rows_),
                                                  std::move(sequences),
                                                  inputs_[members_.front().index].start_layer);
  if (slice_.is_last()) {
    sample_tokens(hidden_states);
  } else {
    hand_on(hidden_states);
  }
  for (Member& member : members_) {
    const bool failed = std::holds_alternative<std::exception_ptr>(results_[member.index]);
    if (member.lease && !failed) member.lease->commit();
  }
}

void Batch::fail_all(const std::exception_ptr& error) {
  for (const Member& member : members_) results_[member.index] = error;
}

void Batch::hand_on(const at::Tensor& hidden_states) {
  const at::Tensor host = to_host(hidden_states);
  for (const Member& member : members_) {
    results_[member.index] =
        to_wire(host.narrow(0, member.sequence.first_row, member.sequence.rows));
  }
}

/// The last row of each member that is no chunk before the last.
void Batch::sample_tokens(const at::Tensor& hidden_states) {
  std::vector<const Member*> sampled;
  std::vector<at::Tensor> last_rows;  // each [1, hidden_size]
  for (const Member& member : members_) {
    results_[member.index] = std::optional<int64_t>();
    if (inputs_[member.index].more) continue;
    sampled.push_back(&member);
    last_rows.push_back(
        hidden_states.narrow(0, member.sequence.first_row + member.sequence.rows - 1, 1));
  }
  if (sampled.empty()) return;
  const at::Tensor logits =  // [sampled, vocab_size]
      slice_.logits(last_rows.size() == 1 ? last_rows[0] : at::cat(last_rows));
  const at::Tensor finite = to_host(at::isfinite(logits).all(/*dim=*/1));  // [sampled]
  for (std::size_t i = 0; i < sampled.size(); ++i) {
    const Member& member = *sampled[i];
    const at::Tensor own = logits[static_cast<int64_t>(i)];
    if (finite.const_data_ptr<bool>()[i]) {
      results_[member.index] = sample(
          own, inputs_[member.index].sampling, member.sequence.position + member.sequence.rows);
    } else {
      results_[member.index] = std::make_exception_ptr(
          HttpError(500, "non_finite_logits", "the logits of this step are not finite"));
    }
  }
}

}  // namespace meshnet
