/// Slices and kernels for Python: torch.classes.meshnet.Slice and torch.ops.meshnet.*.

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <cstddef>
#include <string>
#include <vector>

#include "cache/recipe.h"
#include "models/kernels/experts.h"
#include "models/kernels/gated_delta.h"
#include "models/kernels/silu_and_mul.h"
#include "models/slice.h"

namespace meshnet {
namespace {

/// A model's layers on a device, and the state of sessions numbered from 0.
class Slice : public torch::CustomClassHolder {
 public:
  /// Layers [first, last); last = -1 is the model's.
  Slice(const std::string& model_dir,
        int64_t first,
        int64_t last,
        at::ScalarType dtype,
        at::Device device)
      : config_(read_config(model_dir)),
        slice_(model_dir,
               config_,
               {first, last == -1 ? config_.num_hidden_layers : last},
               dtype,
               device),
        recipe_(recipe_fields(config_, slice_.layers(), dtype)),
        device_(device) {}

  int64_t open() {
    const c10::InferenceMode no_gradients;
    caches_.push_back(recipe_.make_cache(recipe_.owned().first, device_));
    return static_cast<int64_t>(caches_.size()) - 1;
  }
  int64_t state_bytes(int64_t session) { return cache(session).nbytes(); }

  at::Tensor embed(const at::Tensor& input_ids) {
    const c10::InferenceMode no_gradients;
    return slice_.embed(input_ids);
  }
  /// The next rows of a session; -1 = stateless, from position 0.
  at::Tensor forward(const at::Tensor& hidden_states, int64_t session) {
    const c10::InferenceMode no_gradients;
    Sequence sequence{0, hidden_states.size(0), 0};
    if (session >= 0) {
      sequence.cache = &cache(session);
      sequence.position = sequence.cache->length();
    }
    return slice_.forward(hidden_states, {sequence}, slice_.layers().first);
  }
  at::Tensor logits(const at::Tensor& hidden_states) {
    const c10::InferenceMode no_gradients;
    return slice_.logits(hidden_states);
  }

 private:
  SliceCache& cache(int64_t session) { return caches_.at(static_cast<std::size_t>(session)); }

  ModelConfig config_;
  ModelSlice slice_;
  Recipe recipe_;
  at::Device device_;
  std::vector<SliceCache> caches_;
};

using Grouped = at::Tensor (*)(const at::Tensor&, const Routing&, const ExpertWeights&);

template <Grouped kFunction>
at::Tensor experts(const at::Tensor& x,
                   const at::Tensor& index,
                   const at::Tensor& weights,
                   const at::Tensor& gate_up_proj,
                   const at::Tensor& down_proj) {
  return kFunction(x, {index, weights}, {gate_up_proj, down_proj});
}

TORCH_LIBRARY(meshnet, library) {
  library.class_<Slice>("Slice")
      .def(torch::init<std::string, int64_t, int64_t, at::ScalarType, at::Device>())
      .def("open", &Slice::open)
      .def("state_bytes", &Slice::state_bytes)
      .def("embed", &Slice::embed)
      .def("forward", &Slice::forward)
      .def("logits", &Slice::logits);

  const std::string delta =
      "(Tensor query, Tensor key, Tensor value, Tensor g, Tensor beta, Tensor(a!) state) -> Tensor";
  library.def(("gated_delta_rule" + delta).c_str(), gated_delta_rule);
  library.def(("gated_delta_rule_reference" + delta).c_str(), gated_delta_rule_reference);
  library.def("silu_and_mul(Tensor gate_up) -> Tensor", silu_and_mul);
  library.def("silu_and_mul_reference(Tensor gate_up) -> Tensor", silu_and_mul_reference);
  const std::string grouped =
      "(Tensor x, Tensor index, Tensor weights, Tensor gate_up_proj, Tensor down_proj) -> Tensor";
  library.def(("experts_one_by_one" + grouped).c_str(), experts<experts_one_by_one>);
  library.def(("experts_grouped" + grouped).c_str(), experts<experts_grouped>);
}

}  // namespace
}  // namespace meshnet
