#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

namespace meshnet {

class Weights;

/// A matrix product, perhaps several of the checkpoint's in one: q_proj, k_proj and v_proj read
/// their input once.
struct Linear {
  at::Tensor weight;  ///< [out_features, in_features]
  at::Tensor bias;    ///< [out_features]; undefined = none

  /// x [tokens, in_features] → [tokens, out_features]
  at::Tensor forward(const at::Tensor& x) const;
};

/// One of the checkpoint's own projections: rows of the output, in order.
struct Projection {
  std::string_view name;
  int64_t out_features;
};

/// Loads NAME.weight (and NAME.bias) of each projection straight into its part of the whole.
Linear load_linear(const Weights& weights,
                   int64_t in_features,
                   const std::vector<Projection>& projections,
                   bool bias);

/// A part of what every head has of a stored tensor: where the heads' rows of it begin in the
/// whole, and how many rows a head has.
struct HeadPart {
  int64_t first;
  int64_t rows;
};

/// Loads a tensor that is stored head by head, each with its `parts` in order, so that in `whole`
/// [out_features] or [out_features, in_features] each part lies for all heads together. The tensor
/// is held twice for that moment.
void load_by_head(const Weights& weights,
                  std::string_view name,
                  int64_t heads,
                  const std::vector<HeadPart>& parts,
                  const at::Tensor& whole);

}  // namespace meshnet
