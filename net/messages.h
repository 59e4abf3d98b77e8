#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace meshnet {

/// Names travel in comma-separated headers and in metrics: 1 to 64 letters, digits, '-', '_' or
/// '.'.
bool is_node_name(std::string_view name);

/// Element type of hidden states, on the wire and in a shard.
enum class Dtype { kBFloat16, kFloat16, kFloat32 };

/// "bfloat16", "float16", "float32".
std::string_view to_string(Dtype dtype);
std::optional<Dtype> parse_dtype(std::string_view name);
/// Bytes of one element.
std::size_t size_of(Dtype dtype);

/// The un-normalized residual that crosses a seam: [1, tokens, hidden_size], raw little-endian
/// values.
struct HiddenStates {
  Dtype dtype = Dtype::kFloat32;
  int64_t tokens = 0;
  int64_t hidden_size = 0;
  std::string bytes;  ///< tokens * hidden_size * size_of(dtype) of them
};

/// How the tail picks a token. temperature 0 is greedy; top_k 0 and top_p 1 are off.
struct SamplingParams {
  double temperature = 0.0;
  int64_t top_k = 0;
  double top_p = 1.0;
  uint64_t seed = 0;
};
/// Whether the parameters leave no choice: temperature (nearly) 0, or top_p 0.
bool is_greedy(const SamplingParams& params);

/// What a step does with session state: nothing, take up (a part of) the prompt, or the newest
/// token.
enum class CacheMode { kStateless, kPrefill, kDecode };
/// "stateless", "prefill", "decode": on the wire, in metrics and logs.
std::string_view to_string(CacheMode mode);

/// One POST /forward: the step, and what the nodes after this one need to know.
struct ForwardRequest {
  std::string session;
  CacheMode mode = CacheMode::kStateless;
  int64_t past_len = 0;   ///< tokens the node must already hold
  int64_t hop_index = 0;  ///< receiver's position in the route; for logs and errors only
  std::optional<int64_t> start_layer;  ///< first absolute layer to run; absent = the shard's first
  int64_t protocol = 0;  ///< as parsed: of the sender, 0 = it knows only the five fixed headers
  std::vector<std::string>
      route;  ///< names of the receiver and the nodes after it; empty = do not chain
  int64_t epoch = 1;
  std::string model_fingerprint;   ///< empty = not compared
  std::string recipe_fingerprint;  ///< empty = not compared
  bool more = false;               ///< a prefill chunk that is not the last
  std::string meta;                ///< JSON for the tail, passed along unchanged; empty = none
  std::string trace;               ///< request id for logs and profiles
  HiddenStates hidden;
};

/// The tail's answer. token_id is absent after a chunk with `more`, and from a tail of protocol 0
/// that only has text.
struct TokenReply {
  std::string text;
  std::optional<int64_t> token_id;
};

/// One answer to POST /forward with status 200.
struct ForwardReply {
  std::variant<HiddenStates, TokenReply> result;
  std::string server_timing;  ///< Server-Timing of that hop and those after it
  int64_t protocol = 0;  ///< as parsed: of the answering node; a tensor of protocol 1 is the result
                         ///< of its whole route
};

}  // namespace meshnet
