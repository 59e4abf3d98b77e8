#include "models/rope_parameters.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "models/json_reader.h"
#include "support.h"

namespace meshnet {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kHeadDim = 16;
constexpr int64_t kMaxPositions = 128;
constexpr RopeDefaults kPartial{.partial_rotary_factor = 0.25};
constexpr RopeDefaults kPerLayerType{.rope_theta = 1e6, .sliding_rope_theta = 1e4};

RopeParameters read(const json& config, const RopeDefaults& defaults = {}) {
  return read_rope_parameters(JsonReader(config, "config.json"), defaults, kHeadDim, kMaxPositions);
}

RopeParameters read_sliding(const json& config) {
  return read_sliding_rope_parameters(
             JsonReader(config, "config.json"), kPerLayerType, kHeadDim, kMaxPositions)
      .value();
}

std::string refusal_of(const json& config, const RopeDefaults& defaults = {}) {
  return message_of([&] { read(config, defaults); });
}

/// What reading says to the operator.
std::string warnings_of(const json& config) {
  testing::internal::CaptureStdout();
  read(config);
  return testing::internal::GetCapturedStdout();
}

json rope(const json& parameters) { return {{"rope_parameters", parameters}}; }

json with(json object, const json& changes) {
  object.merge_patch(changes);
  return object;
}

json llama3(const char* type_key = "rope_type") {
  return {{type_key, "llama3"},
          {"rope_theta", 500000.0},
          {"factor", 8.0},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 64}};
}

json yarn() {
  return {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}};
}

json longrope() {
  return {{"rope_type", "longrope"},
          {"short_factor", json(8, 1.5)},
          {"long_factor", {1, 2.0, 3, 4, 5, 6, 7, 8}},
          {"original_max_position_embeddings", 32}};
}

TEST(RopeParameters, ThetaInsideWinsAndADifferenceIsTold) {
  EXPECT_DOUBLE_EQ(read(json::object()).rope_theta, 10000.0);
  EXPECT_DOUBLE_EQ(read({{"rope_theta", 1e6}}).rope_theta, 1e6);
  json both = rope({{"rope_type", "default"}, {"rope_theta", 1e6}});
  EXPECT_DOUBLE_EQ(read(both).rope_theta, 1e6);
  both["rope_theta"] = 5e5;
  EXPECT_DOUBLE_EQ(read(both).rope_theta, 1e6);
  EXPECT_THAT(warnings_of(both),
              AllOf(HasSubstr("rope_theta"), HasSubstr("500000"), HasSubstr("1000000")));
  both["rope_theta"] = 1e6;
  EXPECT_THAT(warnings_of(both), IsEmpty());
}

TEST(RopeParameters, TypesUnderBothKeysAndBothNames) {
  for (const char* type_key : {"type", "rope_type"}) {
    json old_style = llama3(type_key);
    old_style.erase("rope_theta");
    for (const json& config :
         {rope(llama3(type_key)), json{{"rope_scaling", old_style}, {"rope_theta", 500000.0}}}) {
      const RopeParameters parameters = read(config);
      EXPECT_EQ(parameters.rope_type, "llama3");
      EXPECT_DOUBLE_EQ(parameters.rope_theta, 500000.0);
      EXPECT_DOUBLE_EQ(parameters.factor, 8.0);
      EXPECT_DOUBLE_EQ(parameters.low_freq_factor, 1.0);
      EXPECT_DOUBLE_EQ(parameters.high_freq_factor, 4.0);
      EXPECT_EQ(parameters.original_max_position_embeddings, 64);
    }
    for (const char* type : {"su", "mrope", "proportional", ""}) {
      EXPECT_THAT(refusal_of(rope({{type_key, type}, {"factor", 4.0}})),
                  AllOf(HasSubstr("rope_parameters"),
                        HasSubstr(type_key),
                        HasSubstr("got \"" + std::string(type) + "\""),
                        HasSubstr("default, linear, dynamic, llama3, yarn or longrope")));
    }
  }
}

TEST(RopeParameters, KeysOfImagesAndVideosAreNoMatterForText) {
  const json text = rope({{"rope_type", "default"}, {"rope_theta", 1e7}});
  const json wrapped = rope({{"rope_type", "default"},
                             {"rope_theta", 1e7},
                             {"mrope_section", {11, 11, 10}},
                             {"mrope_interleaved", true}});
  EXPECT_EQ(fingerprint_values(read(wrapped)), fingerprint_values(read(text)));
}

