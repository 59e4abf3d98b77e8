#include "runtime/tail_text.h"

namespace meshnet {

std::string TailText::add(const std::string& session, int64_t position, int64_t token_id) {
  if (const auto found = by_session_.find(session); found != by_session_.end()) {
    outputs_.splice(outputs_.begin(), outputs_, found->second);
    Output& output = outputs_.front();
    if (output.position != position) output.detokenizer = Detokenizer(tokenizer_);
  } else {
    outputs_.push_front({session, position, Detokenizer(tokenizer_)});
    by_session_[session] = outputs_.begin();
  }
  outputs_.front().position = position + 1;
  std::string text = outputs_.front().detokenizer.push(token_id);
  if (static_cast<int64_t>(outputs_.size()) > max_sessions_) {
    by_session_.erase(outputs_.back().session);
    outputs_.pop_back();
  }
  return text;
}

void TailText::release(const std::string& session) {
  const auto found = by_session_.find(session);
  if (found == by_session_.end()) return;
  outputs_.erase(found->second);
  by_session_.erase(found);
}

}  // namespace meshnet
