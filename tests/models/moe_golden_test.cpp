// Mixture of experts against transformers: what its blocks make, and what lies in its checkpoints.

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "models/layers/moe.h"
#include "models/weights.h"
#include "support.h"

namespace meshnet {
namespace {

using testing::HasSubstr;

constexpr double kOneRounding = 1.0 / 256;  // of bfloat16

struct Golden {
  std::string name;
  MoeConfig config;
};

std::ostream& operator<<(std::ostream& out, const Golden& golden) { return out << golden.name; }

const std::vector<Golden> kGoldens{{"qwen3_moe", {64, 8, 2, 40, 0, false}},
                                   {"qwen3_moe_norm", {96, 9, 4, 64, 0, true}},
                                   {"qwen3_next", {64, 16, 5, 32, 96, true}},
                                   {"qwen3_5_moe", {128, 12, 3, 64, 32, true}}};

SparseMoe load(const std::filesystem::path& dir,
               const MoeConfig& config,
               at::ScalarType dtype = at::kFloat) {
  Checkpoint checkpoint(dir);
  return load_moe(Weights(checkpoint, dtype, at::kCPU).at("model.layers.0.mlp"), config);
}

std::filesystem::path golden_dir() { return path_from_environment("MESHNET_MOE_GOLDEN"); }

class MoeGolden : public testing::TestWithParam<Golden> {
 protected:
  void SetUp() override { at::manual_seed(0); }

 private:
  c10::InferenceMode no_gradients_;
};

TEST_P(MoeGolden, AsTransformersInFloat32) {
  const auto& [name, config] = GetParam();
  const Tensors golden = read_safetensors(golden_dir() / (name + ".golden.safetensors"));
  const SparseMoe moe = load(golden_dir() / name, config);
  const at::Tensor& x = golden.at("x");
  const Routing routing = moe.route(x);
  EXPECT_TRUE(at::equal(routing.index, golden.at("index")));
  EXPECT_LT(relative_error(routing.weights, golden.at("weights")), 1e-5);
  EXPECT_LT(relative_error(moe.gate.forward(x).narrow(1, 0, config.num_experts),
                           golden.at("router_logits")),
            1e-5);
  EXPECT_LT(relative_error(moe.forward(x), golden.at("output")), 1e-4);
  EXPECT_LT(relative_error(moe.forward(x.narrow(0, 3, 1)), golden.at("output").narrow(0, 3, 1)),
            1e-4);
}

TEST_P(MoeGolden, AsTransformersInBfloat16) {
  const auto& [name, config] = GetParam();
  const Tensors golden = read_safetensors(golden_dir() / (name + ".golden.safetensors"));
  const SparseMoe moe = load(golden_dir() / name, config, at::kBFloat16);
  const at::Tensor x = golden.at("x").to(at::kBFloat16);
  EXPECT_TRUE(at::equal(std::get<0>(moe.route(x).index.sort(1)),
                        std::get<0>(golden.at("index_bfloat16").sort(1))));
  EXPECT_LT(relative_error(moe.forward(x), golden.at("output_bfloat16")), 2 * kOneRounding);
}

TEST_P(MoeGolden, FusedAndOneByOneAreTheSameInMemory) {
  const auto& [name, config] = GetParam();
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const SparseMoe one_by_one = load(golden_dir() / name, config, dtype);
    const SparseMoe fused = load(golden_dir() / (name + "_fused"), config, dtype);
    EXPECT_TRUE(at::equal(fused.experts.gate_up_proj, one_by_one.experts.gate_up_proj));
    EXPECT_TRUE(at::equal(fused.experts.down_proj, one_by_one.experts.down_proj));
    const at::Tensor x = at::randn({3, config.hidden_size}).to(dtype);
    EXPECT_TRUE(at::equal(fused.forward(x), one_by_one.forward(x)));
  }
}

TEST_P(MoeGolden, ATensorOfAnotherNameIsMissedByName) {
  const auto& [name, config] = GetParam();
  for (const std::string& each : {name, name + "_fused"}) {
    const Tensors tensors = read_safetensors(golden_dir() / each / "model.safetensors");
    int renamed = 0;
    for (const auto& [tensor_name, tensor] : tensors) {
      if (tensor_name.find(".mlp.") == std::string::npos) continue;
      Tensors changed = tensors;
      changed.erase(tensor_name);
      changed.emplace(tensor_name + "_", tensor);
      const TemporaryDirectory dir;
      write_safetensors(dir.path() / "model.safetensors", changed);
      EXPECT_THAT(message_of([&] { load(dir.path(), config); }),
                  HasSubstr(tensor_name + ": missing"));
      ++renamed;
    }
    EXPECT_GE(renamed, 3) << each;
  }
}

TEST_P(MoeGolden, TheOtherOrientationIsRefused) {
  const auto& [name, config] = GetParam();
  Tensors tensors = read_safetensors(golden_dir() / (name + "_fused") / "model.safetensors");
  const std::string down_proj = "model.layers.0.mlp.experts.down_proj";
  tensors.at(down_proj) = tensors.at(down_proj).transpose(1, 2).contiguous();
  const TemporaryDirectory dir;
  write_safetensors(dir.path() / "model.safetensors", tensors);
  EXPECT_THAT(message_of([&] { load(dir.path(), config); }),
              testing::AllOf(HasSubstr(down_proj), HasSubstr("expected shape")));
}

TEST_P(MoeGolden, IsCheckedWithoutBeingLoadedOnTheMetaDevice) {
  const auto& [name, config] = GetParam();
  Checkpoint checkpoint(golden_dir() / name);
  const Weights weights(checkpoint, at::kBFloat16, at::kMeta);
  const SparseMoe moe = load_moe(weights.at("model.layers.0.mlp"), config);
  EXPECT_TRUE(moe.experts.down_proj.is_meta());
  const SparseMoe loaded = load(golden_dir() / name, config, at::kBFloat16);
  EXPECT_EQ(moe.experts.down_proj.sizes(), loaded.experts.down_proj.sizes());
  int64_t stored = 0;
  for (const auto& [tensor_name, tensor] :
       read_safetensors(golden_dir() / name / "model.safetensors")) {
    if (tensor_name.find(".mlp.") != std::string::npos) stored += tensor.numel();
  }
  EXPECT_EQ(weights.nbytes(), stored * 2);
}

INSTANTIATE_TEST_SUITE_P(Families, MoeGolden, testing::ValuesIn(kGoldens), [](const auto& family) {
  return family.param.name;
});

}  // namespace
}  // namespace meshnet
