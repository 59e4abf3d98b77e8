#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include <boost/uuid/random_generator.hpp>
#include <boost/uuid/uuid_io.hpp>

#include "models/nvtx.h"
#include "net/http_error.h"
#include "net/openai.h"
#include "net/run_on.h"
#include "net/sse.h"
#include "runtime/handlers.h"
#include "runtime/node.h"

namespace meshnet {
namespace {

/// What OpenAI's /v1/completions generates when max_tokens is absent.
constexpr int64_t kDefaultCompletionTokens = 16;

int64_t seconds_since_epoch(std::chrono::system_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::seconds>(time.time_since_epoch()).count();
}

AnswerHead make_head(const Node& node, bool chat) {
  const auto id = boost::uuids::to_string(boost::uuids::random_generator()());
  return {(chat ? "chatcmpl-" : "cmpl-") + id,
          node.self.served_name,
          seconds_since_epoch(std::chrono::system_clock::now()),
          chat};
}

/// The endpoint's name in metrics.
const char* endpoint_of(const AnswerHead& head) {
  return head.chat ? "/v1/chat/completions" : "/v1/completions";
}

void check_model(const Node& node, const std::string& model) {
  if (model.empty() || model == node.self.served_name) return;
  HttpError error(
      404,
      "model_not_found",
      fmt::format(
          "the model '{}' does not exist; this node serves '{}'", model, node.self.served_name));
  error.param = "model";
  throw error;
}

HttpError bad_request(const char* code, const char* param, const std::string& message) {
  HttpError error(400, code, message);
  error.param = param;
  return error;
}

std::vector<int64_t> chat_prompt(const Node& node, const ChatRequest& request) {
  if (!node.chat_template) {
    throw bad_request("no_chat_template",
                      "messages",
                      "this model has no chat template (neither chat_template.jinja nor "
                      "chat_template in tokenizer_config.json); "
                      "use /v1/completions");
  }
  // The template writes the special tokens itself.
  return node.tokenizer->encode(
      node.chat_template->render(request.messages, request.tools, request.chat_template_kwargs),
      /*add_special_tokens=*/false);
}

std::vector<int64_t> completion_prompt(const Node& node, const CompletionRequest& request) {
  if (const auto* ids = std::get_if<std::vector<int64_t>>(&request.prompt)) return *ids;
  return node.tokenizer->encode(std::get<std::string>(request.prompt), /*add_special_tokens=*/true);
}

/// Ids come from clients, and from tokenizers that may know more tokens than the model has rows.
void check_ids(const std::vector<int64_t>& ids, int64_t vocab_size) {
  const auto outside =
      std::ranges::find_if(ids, [&](int64_t id) { return id < 0 || id >= vocab_size; });
  if (outside == ids.end()) return;
  throw bad_request(
      kInvalidRequest,
      "prompt",
      fmt::format("prompt: expected token ids in [0, {}), got {}", vocab_size, *outside));
}

GenerationInput make_input(const Node& node,
                           const GenerationRequest& request,
                           std::vector<int64_t> prompt_ids,
                           const AnswerHead& head) {
  check_ids(prompt_ids, node.shard.config().vocab_size);
  const auto prompt_tokens = static_cast<int64_t>(prompt_ids.size());
  if (prompt_tokens == 0) throw bad_request(kInvalidRequest, "prompt", "the prompt has no tokens");
  const int64_t room = node.max_context() - prompt_tokens;
  if (room < 1) {
    throw bad_request(
        "context_length_exceeded",
        head.chat ? "messages" : "prompt",
        fmt::format("the prompt has {} tokens; the context of {} tokens must also hold the answer",
                    prompt_tokens,
                    node.max_context()));
  }
  const int64_t wanted = request.max_tokens.value_or(head.chat ? room : kDefaultCompletionTokens);
  return {std::move(prompt_ids),
          resolve_sampling(request.sampling, node.generation_config),
          std::min(wanted, room),
          request.stop,
          head.id};
}

/// The whole answer in one body.
Awaitable<void> answer_whole(Node& node,
                             Exchange& exchange,
                             const GenerationRequest& request,
                             GenerationInput input,
                             AnswerHead head) {
  ChoicePart choice;
  if (request.return_token_ids) {
    choice.prompt_token_ids = input.prompt_ids;
    choice.token_ids.emplace();
  }
  const auto prompt_tokens = static_cast<int64_t>(input.prompt_ids.size());
  std::string server_timing;
  OnDelta collect = [&](GenerationDelta delta) -> Awaitable<void> {
    choice.text += delta.text;
    if (auto& ids = choice.token_ids) {
      ids->insert(ids->end(), delta.token_ids.begin(), delta.token_ids.end());
    }
    server_timing = std::move(delta.server_timing);
    co_return;
  };
  const GenerationEnd end = co_await node.generator->run(std::move(input), std::move(collect));
  choice.finish_reason = end.finish_reason;

  node.metrics.count_request(endpoint_of(head), 200);
  HttpResponse response{http::status::ok, 11};
  response.set(http::field::content_type, "application/json");
  response.set("Server-Timing", server_timing);
  response.body() = format_answer(head, choice, {prompt_tokens, end.completion_tokens});
  co_await exchange.send(std::move(response));
}

HttpResponse stream_head(const std::string& server_timing) {
  HttpResponse head{http::status::ok, 11};
  head.set(http::field::content_type, "text/event-stream");
  head.set(http::field::cache_control, "no-cache");
  head.set("X-Accel-Buffering", "no");  // nginx would hold events back
  head.set("Server-Timing", server_timing);
  return head;
}

/// The chunks of one answer. The first opens the stream.
class ChunkWriter {
 public:
  ChunkWriter(Exchange& exchange,
              const GenerationRequest& request,
              const AnswerHead& head,
              std::vector<int64_t> prompt_ids)
      : exchange_(exchange), request_(request), head_(head), prompt_ids_(std::move(prompt_ids)) {}

