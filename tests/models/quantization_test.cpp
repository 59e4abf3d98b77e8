// FP8 checkpoints, and every other quantisation refused by name.

#include "models/quantization.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "models/slice.h"
#include "models/weights.h"
#include "support.h"

namespace meshnet {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::optional<Fp8Blocks> read(const json& config) {
  return read_quantization(JsonReader(config, "config.json"));
}

json fp8(const json& changes = json::object()) {
  json method{{"quant_method", "fp8"},
              {"activation_scheme", "dynamic"},
              {"fmt", "e4m3"},
              {"modules_to_not_convert", {"lm_head"}},
              {"weight_block_size", {128, 128}}};
  method.update(changes);
  return {{"quantization_config", method}};
}

/// Repeats each scale over its block: what a weight [m, n] is multiplied by.
at::Tensor spread(const at::Tensor& scales, int64_t rows, int64_t columns, int64_t m, int64_t n) {
  return scales.to(at::kFloat)
      .repeat_interleave(rows, -2)
      .narrow(-2, 0, m)
      .repeat_interleave(columns, -1)
      .narrow(-1, 0, n);
}

at::Tensor random_fp8(at::IntArrayRef shape) {
  return (at::randn(shape) * 100).to(at::kFloat8_e4m3fn);
}

class Fp8 : public testing::Test {
 protected:
  Fp8() { at::manual_seed(1); }
  const std::filesystem::path& dir() const { return directory_.path(); }
  /// Tensor "w", and what goes with it, in a single file.
  void write(const Tensors& tensors) const {
    write_safetensors(dir() / "model.safetensors", tensors);
  }
  at::Tensor load(at::IntArrayRef shape,
                  std::optional<Fp8Blocks> blocks,
                  at::ScalarType dtype = at::kBFloat16,
                  at::Device device = at::kCPU) const {
    Checkpoint checkpoint(dir());
    return Weights(checkpoint, dtype, device, blocks).get("w", shape);
  }
  std::string refusal(at::IntArrayRef shape,
                      std::optional<Fp8Blocks> blocks,
                      at::Device device = at::kCPU) const {
    return message_of([&] { load(shape, blocks, at::kFloat, device); });
  }

 private:
  c10::InferenceMode no_gradients_;
  TemporaryDirectory directory_;
};

TEST(Quantization, ReadsTheBlocks) {
  const auto blocks = read(fp8({{"weight_block_size", {64, 32}}}));
  EXPECT_EQ(blocks->rows, 64);
  EXPECT_EQ(blocks->columns, 32);
  EXPECT_EQ(read(fp8({{"weight_block_size", nullptr}}))->rows, 0);
  EXPECT_EQ(read(fp8({{"activation_scheme", "static"}}))->rows, 128);
  EXPECT_EQ(read({{"quantization_config", {{"quant_method", "fp8"}}}})->columns, 128);
  EXPECT_EQ(read({{"text_config", fp8()}})->rows, 128);
  EXPECT_FALSE(read(json::object()));
  EXPECT_FALSE(read({{"quantization_config", nullptr}}));
}

TEST(Quantization, OtherMethodsAreRefusedByName) {
  for (const char* method : {"gptq",
                             "awq",
                             "bitsandbytes",
                             "compressed-tensors",
                             "mxfp4",
                             "fbgemm_fp8",
                             "modelopt",
                             "FP8"}) {
    const json config = fp8({{"quant_method", method}});
    EXPECT_THAT(message_of([&] { read(config); }),
                AllOf(HasSubstr("config.json: quantization_config: quant_method"),
                      HasSubstr("fp8"),
                      HasSubstr("got \"" + std::string(method) + "\"")));
    EXPECT_THAT(message_of([&] { read({{"text_config", config}}); }), HasSubstr(method));
  }
  EXPECT_THAT(message_of([&] { read({{"quantization_config", {{"bits", 4}}}}); }),
              AllOf(HasSubstr("quant_method"), HasSubstr("got nothing")));
}

TEST(Quantization, BlocksThatCannotBeAreRefused) {
  for (const json& size :
       std::vector<json>{128, {128}, {128, 0}, {-1, 128}, {1.5, 2}, {128, 128, 1}, {1, 1 << 30}}) {
    EXPECT_THAT(message_of([&] { read(fp8({{"weight_block_size", size}})); }),
                AllOf(HasSubstr("weight_block_size"), HasSubstr(size.dump())));
  }
}

TEST(Quantization, OneScalePerBlockOrMatrix) {
  EXPECT_THAT(scale_shape({128, 128}, {256, 128}), ElementsAre(2, 1));
  EXPECT_THAT(scale_shape({128, 64}, {257, 1}), ElementsAre(3, 1));
  EXPECT_THAT(scale_shape({128, 128}, {8, 256, 130}), ElementsAre(8, 2, 2));
  EXPECT_THAT(scale_shape({}, {256, 128}), ElementsAre());
  EXPECT_THAT(scale_shape({}, {8, 256, 128}), ElementsAre(8, 1, 1));
}

TEST_F(Fp8, EveryWeightIsItsValueTimesTheScaleOfItsBlock) {
  // Every value that float8_e4m3fn has, but the two that are no numbers, in every place of a block.
  const at::Tensor numbers =
      at::arange(256).masked_fill(at::arange(256).bitwise_and(127).eq(127), 0);
  const at::Tensor weight =
      numbers.repeat({40}).view({80, 128}).to(at::kByte).view(at::kFloat8_e4m3fn);
  const at::Tensor scales = at::rand({20, 4}) * 1e-3;
  write({{"w", weight}, {"w_scale_inv", scales}});
  const at::Tensor expected = weight.to(at::kFloat) * spread(scales, 4, 40, 80, 128);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    EXPECT_TRUE(at::equal(load({80, 128}, Fp8Blocks{4, 40}, dtype), expected.to(dtype))) << dtype;
  }
}

