#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <string>

#include "runtime/tokenizer.h"

namespace meshnet {

/// At the tail: what each token adds to the decoded output of its session. For the I/O thread.
class TailText {
 public:
  /// Remembers the `max_sessions` that were used last.
  TailText(const Tokenizer& tokenizer, int64_t max_sessions)
      : tokenizer_(tokenizer), max_sessions_(max_sessions) {}

  /// The text of a token that will stand at `position`; empty while a character is unfinished. One
  /// that does not follow the session's last is decoded as the first of an output.
  std::string add(const std::string& session, int64_t position, int64_t token_id);
  void release(const std::string& session);

 private:
  struct Output {
    std::string session;
    int64_t position;  ///< of the next token
    Detokenizer detokenizer;
  };

  const Tokenizer& tokenizer_;
  int64_t max_sessions_;
  std::list<Output> outputs_;  ///< the one used last first
  std::map<std::string, std::list<Output>::iterator> by_session_;
};

}  // namespace meshnet
