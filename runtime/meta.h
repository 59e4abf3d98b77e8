#pragma once

#include <string>

#include "net/messages.h"

namespace meshnet {

/// What the tail needs and headers cannot hold (X-Meshnet-Meta-Length), as JSON.
std::string format_meta(const SamplingParams& sampling);

/// Throws HttpError 400 naming the field. Empty text gives greedy sampling; unknown fields are left
/// out (the format grows).
SamplingParams parse_meta(const std::string& meta);

}  // namespace meshnet