TEST_F(Fp8, SizesThatAreNoMultipleOfTheBlock) {
  struct Case {
    int64_t m, n;
    Fp8Blocks blocks;
  };
  for (const auto& [m, n, blocks] : std::vector<Case>{{1, 1, {128, 128}},
                                                      {129, 127, {128, 128}},
                                                      {300, 257, {128, 128}},
                                                      {384, 1111, {128, 128}},  // several buffers
                                                      {2000, 700, {1, 128}},
                                                      {33, 70000, {32, 128}},  // a row a buffer
                                                      {300, 40, {7, 3}}}) {
    const at::Tensor weight = random_fp8({m, n});
    const at::Tensor scales =
        at::rand(scale_shape(blocks, {m, n})).add_(0.5).to(at::kBFloat16);  // as Qwen's
    write({{"a", at::ones({1}, at::kHalf)}, {"w", weight}, {"w_scale_inv", scales}});
    const at::Tensor factors = spread(scales, blocks.rows, blocks.columns, m, n);
    EXPECT_TRUE(
        at::equal(load({m, n}, blocks), (weight.to(at::kFloat) * factors).to(at::kBFloat16)))
        << m << " x " << n;
  }
}

TEST_F(Fp8, MatricesOfExpertsInOneTensor) {
  const at::Tensor weight = random_fp8({5, 200, 130});
  const at::Tensor scales = at::rand({5, 2, 2});
  write({{"w", weight}, {"w_scale_inv", scales}});
  EXPECT_TRUE(at::equal(load({5, 200, 130}, Fp8Blocks{128, 128}, at::kFloat),
                        weight.to(at::kFloat) * spread(scales, 128, 128, 200, 130)));
}

TEST_F(Fp8, OneScaleForAWholeMatrix) {
  const at::Tensor weight = random_fp8({70, 50});
  write({{"w", weight}, {"w_scale_inv", at::full({}, 0.3F)}});
  EXPECT_TRUE(at::equal(load({70, 50}, Fp8Blocks{}, at::kFloat), weight.to(at::kFloat) * 0.3F));
  const at::Tensor experts = random_fp8({3, 20, 10});
  const at::Tensor scales = at::rand({3, 1, 1});
  write({{"w", experts}, {"w_scale_inv", scales}});
  EXPECT_TRUE(
      at::equal(load({3, 20, 10}, Fp8Blocks{}, at::kFloat), experts.to(at::kFloat) * scales));
}

TEST_F(Fp8, WithoutItsScaleAWeightIsRefused) {
  const Fp8Blocks blocks{128, 128};
  write({{"w", random_fp8({4, 4})}});
  EXPECT_THAT(refusal({4, 4}, blocks),
              AllOf(HasSubstr("model.safetensors"), HasSubstr("w_scale_inv: missing")));
  EXPECT_THAT(refusal({4, 4}, blocks, at::kMeta), HasSubstr("w_scale_inv: missing"));
}

TEST_F(Fp8, AScaleOfAnotherShapeOrDtypeIsRefused) {
  const Fp8Blocks blocks{128, 128};
  for (const at::Device device : {at::kCPU, at::kMeta}) {
    write({{"w", random_fp8({256, 130})}, {"w_scale_inv", at::ones({2, 1})}});
    EXPECT_THAT(refusal({256, 130}, blocks, device),
                HasSubstr("w_scale_inv: expected shape [2, 2], got [2, 1]"));
    EXPECT_THAT(refusal({256, 130}, Fp8Blocks{}, device),
                HasSubstr("w_scale_inv: expected shape [], got [2, 1]"));
    write({{"w", random_fp8({4, 4})}, {"w_scale_inv", at::ones({1, 1}, at::kLong)}});
    EXPECT_THAT(refusal({4, 4}, blocks, device),
                AllOf(HasSubstr("w_scale_inv"), HasSubstr("got I64")));
  }
}

