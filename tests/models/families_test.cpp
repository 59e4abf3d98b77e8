// What config.json and checkpoint of each family may say, and what is refused by name.

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "models/registry.h"
#include "support.h"

namespace meshnet {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

/// The configuration of a tiny model, changed; a change to null removes the key.
class Families : public testing::Test {
 protected:
  ModelConfig read(const std::string& name, const json& changes) const {
    json config = read_json(tiny_model(name) / "config.json");
    if (!changes.is_null()) config.merge_patch(changes);  // {} is null
    write_text(directory_.path() / "config.json", config.dump());
    return read_config(directory_.path());
  }
  std::string refusal(const std::string& name, const json& changes) const {
    return message_of([&] { read(name, changes); });
  }
  const std::filesystem::path& dir() const { return directory_.path(); }

 private:
  c10::InferenceMode no_gradients_;
  TemporaryDirectory directory_;
};

constexpr auto kFull = LayerType::kFull;
constexpr auto kSliding = LayerType::kSliding;
constexpr auto kLinear = LayerType::kLinear;

TEST_F(Families, LayersSlideWhereTheFamilySaysSo) {
  EXPECT_THAT(read("mistral_window", {}).layer_types, Each(kSliding));
  EXPECT_THAT(read("mistral", {}).layer_types, Each(kFull));
  EXPECT_EQ(read("mistral", {}).sliding_window, 0);
  const auto window = [&](const json& changes) { return read("qwen2_window", changes); };
  EXPECT_THAT(window({}).layer_types, ElementsAre(kFull, kFull, kSliding, kSliding));
  EXPECT_EQ(window({}).sliding_window, 7);
  EXPECT_THAT(window({{"layer_types", nullptr}, {"max_window_layers", 3}}).layer_types,
              ElementsAre(kFull, kFull, kFull, kSliding));
  EXPECT_THAT(window({{"use_sliding_window", false}}).layer_types, Each(kFull));
}

TEST_F(Families, WithoutLayerTypesThePatternDecides) {
  const ModelConfig gemma =
      read("gemma3", {{"layer_types", nullptr}, {"sliding_window_pattern", 3}});
  EXPECT_THAT(gemma.layer_types,
              ElementsAre(kSliding, kSliding, kFull, kSliding, kSliding, kFull, kSliding));
  EXPECT_THAT(read("gemma3", {{"layer_types", nullptr}}).layer_types,  // every sixth
              ElementsAre(kSliding, kSliding, kSliding, kSliding, kSliding, kFull, kSliding));
  const ModelConfig hybrid =
      read("qwen3_5", {{"layer_types", nullptr}, {"full_attention_interval", 3}});
  EXPECT_THAT(hybrid.layer_types,
              ElementsAre(kLinear, kLinear, kFull, kLinear, kLinear, kFull, kLinear, kLinear));
}

TEST_F(Families, DefaultsAreThoseOfTheConfigurationClasses) {
  EXPECT_EQ(read("qwen3", {{"head_dim", nullptr}}).head_dim, 128);
  EXPECT_EQ(read("qwen3_moe", {{"head_dim", nullptr}}).head_dim, 16);  // 64 / 4
  EXPECT_EQ(read("gemma3", {{"head_dim", nullptr}}).head_dim, 256);
  EXPECT_EQ(read("qwen3_5", {{"head_dim", nullptr}}).head_dim, 256);
  EXPECT_TRUE(read("gemma3", {{"tie_word_embeddings", nullptr}}).tie_word_embeddings);
  EXPECT_FALSE(read("qwen3", {{"tie_word_embeddings", nullptr}}).tie_word_embeddings);
  EXPECT_EQ(read("qwen3_5_moe", {{"intermediate_size", nullptr}}).intermediate_size, 0);
}

TEST_F(Families, WhatCannotRunRightIsRefusedByName) {
  EXPECT_THAT(refusal("gemma3", {{"attn_logit_softcapping", 50.0}}),
              AllOf(HasSubstr("attn_logit_softcapping"), HasSubstr("got 50.0")));
  EXPECT_THAT(refusal("gemma3", {{"final_logit_softcapping", 30.0}}),
              HasSubstr("final_logit_softcapping"));
  EXPECT_THAT(refusal("gemma3", {{"use_bidirectional_attention", true}}),
              HasSubstr("use_bidirectional_attention"));
  EXPECT_THAT(refusal("gemma3", {{"hidden_activation", "relu"}}), HasSubstr("hidden_activation"));
  EXPECT_THAT(refusal("qwen3_5", {{"hidden_act", "gelu"}}),
              AllOf(HasSubstr("hidden_act"), HasSubstr("qwen3_5_text")));
  EXPECT_THAT(refusal("qwen3",
                      {{"use_sliding_window", true},
                       {"sliding_window", 8},
                       {"layer_types", json::array({"full_attention"})}}),
              AllOf(HasSubstr("layer_types"), HasSubstr("4 layers")));
  EXPECT_THAT(refusal("gemma3",
                      {{"layer_types",
                        json::array({"chunked_attention",
                                     "full_attention",
                                     "full_attention",
                                     "full_attention",
                                     "full_attention",
                                     "full_attention",
                                     "full_attention"})}}),
              AllOf(HasSubstr("layer_types"), HasSubstr("chunked_attention")));
  EXPECT_THAT(refusal("qwen3_moe", {{"num_experts_per_tok", 9}}),
              AllOf(HasSubstr("num_experts_per_tok"), HasSubstr("from 1 to 8")));
  EXPECT_THAT(refusal("qwen3_moe", {{"num_local_experts", nullptr}}),
              HasSubstr("num_local_experts"));
  EXPECT_THAT(refusal("qwen3_next", {{"linear_num_value_heads", 3}}),
              AllOf(HasSubstr("linear_num_value_heads"), HasSubstr("multiple")));
  EXPECT_THAT(refusal("qwen3_5", {{"model_type", "qwen4"}}),
              AllOf(HasSubstr("\"qwen4\""), HasSubstr("qwen3_next")));
}

TEST_F(Families, TheFingerprintSeesWhatDecidesTheArithmetic) {
  const auto print = [&](const std::string& name, const json& changes) {
    return fingerprint(read(name, changes));
  };
  EXPECT_NE(print("mistral_window", {}), print("mistral_window", {{"sliding_window", 9}}));
  EXPECT_NE(print("gemma3", {}), print("gemma3", {{"query_pre_attn_scalar", 32}}));
  EXPECT_NE(print("qwen3_moe", {}), print("qwen3_moe", {{"norm_topk_prob", false}}));
  EXPECT_NE(print("qwen3_moe", {}), print("qwen3_moe", {{"num_experts_per_tok", 2}}));
  EXPECT_NE(print("qwen3_5", {}), print("qwen3_5", {{"linear_conv_kernel_dim", 3}}));
  EXPECT_NE(print("qwen3_5", {}),
            print("qwen3_5", {{"layer_types", nullptr}, {"full_attention_interval", 2}}));
  // The same model, written as its hub files have it and as transformers 5 saves it.
  EXPECT_EQ(print("qwen3_5", {}), print("qwen3_5", {{"layer_types", nullptr}}));
  EXPECT_EQ(print("qwen3_moe", {}),
            print("qwen3_moe", {{"num_local_experts", nullptr}, {"num_experts", 8}}));
  EXPECT_EQ(print("gemma3", {}), fingerprint(read_config(tiny_model("gemma3_multimodal"))));
}

TEST_F(Families, TensorsOfOtherPartsAreIgnoredWithOneNotice) {
  copy_model("qwen3_5_moe_multimodal", dir(), [](json&, Tensors& tensors) {
    tensors["mtp.layers.0.input_layernorm.weight"] = at::zeros({64});
    tensors["model.language_model.layers.8.input_layernorm.weight"] = at::zeros({64});
  });
  testing::internal::CaptureStdout();
  load_slice(dir(), {0, 2});
  const std::string said = testing::internal::GetCapturedStdout();
  EXPECT_THAT(said, HasSubstr("are no part of the model and ignored"));
  EXPECT_THAT(said.substr(said.find('\n') + 1), Not(HasSubstr("ignored")));
}

TEST_F(Families, ARenamedTensorOfAnExpertIsNamed) {
  copy_model("qwen3_moe", dir(), [](json&, Tensors& tensors) {
    auto node = tensors.extract("model.layers.0.mlp.experts.5.up_proj.weight");
    ASSERT_FALSE(node.empty());
    node.key() = "model.layers.0.mlp.experts.5.up.weight";
    tensors.insert(std::move(node));
  });
  EXPECT_THAT(message_of([&] { load_slice(dir(), {0, 1}); }),
              HasSubstr("model.layers.0.mlp.experts.5.up_proj.weight: missing"));
  load_slice(dir(), {1, 4});  // who does not need it does not mind
}

}  // namespace
}  // namespace meshnet
