#pragma once

#include <ATen/core/Tensor.h>

/// The gated delta rule of Qwen3-Next and Qwen3.5, for one sequence. Each v head has a state S
/// [head_k_dim, head_v_dim]; with q and k normalised to length 1, q over sqrt(head_k_dim), a token
/// does (transformers, modeling_qwen3_next.py, torch_recurrent_gated_delta_rule)
///   S = exp(g) S;  S = S + k (beta (v - S^T k))^T;  out = S^T q
///
/// query and key [tokens, num_k_heads, head_k_dim], value [tokens, num_v_heads, head_v_dim], all of
/// one dtype; g and beta [tokens, num_v_heads], float32; state [num_v_heads, head_k_dim,
/// head_v_dim], float32, contiguous, is that before the first token and afterwards that after the
/// last → [tokens, num_v_heads, head_v_dim], contiguous, in the dtype of value. K head i serves the
/// num_v_heads / num_k_heads v heads from i * num_v_heads / num_k_heads on. All arithmetic is
/// float32, so that a prompt may be cut anywhere: state and outputs differ by rounding only.
namespace meshnet {

constexpr float kL2NormEps = 1e-6F;  ///< added to the sum of squares of q and of k

/// By the kernels for the tensors' device where there are some, else by the twin. Throws
/// c10::Error for shapes and dtypes that do not fit together.
at::Tensor gated_delta_rule(const at::Tensor& query,
                            const at::Tensor& key,
                            const at::Tensor& value,
                            const at::Tensor& g,
                            const at::Tensor& beta,
                            const at::Tensor& state);

/// The twin, token by token and operation by operation: the reference in tests.
at::Tensor gated_delta_rule_reference(const at::Tensor& query,
                                      const at::Tensor& key,
                                      const at::Tensor& value,
                                      const at::Tensor& g,
                                      const at::Tensor& beta,
                                      const at::Tensor& state);

/// On a CPU: any number of tokens, in chunks of matrix products. These two take float32 and
/// bfloat16, and heads and dimensions of a token must lie contiguous.
at::Tensor gated_delta_chunks_cpu(const at::Tensor& query,
                                  const at::Tensor& key,
                                  const at::Tensor& value,
                                  const at::Tensor& g,
                                  const at::Tensor& beta,
                                  const at::Tensor& state);

/// On a CPU: one token. The state is read and written once.
at::Tensor gated_delta_step_cpu(const at::Tensor& query,
                                const at::Tensor& key,
                                const at::Tensor& value,
                                const at::Tensor& g,
                                const at::Tensor& beta,
                                const at::Tensor& state);

/// On a GPU: any number of tokens, one after another with the state in registers. head_k_dim is at
/// most 256. Only with MESHNET_CUDA.
at::Tensor gated_delta_rule_cuda(const at::Tensor& query,
                                 const at::Tensor& key,
                                 const at::Tensor& value,
                                 const at::Tensor& g,
                                 const at::Tensor& beta,
                                 const at::Tensor& state);

}  // namespace meshnet
