#include "models/config.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "support.h"

namespace meshnet {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

json llama() {
  return {{"model_type", "llama"},
          {"vocab_size", 100},
          {"hidden_size", 64},
          {"intermediate_size", 96},
          {"num_hidden_layers", 4},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"max_position_embeddings", 128},
          {"rms_norm_eps", 1e-5},
          {"hidden_act", "silu"},
          {"torch_dtype", "bfloat16"}};
}

/// llama() with `changes`; a change to null removes the key.
ModelConfig read_changed(const json& changes = json::object()) {
  const TemporaryDirectory dir;
  json config = llama();
  config.merge_patch(changes);
  write_text(dir.path() / "config.json", config.dump());
  return read_config(dir.path());
}

std::string refusal_of(const json& changes) {
  return message_of([&] { read_changed(changes); });
}

/// What read_config says to the operator about `changes`.
std::string warnings_of(const json& changes) {
  testing::internal::CaptureStdout();
  read_changed(changes);
  return testing::internal::GetCapturedStdout();
}

json rope(const json& parameters) { return {{"rope_parameters", parameters}}; }

TEST(Config, ReadsTheFieldsOfHuggingFace) {
  const ModelConfig config = read_changed({{"tie_word_embeddings", true}, {"eos_token_id", 2}});
  EXPECT_EQ(config.model_type, "llama");
  EXPECT_EQ(config.torch_dtype, "bfloat16");
  EXPECT_EQ(config.vocab_size, 100);
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.intermediate_size, 96);
  EXPECT_EQ(config.num_hidden_layers, 4);
  EXPECT_EQ(config.num_attention_heads, 4);
  EXPECT_EQ(config.num_key_value_heads, 2);
  EXPECT_EQ(config.max_position_embeddings, 128);
  EXPECT_DOUBLE_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_THAT(config.eos_token_id, ElementsAre(2));
}

TEST(Config, ReadsWhatTransformersWrites) {
  const ModelConfig config = read_config(tiny_model("dense"));
  EXPECT_EQ(config.torch_dtype, "float32");
  EXPECT_EQ(config.head_dim, 32);
  EXPECT_DOUBLE_EQ(config.rope_parameters.rope_theta, 10000.0);
}

TEST(Config, HeadDimIsWhatTheFileSaysElseHiddenSizeOverHeads) {
  EXPECT_EQ(read_changed({{"head_dim", 32}}).head_dim, 32);
  EXPECT_EQ(read_changed().head_dim, 16);
  EXPECT_THAT(refusal_of({{"hidden_size", 66}}),
              AllOf(HasSubstr("num_attention_heads"), HasSubstr("66"), HasSubstr("head_dim")));
}

TEST(Config, AbsentFieldsHaveTheDefaultsOfHuggingFace) {
  const ModelConfig config = read_changed(
      {{"num_key_value_heads", nullptr}, {"torch_dtype", nullptr}, {"hidden_act", nullptr}});
  EXPECT_EQ(config.num_key_value_heads, 4);
  EXPECT_EQ(config.torch_dtype, "float32");
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_THAT(config.eos_token_id, IsEmpty());
}

TEST(Config, EosTokenIdsMayBeAList) {
  EXPECT_THAT(read_changed({{"eos_token_id", {1, 7}}}).eos_token_id, ElementsAre(1, 7));
  EXPECT_THAT(refusal_of({{"eos_token_id", {1, 100}}}), HasSubstr("eos_token_id"));
}

TEST(Config, RopeThetaIsReadAtTopLevelAndNested) {
  const ModelConfig top_level = read_changed({{"rope_theta", 1e6}});
  const ModelConfig nested = read_changed(rope({{"rope_type", "default"}, {"rope_theta", 1e6}}));
  EXPECT_DOUBLE_EQ(top_level.rope_parameters.rope_theta, 1e6);
  EXPECT_DOUBLE_EQ(nested.rope_parameters.rope_theta, 1e6);
  EXPECT_EQ(fingerprint(top_level), fingerprint(nested));

  json both = rope({{"rope_type", "default"}, {"rope_theta", 1e6}});
  both["rope_theta"] = 5e5;
  EXPECT_DOUBLE_EQ(read_changed(both).rope_parameters.rope_theta, 1e6);
  EXPECT_THAT(warnings_of(both),
              AllOf(HasSubstr("rope_theta"), HasSubstr("500000"), HasSubstr("1000000")));
  both["rope_theta"] = 1e6;
  EXPECT_THAT(warnings_of(both), IsEmpty());
}

