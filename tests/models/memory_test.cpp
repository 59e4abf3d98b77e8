// The bound on memory: loading a slice never holds more than the slice and a piece of a tensor.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "support.h"

namespace meshnet {
namespace {

constexpr int64_t kMebi = int64_t{1} << 20;
constexpr int64_t kHidden = 1024;
constexpr int64_t kIntermediate = 3072;
constexpr int64_t kVocab = 40000;
constexpr int64_t kLayers = 8;

/// 312 MB in bf16: 8 layers of 19 MB, embedding and lm_head of 82 MB each. Two of the tensors are
/// larger than all the slack that the test allows. With `fp8` the projections are stored so.
void write_model(const std::filesystem::path& dir, bool fp8) {
  nlohmann::json config{{"model_type", "llama"},
                        {"vocab_size", kVocab},
                        {"hidden_size", kHidden},
                        {"intermediate_size", kIntermediate},
                        {"num_hidden_layers", kLayers},
                        {"num_attention_heads", 8},
                        {"num_key_value_heads", 2},
                        {"max_position_embeddings", 128},
                        {"rms_norm_eps", 1e-5},
                        {"tie_word_embeddings", false}};
  if (fp8) config["quantization_config"] = {{"quant_method", "fp8"}};
  write_text(dir / "config.json", config.dump());
  const auto weight = [](int64_t rows, int64_t columns) {
    return at::ones({1}, at::kBFloat16).expand({rows, columns});
  };
  const at::Tensor norm = at::ones({kHidden}, at::kBFloat16);
  Tensors tensors{{"model.embed_tokens.weight", weight(kVocab, kHidden)},
                  {"model.norm.weight", norm},
                  {"lm_head.weight", weight(kVocab, kHidden)}};
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    tensors[prefix + "input_layernorm.weight"] = norm;
    tensors[prefix + "post_attention_layernorm.weight"] = norm;
    const auto project = [&](const char* name, int64_t rows, int64_t columns) {
      at::Tensor& projection = tensors[prefix + name + "_proj.weight"];
      projection = weight(rows, columns);
      if (!fp8) return;
      projection = projection.to(at::kFloat8_e4m3fn);
      tensors[prefix + name + "_proj.weight_scale_inv"] = at::ones({rows / 128, columns / 128});
    };
    project("self_attn.q", kHidden, kHidden);
    project("self_attn.k", kHidden / 4, kHidden);
    project("self_attn.v", kHidden / 4, kHidden);
    project("self_attn.o", kHidden, kHidden);
    project("mlp.gate", kIntermediate, kHidden);
    project("mlp.up", kIntermediate, kHidden);
    project("mlp.down", kHidden, kIntermediate);
  }
  write_safetensors(dir / "model.safetensors", tensors);
}

/// What load_peak.cpp reports, in bytes.
struct Measured {
  int64_t slice = 0;
  int64_t growth = 0;
};

/// Loads in a process of its own, which has held nothing else before.
Measured load(const std::filesystem::path& dir, LayerRange layers, const char* dtype) {
  const std::string command = std::string(LOAD_PEAK) + " '" + dir.string() + "' " +
                              std::to_string(layers.first) + " " + std::to_string(layers.last) +
                              " " + dtype;
  FILE* output = ::popen(command.c_str(), "r");
  std::array<char, 128> line{};
  EXPECT_NE(std::fgets(line.data(), static_cast<int>(line.size()), output), nullptr) << command;
  EXPECT_EQ(::pclose(output), 0) << command;
  int64_t slice = 0;
  int64_t growth = 0;
  std::istringstream fields(line.data());
  EXPECT_TRUE(fields >> slice >> growth) << command << ": " << line.data();
  return {slice, growth};
}

class Memory : public testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(Checkpoints, Memory, testing::Bool(), [](const auto& fp8) {
  return fp8.param ? "fp8" : "bf16";
});

TEST_P(Memory, LoadingHoldsTheSliceAndLittleMore) {
  const TemporaryDirectory dir;
  write_model(dir.path(), GetParam());
  for (const char* dtype : {"bfloat16", "float32"}) {
    for (const LayerRange layers : {LayerRange{0, 2}, {2, 6}, {6, 8}}) {
      const Measured measured = load(dir.path(), layers, dtype);
      // That it saw the slice at all shows that the measurement works.
      EXPECT_GT(measured.growth, measured.slice * 9 / 10) << to_string(layers) << " " << dtype;
      EXPECT_LT(measured.growth, measured.slice + 16 * kMebi) << to_string(layers) << " " << dtype;
    }
  }
}

}  // namespace
}  // namespace meshnet
