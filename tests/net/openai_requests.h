#pragma once

// Bodies of API requests, parsed, and how they are refused.

#include <gtest/gtest.h>

#include <string>

#include "net/openai.h"

namespace meshnet {

inline const std::string kMessages = R"("messages":[{"role":"user","content":"hi"}])";

inline ChatRequest chat(const std::string& fields) {
  return parse_chat_request("{" + kMessages + (fields.empty() ? "" : "," + fields) + "}");
}

inline ChatRequest chat_messages(const std::string& messages) {
  return parse_chat_request(R"({"messages":)" + messages + "}");
}

inline CompletionRequest completion(const std::string& fields) {
  return parse_completion_request("{" + fields + "}");
}

/// The refusal's param and message as "param | message", or "accepted".
template <class Parse>
std::string refusal(Parse parse) {
  try {
    parse();
    return "accepted";
  } catch (const HttpError& error) {
    EXPECT_EQ(error.status, 400u);
    EXPECT_EQ(error.error, kInvalidRequest);
    return error.param + " | " + error.what();
  }
}

inline std::string chat_refusal(const std::string& fields) {
  return refusal([&] { chat(fields); });
}

}  // namespace meshnet