  Awaitable<void> write_delta(GenerationDelta delta) {
    if (!exchange_.streaming()) {
      HttpResponse start = stream_head(delta.server_timing);
      co_await exchange_.begin_stream(std::move(start));
    }
    std::string unfinished;
    co_await write_part(std::move(delta), std::move(unfinished));
  }

  Awaitable<void> write_end(GenerationEnd end) {
    GenerationDelta nothing;
    co_await write_part(std::move(nothing), std::move(end.finish_reason));
    if (request_.include_usage) {
      const Usage usage{static_cast<int64_t>(prompt_ids_.size()), end.completion_tokens};
      co_await exchange_.write(sse_event(format_usage_chunk(head_, usage)));
    }
    co_await exchange_.write(kSseDone);
  }

 private:
  Awaitable<void> write_part(GenerationDelta delta, std::string finish_reason) {
    ChoicePart part{std::move(delta.text), std::move(finish_reason), {}, {}};
    if (request_.return_token_ids) {
      if (first_) part.prompt_token_ids = prompt_ids_;
      part.token_ids = std::move(delta.token_ids);
    }
    co_await exchange_.write(sse_event(format_chunk(head_, part, std::exchange(first_, false))));
  }

  Exchange& exchange_;
  const GenerationRequest& request_;
  const AnswerHead& head_;
  std::vector<int64_t> prompt_ids_;
  bool first_ = true;
};

/// The answer as server-sent events. The status goes out with the first text, so that a failing
/// prefill can still answer with a real one; a later failure is one error event, without "[DONE]",
/// and counted under the status that it would have had.
Awaitable<void> answer_stream(Node& node,
                              Exchange& exchange,
                              const GenerationRequest& request,
                              GenerationInput input,
                              AnswerHead head) {
  ChunkWriter chunks(exchange, request, head, input.prompt_ids);
  OnDelta on_delta = [&chunks](GenerationDelta delta) {
    return chunks.write_delta(std::move(delta));
  };
  unsigned status = 200;
  std::string failure;
  try {
    GenerationEnd end = co_await node.generator->run(std::move(input), std::move(on_delta));
    co_await chunks.write_end(std::move(end));
  } catch (const boost::system::system_error&) {
    throw;  // the client has gone
  } catch (const std::exception&) {
    if (!exchange.streaming()) throw;
    const HttpError error = to_api_error(node, std::current_exception());
    spdlog::warn("{}: ended after the first token: {}", head.id, error.what());
    status = error.status;
    failure = sse_event(format_openai_error(error));
  }
  if (!failure.empty()) co_await exchange.write(failure);
  node.metrics.count_request(endpoint_of(head), status);
  co_await exchange.end_stream();
}

Awaitable<void> answer(Node& node,
                       Exchange& exchange,
                       const GenerationRequest& request,
                       std::vector<int64_t> prompt_ids,
                       AnswerHead head) {
  GenerationInput input = make_input(node, request, std::move(prompt_ids), head);
  if (request.stream) {
    co_await answer_stream(node, exchange, request, std::move(input), std::move(head));
  } else {
    co_await answer_whole(node, exchange, request, std::move(input), std::move(head));
  }
}

Awaitable<void> handle_chat(Node& node, Exchange& exchange) {
  AnswerHead head = make_head(node, /*chat=*/true);
  const AsyncRange range({.kind = "request", .subject = head.id});
  auto read = [&exchange] { return parse_chat_request(exchange.request.body()); };
  const ChatRequest request = co_await run_on(node.text_thread.get_executor(), std::move(read));
  check_model(node, request.model);
  auto render = [&node, &request] { return chat_prompt(node, request); };
  std::vector<int64_t> prompt_ids =
      co_await run_on(node.text_thread.get_executor(), std::move(render));
  co_await answer(node, exchange, request, std::move(prompt_ids), std::move(head));
}

Awaitable<void> handle_completion(Node& node, Exchange& exchange) {
  AnswerHead head = make_head(node, /*chat=*/false);
  const AsyncRange range({.kind = "request", .subject = head.id});
  auto read = [&exchange] { return parse_completion_request(exchange.request.body()); };
  const CompletionRequest request =
      co_await run_on(node.text_thread.get_executor(), std::move(read));
  check_model(node, request.model);
  auto encode = [&node, &request] { return completion_prompt(node, request); };
  std::vector<int64_t> prompt_ids =
      co_await run_on(node.text_thread.get_executor(), std::move(encode));
  co_await answer(node, exchange, request, std::move(prompt_ids), std::move(head));
}

}  // namespace

void add_api_routes(Router& router, Node& node) {
  router.add(http::verb::post, "/v1/chat/completions", [&node](Exchange& e) {
    return handle_chat(node, e);
  });
  router.add(http::verb::post, "/v1/completions", [&node](Exchange& e) {
    return handle_completion(node, e);
  });
  router.add(http::verb::get, "/v1/models", [&node](Exchange& e) {
    return send_json(
        node,
        e,
        http::status::ok,
        format_models(
            node.self.served_name, seconds_since_epoch(node.started), node.max_context()));
  });
}

}  // namespace meshnet
