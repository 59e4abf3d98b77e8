// What a slice loads, leaves alone and refuses.

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
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kLayers = 4;
constexpr const char* kIndex = "model.safetensors.index.json";

class Loading : public testing::Test {
 protected:
  const std::filesystem::path& dir() const { return directory_.path(); }
  /// The tiny model `name`, changed, in dir().
  void make(const std::string& name, const std::function<void(json&, Tensors&)>& change) {
    copy_model(name, dir(), change);
  }
  std::string refusal(LayerRange layers, at::ScalarType dtype = at::kFloat) const {
    return message_of([&] { load_slice(dir(), layers, dtype); });
  }
  /// What loading says to the operator.
  std::string notices(LayerRange layers) const {
    testing::internal::CaptureStdout();
    load_slice(dir(), layers);
    return testing::internal::GetCapturedStdout();
  }
  at::Tensor logits_of(const std::filesystem::path& model_dir) const {
    const ModelSlice whole = load_whole(model_dir);
    return run_route({&whole}, input_ids_);
  }

 private:
  c10::InferenceMode no_gradients_;
  TemporaryDirectory directory_;
  at::Tensor input_ids_ = tiny_golden("dense").at("input_ids");
};

void nothing(json&, Tensors&) {}

/// Splits dir's single file as transformers shards: one file per layer, one for the rest.
void shard(const std::filesystem::path& dir) {
  std::map<std::string, Tensors> files;
  json weight_map;
  for (const auto& [name, tensor] : read_safetensors(dir / "model.safetensors")) {
    const std::string file = name.starts_with("model.layers.")
                                 ? "layer" + name.substr(13, 1) + ".safetensors"
                                 : "rest.safetensors";
    files[file].emplace(name, tensor);
    weight_map[name] = file;
  }
  for (const auto& [file, tensors] : files) write_safetensors(dir / file, tensors);
  std::filesystem::remove(dir / "model.safetensors");
  write_text(dir / kIndex, json{{"metadata", json::object()}, {"weight_map", weight_map}}.dump());
}

TEST_F(Loading, AMissingTensorOfAnOwnedLayerIsNamed) {
  make("dense",
       [](json&, Tensors& tensors) { tensors.erase("model.layers.2.mlp.up_proj.weight"); });
  EXPECT_THAT(refusal({2, 4}),
              AllOf(HasSubstr("model.layers.2.mlp.up_proj.weight"),
                    HasSubstr("missing"),
                    HasSubstr(dir().string())));
  load_slice(dir(), {0, 2});  // no business of this node
}

TEST_F(Loading, ARenamedTensorIsNamed) {
  make("dense", [](json&, Tensors& tensors) {
    auto node = tensors.extract("model.layers.1.self_attn.o_proj.weight");
    node.key() = "model.layers.1.self_attn.out_proj.weight";
    tensors.insert(std::move(node));
  });
  EXPECT_THAT(refusal({0, kLayers}), HasSubstr("model.layers.1.self_attn.o_proj.weight"));
}

TEST_F(Loading, AnExtraTensorOfAnOwnedLayerIsNamed) {
  make("dense", [](json&, Tensors& tensors) {
    tensors["model.layers.3.self_attn.q_proj.bias"] = at::zeros({128});
  });
  EXPECT_THAT(refusal({2, 4}), HasSubstr("model.layers.3.self_attn.q_proj.bias"));
  EXPECT_THAT(notices({0, 3}), IsEmpty());
}

TEST_F(Loading, BiasesThatTheConfigPromisesMustBeThere) {
  make("dense", [](json& config, Tensors&) { config["attention_bias"] = true; });
  EXPECT_THAT(refusal({1, 2}), HasSubstr("model.layers.1.self_attn.q_proj.bias"));
  make("dense", [](json& config, Tensors&) { config["mlp_bias"] = true; });
  EXPECT_THAT(refusal({1, 2}), HasSubstr("model.layers.1.mlp.gate_proj.bias"));
}

TEST_F(Loading, AMisshapenTensorIsNamedWithExpectedAndGot) {
  make("dense", [](json&, Tensors& tensors) {
    tensors["model.layers.0.self_attn.o_proj.weight"] = at::zeros({64, 64});
    tensors["model.layers.1.input_layernorm.weight"] = at::zeros({1, 64});
    tensors["lm_head.weight"] = at::zeros({200, 64});
  });
  EXPECT_THAT(refusal({0, 1}),
              AllOf(HasSubstr("model.safetensors"),
                    HasSubstr("model.layers.0.self_attn.o_proj.weight"),
                    HasSubstr("expected shape [64, 128], got [64, 64]")));
  EXPECT_THAT(refusal({1, 2}), HasSubstr("expected shape [64], got [1, 64]"));
  EXPECT_THAT(refusal({3, 4}), AllOf(HasSubstr("lm_head.weight"), HasSubstr("got [200, 64]")));
}

TEST_F(Loading, HeadDimOfTheConfigDecidesTheShapes) {  // 64 / 4 = 16 would not fit the file
  make("dense", [](json& config, Tensors&) { config.erase("head_dim"); });
  EXPECT_THAT(refusal({0, 1}), HasSubstr("q_proj.weight: expected shape [64, 64], got [128, 64]"));
}

