#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "net/messages.h"

namespace meshnet {

/// Picks one token from float32 logits [vocab_size] on any device.
///
/// Greedy when temperature is (nearly) 0 or top_p is 0; of equal logits the lowest id wins. Else
/// temperature, top_k and top_p in that order, as in Hugging Face's processors, and one uniform
/// number of the counter-based generator Philox 4x32 keyed by (seed, position): the same request
/// gives the same token whichever node samples. `position` is the absolute position the token will
/// stand at.
int64_t sample(const at::Tensor& logits, const SamplingParams& params, int64_t position);

}  // namespace meshnet