TEST(RopeParameters, DynamicIsThePlainOneUpToTheContextLimit) {
  const json dynamic = rope({{"rope_type", "dynamic"}, {"factor", 4.0}});
  EXPECT_EQ(fingerprint_values(read(dynamic)), fingerprint_values(read(json::object())));
  EXPECT_THAT(refusal_of(rope({{"rope_type", "dynamic"}})), HasSubstr("factor"));
}

TEST(RopeParameters, YarnHasTheDefaultsOfHuggingFace) {
  const RopeParameters parameters = read(rope(yarn()));
  EXPECT_DOUBLE_EQ(parameters.beta_fast, 32.0);
  EXPECT_DOUBLE_EQ(parameters.beta_slow, 1.0);
  EXPECT_TRUE(parameters.truncate);
  EXPECT_EQ(parameters.original_max_position_embeddings, 32);
  // The context limit where the original is not given; their ratio where the factor is not.
  json changed = with(yarn(), {{"original_max_position_embeddings", nullptr}});
  EXPECT_EQ(read(rope(changed)).original_max_position_embeddings, kMaxPositions);
  changed = with(yarn(), {{"factor", nullptr}});
  EXPECT_DOUBLE_EQ(read(rope(changed)).factor, 4.0);
}

TEST(RopeParameters, TheOriginalLengthAtTopLevelWins) {
  json config = rope(yarn());
  config["original_max_position_embeddings"] = 64;
  EXPECT_EQ(read(config).original_max_position_embeddings, 64);
}

TEST(RopeParameters, LongropeChoosesItsListByTheContextLimit) {
  EXPECT_THAT(read(rope(longrope())).ext_factors, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  const json never_long = with(longrope(), {{"original_max_position_embeddings", kMaxPositions}});
  EXPECT_THAT(read(rope(never_long)).ext_factors, Each(1.5));
}

TEST(RopeParameters, PartialRotaryInsideWinsOverTopLevelOverTheFamilys) {
  json config = json::object();
  EXPECT_DOUBLE_EQ(read(config, kPartial).partial_rotary_factor, 0.25);
  config["partial_rotary_factor"] = 0.5;
  EXPECT_DOUBLE_EQ(read(config, kPartial).partial_rotary_factor, 0.5);
  config["rope_parameters"] = {{"rope_theta", 1e6}, {"partial_rotary_factor", 0.75}};
  EXPECT_DOUBLE_EQ(read(config, kPartial).partial_rotary_factor, 0.75);
  EXPECT_EQ(rotary_dim(read(config, kPartial), kHeadDim), 12);
}

TEST(RopeParameters, PerLayerTypeInBothForms) {
  const json new_form =
      rope({{"full_attention", {{"rope_type", "linear"}, {"rope_theta", 2e6}, {"factor", 8.0}}},
            {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 3e4}}}});
  const json old_form{{"rope_theta", 2e6},
                      {"rope_scaling", {{"type", "linear"}, {"factor", 8.0}}},
                      {"rope_local_base_freq", 3e4}};
  for (const json& config : {new_form, old_form}) {
    EXPECT_EQ(read(config, kPerLayerType).rope_type, "linear");
    EXPECT_DOUBLE_EQ(read(config, kPerLayerType).rope_theta, 2e6);
    EXPECT_DOUBLE_EQ(read(config, kPerLayerType).factor, 8.0);
    EXPECT_EQ(read_sliding(config).rope_type, "default");
    EXPECT_DOUBLE_EQ(read_sliding(config).rope_theta, 3e4);
  }
  for (const json& nothing : {json::object(), rope({{"sliding_attention", nullptr}})}) {
    EXPECT_DOUBLE_EQ(read(nothing, kPerLayerType).rope_theta, 1e6);
    EXPECT_DOUBLE_EQ(read_sliding(nothing).rope_theta, 1e4);
  }
  EXPECT_FALSE(
      read_sliding_rope_parameters(JsonReader(old_form, "config.json"), {}, kHeadDim, kMaxPositions)
          .has_value());
}