TEST_F(Loading, WhatBelongsToNoLayerIsIgnoredWithOneNotice) {
  make("dense", [](json&, Tensors& tensors) {
    tensors["mtp.fc.weight"] = at::zeros({4});
    tensors["model.layers.4.mlp.up_proj.weight"] = at::zeros({4});
    tensors["model.layers.oops.weight"] = at::zeros({4});
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = at::zeros({16});  // old checkpoints
  });
  const std::string said = notices({0, kLayers});
  EXPECT_THAT(said, AllOf(HasSubstr("3 tensors"), HasSubstr("mtp.fc.weight")));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
  EXPECT_TRUE(at::equal(logits_of(dir()), logits_of(tiny_model("dense"))));
  EXPECT_THAT(notices({1, 2}), HasSubstr("3 tensors"));
}

TEST_F(Loading, AnOrdinaryModelIsLoadedInSilence) {
  make("dense", nothing);
  for (const LayerRange layers : {LayerRange{0, 1}, {1, 2}, {3, 4}, {0, 4}}) {
    EXPECT_THAT(notices(layers), IsEmpty()) << to_string(layers);
  }
}

TEST_F(Loading, ATiedModelNeedsNoLmHeadAnywhere) {
  make("tied", [](json&, Tensors& tensors) { ASSERT_FALSE(tensors.contains("lm_head.weight")); });
  const int64_t embedding = int64_t{199} * 64 * 4;
  const ModelSlice whole = load_whole(dir());
  const ModelSlice first = load_slice(dir(), {0, 2});
  const ModelSlice last = load_slice(dir(), {2, 4});
  // Both ends hold the embedding, the whole model holds it once.
  EXPECT_EQ(first.nbytes() + last.nbytes(), whole.nbytes() + embedding);
  EXPECT_EQ(load_slice(dir(), {1, 2}).nbytes(), load_slice(dir(), {2, 3}).nbytes());
}

TEST_F(Loading, AnLmHeadBesideTiedEmbeddingsIsIgnoredWithANotice) {
  make("tied", [](json&, Tensors& tensors) { tensors["lm_head.weight"] = at::zeros({199, 64}); });
  EXPECT_THAT(notices({2, 4}), AllOf(HasSubstr("1 tensor is"), HasSubstr("lm_head.weight")));
  EXPECT_TRUE(at::equal(logits_of(dir()), logits_of(tiny_model("tied"))));
}

TEST_F(Loading, AnUntiedModelWithoutLmHeadIsRefusedByTheLastNodeOnly) {
  make("tied", [](json& config, Tensors&) { config["tie_word_embeddings"] = false; });
  EXPECT_THAT(refusal({2, 4}), AllOf(HasSubstr("lm_head.weight"), HasSubstr("missing")));
  load_slice(dir(), {0, 2});
  load_slice(dir(), {1, 3});
}

TEST_F(Loading, AShardedModelIsTheSingleFile) {
  EXPECT_TRUE(std::filesystem::exists(tiny_model("dense_sharded") / kIndex));
  EXPECT_TRUE(at::equal(logits_of(tiny_model("dense_sharded")), logits_of(tiny_model("dense"))));
}

TEST_F(Loading, FilesThatTheIndexDoesNotListAreNotThere) {
  make("dense", nothing);
  shard(dir());
  Tensors stray;
  for (const auto& [name, tensor] : read_safetensors(dir() / "layer0.safetensors")) {
    stray[name] = at::ones_like(tensor);
  }
  write_safetensors(dir() / "extra.safetensors", stray);
  write_safetensors(dir() / "model.safetensors", stray);
  EXPECT_TRUE(at::equal(logits_of(dir()), logits_of(tiny_model("dense"))));
}

TEST_F(Loading, ANodeOpensOnlyFilesThatHoldItsTensors) {
  make("dense", nothing);
  shard(dir());
  std::filesystem::remove(dir() / "layer2.safetensors");
  write_text(dir() / "layer3.safetensors", "no tensors here");
  load_slice(dir(), {0, 2});
  EXPECT_THAT(refusal({1, 3}),
              AllOf(HasSubstr("layer2.safetensors"), HasSubstr("missing"), HasSubstr(kIndex)));
  EXPECT_THAT(refusal({3, 4}), HasSubstr("layer3.safetensors"));
}

TEST_F(Loading, AStaleIndexIsNamed) {
  make("dense", nothing);
  shard(dir());
  json index = read_json(dir() / kIndex);
  index["weight_map"]["model.layers.1.input_layernorm.weight"] = "layer0.safetensors";
  write_text(dir() / kIndex, index.dump());
  EXPECT_THAT(refusal({1, 2}),
              AllOf(HasSubstr("layer0.safetensors"),
                    HasSubstr("model.layers.1.input_layernorm.weight"),
                    HasSubstr(kIndex)));
}

