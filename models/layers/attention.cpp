#include "models/layers/attention.h"

#include <ATen/ATen.h>

#include <cmath>
#include <variant>
#include <vector>

#include "models/json_reader.h"
#include "models/ops.h"
#include "models/rope.h"
#include "models/weights.h"

namespace meshnet {
namespace {

bool slides(const ModelConfig& config, int64_t layer) {
  return config.layer_types[static_cast<std::size_t>(layer)] == LayerType::kSliding;
}

/// The rows q, k, v and gate of one matrix. q_proj holds per head its query rows, then its gate's.
Linear load_gated_qkv(
    const Weights& weights, const ModelConfig& config, int64_t q_size, int64_t kv_size, bool bias) {
  Linear linear;
  const auto load = [&](const std::string& kind, std::vector<int64_t> shape) {
    shape.insert(shape.begin(), 2 * (q_size + kv_size));
    at::Tensor whole = weights.empty(shape);
    load_by_head(weights,
                 "q_proj." + kind,
                 config.num_attention_heads,
                 {{0, config.head_dim}, {q_size + 2 * kv_size, config.head_dim}},
                 whole);
    weights.load("k_proj." + kind, whole.narrow(0, q_size, kv_size));
    weights.load("v_proj." + kind, whole.narrow(0, q_size + kv_size, kv_size));
    return whole;
  };
  linear.weight = load("weight", {config.hidden_size});
  if (bias) linear.bias = load("bias", {});
  return linear;
}

/// Takes key and value [rows, num_key_value_heads, head_dim] up in the layer's state; all that the
/// rows may see.
KeyValue append(const Sequence& sequence,
                int64_t layer,
                bool sliding,
                const at::Tensor& key,
                const at::Tensor& value) {
  if (sequence.cache == nullptr) return {key.transpose(0, 1), value.transpose(0, 1)};
  LayerCache& cache = sequence.cache->at(layer);
  return sliding ? std::get<SlidingKvCache>(cache).append(key, value)
                 : std::get<KvCache>(cache).append(key, value);
}

}  // namespace

at::Tensor Attention::forward(const at::Tensor& x, const Step& step, int64_t layer) const {
  const int64_t rotated_heads = num_attention_heads + num_key_value_heads;

  // 1. Project: per token its query heads, key heads, value heads, and gates.
  const at::Tensor qkv = qkv_proj.forward(x).unflatten(1, {-1, head_dim});

  // 2. Normalise and rotate queries and keys together, by each row's own position.
  at::Tensor qk = qkv.narrow(1, 0, rotated_heads);
  if (q_norm.weight.defined()) {
    qk = at::cat({q_norm.forward(qkv.narrow(1, 0, num_attention_heads)),
                  k_norm.forward(qkv.narrow(1, num_attention_heads, num_key_value_heads))},
                 1);
  }
  const bool own_rotary = sliding_window > 0 && step.sliding_rotary.cos.defined();
  qk = rotate_heads(qk, own_rotary ? step.sliding_rotary : step.rotary);
  const at::Tensor query = qk.narrow(1, 0, num_attention_heads);
  const at::Tensor key = qk.narrow(1, num_attention_heads, num_key_value_heads);
  const at::Tensor value = qkv.narrow(1, rotated_heads, num_key_value_heads);

  // 3. Attend, sequence by sequence: each sees its own rows, and those of its state, only.
  std::vector<at::Tensor> outputs;  // each [rows, num_attention_heads * head_dim]
  outputs.reserve(step.sequences.size());
  for (const Sequence& sequence : step.sequences) {
    const auto own = [&](const at::Tensor& rows) {
      return rows.narrow(0, sequence.first_row, sequence.rows);
    };
    const KeyValue seen = append(sequence, layer, sliding_window > 0, own(key), own(value));
    outputs.push_back(causal_attention(own(query), seen.key, seen.value, scaling, sliding_window));
  }
  at::Tensor attn_output = outputs.size() == 1 ? outputs[0] : at::cat(outputs);

  // 4. Back to hidden_size, all rows at once.
  if (output_gate) {
    const at::Tensor gate =
        qkv.narrow(1, rotated_heads + num_key_value_heads, num_attention_heads).flatten(1);
    attn_output = attn_output * at::sigmoid(gate);
  }
  return o_proj.forward(attn_output);
}

bool read_attention_bias(const ModelConfig& config) {
  return JsonReader(*config.raw, config.path.string()).boolean_or("attention_bias", false);
}

Attention load_attention(const Weights& weights,
                         const ModelConfig& config,
                         int64_t layer,
                         const AttentionOptions& options) {
  const int64_t head_dim = config.head_dim;
  const int64_t q_size = config.num_attention_heads * head_dim;
  const int64_t kv_size = config.num_key_value_heads * head_dim;
  const auto norm = [&](const char* name) {
    return RmsNorm{options.qk_norm ? weights.get(name, {head_dim}) : at::Tensor(),
                   config.rms_norm_eps,
                   options.zero_centred_norm};
  };
  return {config.num_attention_heads,
          config.num_key_value_heads,
          head_dim,
          options.scaling > 0 ? options.scaling : 1.0 / std::sqrt(static_cast<double>(head_dim)),
          slides(config, layer) ? config.sliding_window : 0,
          options.output_gate,
          options.output_gate
              ? load_gated_qkv(weights, config, q_size, kv_size, options.qkv_bias)
              : load_linear(weights,
                            config.hidden_size,
                            {{"q_proj", q_size}, {"k_proj", kv_size}, {"v_proj", kv_size}},
                            options.qkv_bias),
          load_linear(weights, q_size, {{"o_proj", config.hidden_size}}, options.o_bias),
          norm("q_norm.weight"),
          norm("k_norm.weight")};
}

LayerGeometry attention_geometry(const ModelConfig& config, int64_t layer) {
  if (!slides(config, layer)) return KvGeometry{config.num_key_value_heads, config.head_dim};
  return SlidingKvGeometry{config.num_key_value_heads, config.head_dim, config.sliding_window};
}

}  // namespace meshnet