TEST(RopeParameters, WhatWouldBeReadWrongIsRefused) {
  const std::vector<std::tuple<json, RopeDefaults, std::vector<std::string>>> cases{
      {rope({{"rope_theta", -1.0}}), {}, {"rope_theta", "-1"}},
      {rope({{"rope_type", "linear"}}), {}, {"factor", "nothing"}},
      {rope({{"rope_type", 5}}), {}, {"rope_type", "5"}},
      {rope(with(llama3(), {{"high_freq_factor", 1.0}})), {}, {"high_freq_factor", "1.0"}},
      {rope(with(llama3(), {{"original_max_position_embeddings", 0}})), {}, {"original", "0"}},
      {rope(with(yarn(), {{"factor", 0}})), {}, {"factor", "0"}},
      {rope(with(yarn(), {{"attention_factor", -1}})), {}, {"attention_factor", "-1"}},
      {rope(with(yarn(), {{"beta_fast", 0.5}})), {}, {"beta_fast", "beta_slow", "0.5"}},
      {rope(with(yarn(), {{"truncate", 1}})), {}, {"truncate", "true or false"}},
      {rope(with(yarn(), {{"mscale", "x"}, {"mscale_all_dim", 1}})), {}, {"mscale", "x"}},
      {rope(with(yarn(), {{"rope_theta", 1}})), {}, {"rope_theta", "above 1"}},
      {rope(with(longrope(), {{"long_factor", nullptr}})), {}, {"long_factor", "8", "nothing"}},
      {rope(with(longrope(), {{"long_factor", json(7, 1.0)}})), {}, {"long_factor", "8 numbers"}},
      {rope(with(longrope(), {{"short_factor", json(8, 0.0)}})), {}, {"short_factor", "above 0"}},
      {rope(with(longrope(), {{"short_factor", json(8, "a")}})), {}, {"short_factor", "above 0"}},
      {rope(with(longrope(), {{"original_max_position_embeddings", 1}})), {}, {"original", "1"}},
      {{{"partial_rotary_factor", 0.5}}, {}, {"partial_rotary_factor", "1.0", "0.5"}},
      {{{"partial_rotary_factor", 1.5}}, kPartial, {"partial_rotary_factor", "head_dim 16", "1.5"}},
      {{{"partial_rotary_factor", 0.2}}, kPartial, {"partial_rotary_factor", "even", "0.2"}},
      {{{"partial_rotary_factor", 0.05}}, kPartial, {"partial_rotary_factor", "0.05"}},
      {rope({{"full_attention", {{"rope_theta", 1e4}}}}), {}, {"full_attention", "model_type"}},
      {rope({{"rope_theta", 1e6}}), kPerLayerType, {"rope_parameters", "sliding_attention"}},
  };
  for (const auto& [config, defaults, parts] : cases) {
    const std::string message = refusal_of(config, defaults);
    EXPECT_THAT(message, HasSubstr("config.json"));
    for (const std::string& part : parts) EXPECT_THAT(message, HasSubstr(part)) << config;
  }
  json two = rope({{"rope_type", "linear"}, {"factor", 2.0}});
  two["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 4.0}};
  EXPECT_THAT(refusal_of(two), AllOf(HasSubstr("rope_parameters"), HasSubstr("rope_scaling")));
}

TEST(RopeParameters, FingerprintsSeeWhatDecidesTheArithmeticAndOnlyThat) {
  const json reference = fingerprint_values(read(rope(yarn())));
  for (const json& change : {json{{"rope_theta", 2e4}},
                             json{{"factor", 5.0}},
                             json{{"original_max_position_embeddings", 33}},
                             json{{"beta_fast", 31}},
                             json{{"beta_slow", 2}},
                             json{{"truncate", false}},
                             json{{"attention_factor", 1.0}},
                             json{{"mscale", 2.0}, {"mscale_all_dim", 1.0}},
                             json{{"rope_type", "linear"}}}) {
    EXPECT_NE(fingerprint_values(read(rope(with(yarn(), change)))), reference) << change;
  }
  for (const json& same : {json{{"rope_theta", 10000}},
                           json{{"beta_fast", 32}},
                           json{{"truncate", true}},
                           json{{"attention_factor", read(rope(yarn())).attention_factor}},
                           json{{"mscale", 2.0}},  // of no use without mscale_all_dim
                           json{{"low_freq_factor", 3.0}, {"long_factor", {1, 2}}}}) {
    EXPECT_EQ(fingerprint_values(read(rope(with(yarn(), same)))), reference) << same;
  }
  const json longrope_reference = fingerprint_values(read(rope(longrope())));
  EXPECT_EQ(fingerprint_values(read(rope(with(longrope(), {{"short_factor", json(8, 2.0)}})))),
            longrope_reference);
  EXPECT_NE(fingerprint_values(read(rope(with(longrope(), {{"long_factor", json(8, 2.0)}})))),
            longrope_reference);
  EXPECT_NE(fingerprint_values(read(json::object(), kPartial)),
            fingerprint_values(read(json::object())));
}

}  // namespace
}  // namespace meshnet
