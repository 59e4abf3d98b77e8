#include "models/layers/linear.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>

#include <string>

#include "models/kernels/bf16_cpu.h"
#include "models/weights.h"

namespace meshnet {

at::Tensor Linear::forward(const at::Tensor& x) const {
  if (x.size(0) == 1 && takes_bf16_kernels(x)) return linear_row(x, weight, bias);
  return at::linear(x, weight, bias);
}

Linear load_linear(const Weights& weights,
                   int64_t in_features,
                   const std::vector<Projection>& projections,
                   bool bias) {
  int64_t out_features = 0;
  for (const Projection& projection : projections) out_features += projection.out_features;

  Linear linear;
  linear.weight = weights.empty({out_features, in_features});
  if (bias) linear.bias = weights.empty({out_features});
  int64_t first = 0;
  for (const auto& [name, rows] : projections) {
    weights.load(std::string(name) + ".weight", linear.weight.narrow(0, first, rows));
    if (bias) weights.load(std::string(name) + ".bias", linear.bias.narrow(0, first, rows));
    first += rows;
  }
  return linear;
}

void load_by_head(const Weights& weights,
                  std::string_view name,
                  int64_t heads,
                  const std::vector<HeadPart>& parts,
                  const at::Tensor& whole) {
  int64_t rows = 0;
  for (const HeadPart& part : parts) rows += part.rows;
  std::vector<int64_t> shape = whole.sizes().vec();
  shape[0] = heads * rows;
  const at::Tensor stored = at::empty(shape, whole.options());
  weights.load(name, stored);
  const at::Tensor by_head = stored.unflatten(0, {heads, rows});
  int64_t offset = 0;
  for (const HeadPart& part : parts) {
    whole.narrow(0, part.first, heads * part.rows)
        .unflatten(0, {heads, part.rows})
        .copy_(by_head.narrow(1, offset, part.rows));
    offset += part.rows;
  }
}

}  // namespace meshnet