TEST(Config, RefusalsNameFileKeyExpectedAndGot) {
  const std::vector<std::pair<json, std::vector<std::string>>> cases{
      {{{"model_type", "mamba"}}, {"model_type", "mamba", "llama"}},
      {{{"model_type", nullptr}}, {"model_type", "nothing"}},
      {{{"hidden_size", nullptr}}, {"hidden_size", "nothing"}},
      {{{"hidden_size", 0}}, {"hidden_size", "got 0"}},
      {{{"hidden_size", "64"}}, {"hidden_size", "\"64\""}},
      {{{"vocab_size", -1}}, {"vocab_size", "-1"}},
      {{{"vocab_size", 18446744073709551615U}}, {"vocab_size", "18446744073709551615"}},
      {{{"intermediate_size", 1e40}}, {"intermediate_size", "1e+40"}},
      {{{"num_hidden_layers", 1 << 30}}, {"num_hidden_layers", "1073741824"}},
      {{{"num_key_value_heads", 3}}, {"num_key_value_heads", "num_attention_heads 4", "got 3"}},
      {{{"head_dim", 15}}, {"head_dim", "even", "15"}},
      {{{"rms_norm_eps", 0}}, {"rms_norm_eps", "got 0"}},
      {{{"tie_word_embeddings", 1}}, {"tie_word_embeddings", "true or false"}},
      {{{"torch_dtype", "float8_e4m3fn"}}, {"torch_dtype", "float8_e4m3fn"}},
      {{{"dtype", "int8"}}, {"dtype", "int8"}},
      {{{"hidden_act", "gelu"}}, {"hidden_act", "gelu", "silu"}},
      {{{"attention_bias", "no"}}, {"attention_bias", "no"}},
      {{{"quantization_config", {{"quant_method", "gptq"}}}}, {"quantization_config", "gptq"}},
  };
  for (const auto& [changes, parts] : cases) {
    const std::string message = refusal_of(changes);
    EXPECT_THAT(message, HasSubstr("config.json"));
    for (const std::string& part : parts) EXPECT_THAT(message, HasSubstr(part)) << changes;
  }
}

TEST(Config, FilesThatAreNoConfigAreRefusedByPath) {
  const TemporaryDirectory dir;
  const auto refusal = [&] { return message_of([&] { read_config(dir.path()); }); };
  EXPECT_THAT(refusal(), AllOf(HasSubstr("config.json"), HasSubstr("cannot be read")));
  write_text(dir.path() / "config.json", "{\"model_type\": ");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("config.json"), HasSubstr("not JSON")));
  write_text(dir.path() / "config.json", "[]");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("config.json"), HasSubstr("object")));
  write_text(dir.path() / "config.json", std::string(100'000, '['));
  EXPECT_THAT(refusal(), AllOf(HasSubstr("config.json"), HasSubstr("not JSON")));
}

TEST(Fingerprint, SeesWhatDecidesTheArithmetic) {
  const std::string reference = fingerprint(read_changed());
  EXPECT_THAT(reference, testing::MatchesRegex("[0-9a-f]{16}"));
  for (const json& changes : {json{{"vocab_size", 101}},
                              json{{"hidden_size", 128}, {"head_dim", 16}},
                              json{{"intermediate_size", 97}},
                              json{{"num_hidden_layers", 5}},
                              json{{"num_attention_heads", 2}, {"head_dim", 16}},
                              json{{"num_key_value_heads", 4}},
                              json{{"head_dim", 18}},
                              json{{"rms_norm_eps", 1e-6}},
                              json{{"tie_word_embeddings", true}},
                              json{{"rope_theta", 20000.0}},
                              json{{"attention_bias", true}},
                              json{{"mlp_bias", true}},
                              rope({{"rope_type", "linear"}, {"factor", 2.0}})}) {
    EXPECT_NE(fingerprint(read_changed(changes)), reference) << changes;
  }
}

TEST(Fingerprint, IsBlindToHowTheSameModelIsWritten) {
  const std::string reference = fingerprint(read_changed());
  for (const json& changes : {json{{"torch_dtype", "float16"}},
                              json{{"torch_dtype", nullptr}, {"dtype", "bfloat16"}},
                              json{{"max_position_embeddings", 64}},
                              json{{"eos_token_id", 5}},
                              json{{"head_dim", 16}},
                              json{{"rms_norm_eps", 9.999999747378752e-06}},
                              json{{"attention_bias", false}},
                              json{{"mlp_bias", nullptr}},
                              json{{"hidden_act", nullptr}},
                              json{{"transformers_version", "9"}},
                              rope({{"rope_type", "default"}, {"factor", 1.0}})}) {
    EXPECT_EQ(fingerprint(read_changed(changes)), reference) << changes;
  }
}

}  // namespace
}  // namespace meshnet