TEST_F(Loading, AnIndexThatPointsElsewhereIsRefused) {
  make("dense", nothing);
  for (const char* file : {"../x.safetensors", "/etc/passwd", "model.bin", ""}) {
    write_text(dir() / kIndex, json{{"weight_map", {{"model.norm.weight", file}}}}.dump());
    EXPECT_THAT(refusal({0, 1}), AllOf(HasSubstr(kIndex), HasSubstr("model.norm.weight"))) << file;
  }
  for (const char* index :
       {"", "[]", "{}", R"({"weight_map": []})", R"({"weight_map": {"a": 1}})"}) {
    write_text(dir() / kIndex, index);
    EXPECT_THAT(refusal({0, 1}), HasSubstr(kIndex)) << index;
  }
}

TEST_F(Loading, ADirectoryWithoutSafetensorsIsNamed) {
  make("dense", nothing);
  std::filesystem::remove(dir() / "model.safetensors");
  EXPECT_THAT(refusal({0, 1}), AllOf(HasSubstr(dir().string()), HasSubstr("model.safetensors")));
}

TEST_F(Loading, ADtypeThatIsNoWeightIsNamed) {  // float8 in a model that is not quantised
  make("dense", [](json&, Tensors& tensors) {
    at::Tensor& weight = tensors["model.layers.1.mlp.down_proj.weight"];
    weight = weight.to(at::kFloat8_e4m3fn);
    tensors["model.layers.0.input_layernorm.weight"] = at::ones({64}, at::kLong);
  });
  EXPECT_THAT(refusal({1, 2}),
              AllOf(HasSubstr("model.layers.1.mlp.down_proj.weight"), HasSubstr("got F8_E4M3")));
  EXPECT_THAT(refusal({0, 1}), HasSubstr("got I64"));
}

TEST_F(Loading, ScalesOfAQuantisedLayerAreNeverJustSkipped) {
  make("dense", [](json&, Tensors& tensors) {
    tensors["model.layers.1.mlp.down_proj.weight_scale_inv"] = at::ones({1, 1});
  });
  EXPECT_THAT(refusal({1, 2}), HasSubstr("model.layers.1.mlp.down_proj.weight_scale_inv"));
}

TEST_F(Loading, EveryStoredDtypeBecomesEveryComputeDtype) {
  for (const auto stored : {at::kFloat, at::kBFloat16, at::kHalf}) {
    make("dense", [&](json&, Tensors& tensors) {
      for (auto& [name, tensor] : tensors) tensor = tensor.to(stored);
    });
    Checkpoint checkpoint(dir());
    const Tensors tensors = read_safetensors(dir() / "model.safetensors");
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const Weights weights = Weights(checkpoint, dtype, at::kCPU).at("model").at("layers.1");
      EXPECT_TRUE(at::equal(weights.get("mlp.up_proj.weight", {88, 64}),
                            tensors.at("model.layers.1.mlp.up_proj.weight").to(dtype)))
          << c10::toString(stored) << " to " << c10::toString(dtype);
    }
  }
}

TEST_F(Loading, TensorsLargerThanAPieceAndAtAnyAlignmentArriveWhole) {
  const at::Tensor large = at::arange(3000001, at::kFloat).view({1, -1});  // 12 MB
  write_safetensors(dir() / "model.safetensors",
                    {{"a", at::ones({1}, at::kHalf)}, {"b", large}});  // 2 bytes off
  Checkpoint checkpoint(dir());
  EXPECT_TRUE(at::equal(Weights(checkpoint, at::kFloat, at::kCPU).get("b", {1, 3000001}), large));
  EXPECT_TRUE(at::equal(Weights(checkpoint, at::kBFloat16, at::kCPU).get("b", {1, 3000001}),
                        large.to(at::kBFloat16)));
}

TEST_F(Loading, TheMetaDeviceChecksEverythingAndHoldsNothing) {
  make("dense", nothing);
  const auto load_meta = [&](LayerRange layers) {
    return ModelSlice(dir(), read_config(dir()), layers, at::kFloat, at::kMeta).nbytes();
  };
  EXPECT_EQ(load_meta({0, 4}), load_whole(dir()).nbytes());
  make("dense", [](json&, Tensors& tensors) { tensors.erase("model.norm.weight"); });
  EXPECT_THAT(message_of([&] { load_meta({3, 4}); }), HasSubstr("model.norm.weight"));
}

TEST_F(Loading, RangesDtypesAndDevicesThatCannotBeAreRefused) {
  make("dense", nothing);
  for (const LayerRange layers : {LayerRange{-1, 2}, {0, 5}, {2, 2}, {3, 1}}) {
    EXPECT_THAT(refusal(layers), AllOf(HasSubstr("layers 0-3"), HasSubstr(to_string(layers))));
  }
  EXPECT_THAT(refusal({0, 1}, at::kDouble), AllOf(HasSubstr("float32"), HasSubstr("Double")));
  const at::Device absent(at::kCUDA, 99);
  EXPECT_THAT(
      message_of([&] { ModelSlice(dir(), read_config(dir()), {0, 1}, at::kFloat, absent); }),
      AllOf(HasSubstr("cuda:99"), HasSubstr("GPU")));
}

}  // namespace
}  // namespace meshnet