TEST_F(Fp8, WhatIsNoMatrixOrNotFp8IsAsInAPlainCheckpoint) {
  const Fp8Blocks blocks{128, 128};
  write({{"w", random_fp8({4})}, {"w_scale_inv", at::ones({1})}});
  EXPECT_THAT(refusal({4}, blocks), AllOf(HasSubstr("w: "), HasSubstr("got F8_E4M3")));
  write({{"w", at::ones({4, 4}).to(at::kChar)}});
  EXPECT_THAT(refusal({4, 4}, blocks), AllOf(HasSubstr("w: "), HasSubstr("got I8")));
  const at::Tensor plain = at::randn({4, 4});  // a module that was not converted
  write({{"w", plain}});
  EXPECT_TRUE(at::equal(load({4, 4}, blocks, at::kFloat), plain));
}

/// The tiny model, its projections in FP8 as a release has them, and the same model with the values
/// that these stand for. 88 and 64 are no multiples of 48.
class Fp8Model : public testing::Test {
 protected:
  static constexpr int64_t kBlock = 48;

  void make(const std::function<void(Tensors&)>& change = [](Tensors&) {}) const {
    at::manual_seed(1);
    copy_model("dense", fp8_.path(), [&](json& config, Tensors& tensors) {
      config.update(fp8({{"weight_block_size", {kBlock, kBlock}}}));
      for (auto& [name, tensor] : Tensors(tensors)) {
        if (name.ends_with("_proj.weight")) quantize(tensors, name);
      }
      change(tensors);
    });
    copy_model("dense", plain_.path(), [&](json&, Tensors& tensors) {
      const Tensors stored = read_safetensors(fp8_.path() / "model.safetensors");
      for (auto& [name, tensor] : tensors) {
        const auto scale = stored.find(name + "_scale_inv");
        if (scale == stored.end() || !name.ends_with("_proj.weight")) continue;
        tensor = stored.at(name).to(at::kFloat) *
                 spread(scale->second, kBlock, kBlock, tensor.size(0), tensor.size(1));
      }
    });
  }
  /// Scales of the size that real ones have: unscaled weights are hundreds of times too large.
  static void quantize(Tensors& tensors, const std::string& name) {
    const at::Tensor weight = tensors.at(name);
    const auto shape = scale_shape({kBlock, kBlock}, weight.sizes().vec());
    const at::Tensor scales = weight.abs().max() / 448 * (1 + at::rand(shape));
    const at::Tensor factors = spread(scales, kBlock, kBlock, weight.size(0), weight.size(1));
    tensors[name] = (weight / factors).to(at::kFloat8_e4m3fn);
    tensors[name + "_scale_inv"] = scales;
  }
  std::string refusal() const {
    return message_of([&] { load_whole(fp8_.path()); });
  }

  TemporaryDirectory fp8_;
  TemporaryDirectory plain_;

 private:
  c10::InferenceMode no_gradients_;
};

TEST_F(Fp8Model, RunsAsTheModelOfItsDequantisedWeights) {
  make();
  const at::Tensor input_ids = tiny_golden("dense").at("input_ids");
  const ModelSlice quantized = load_whole(fp8_.path());
  const ModelSlice plain = load_whole(plain_.path());
  EXPECT_TRUE(at::equal(run_route({&quantized}, input_ids), run_route({&plain}, input_ids)));
  EXPECT_EQ(quantized.nbytes(), plain.nbytes());
}

TEST_F(Fp8Model, ScalesThatNothingUsesAreAnError) {
  make([](Tensors& tensors) {
    tensors["model.layers.1.input_layernorm.weight_scale_inv"] = at::ones({1, 1});
  });
  EXPECT_THAT(refusal(), HasSubstr("model.layers.1.input_layernorm.weight_scale_inv"));
}

TEST_F(Fp8Model, ScalesOfActivationsPlayNoPart) {  // activation_scheme "static"
  make([](Tensors& tensors) {
    tensors["model.layers.1.mlp.up_proj.activation_scale"] = at::full({}, 3.0F);
  });
  load_whole(fp8_.path());
}

TEST_F(Fp8Model, AMissingScaleIsNamed) {
  make([](Tensors& tensors) { tensors.erase("model.layers.2.mlp.up_proj.weight_scale_inv"); });
  EXPECT_THAT(refusal(), HasSubstr("model.layers.2.mlp.up_proj.weight_scale_inv: missing"));
}

}  // namespace
}  // namespace meshnet
