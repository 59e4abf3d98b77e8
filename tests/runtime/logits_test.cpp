// B55: whether a sequence's logits depend on who runs beside it.

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "models/config.h"
#include "models/slice.h"

namespace meshnet {
namespace {

constexpr int kOthers = 7;
constexpr int kTokens = 8;

/// Tokens, and the state of all but the newest.
struct Answer {
  std::vector<int64_t> tokens;
  SliceCache cache;
};

class Model {
 public:
  explicit Model(at::ScalarType dtype)
      : config_(read_config(directory())),
        slice_(directory(), config_, layers(), dtype, at::kCPU),
        recipe_(recipe_fields(config_, layers(), dtype)) {}

  Answer begin(std::vector<int64_t> prompt) const {
    return {std::move(prompt), recipe_.make_cache(0, at::kCPU)};
  }

  /// Runs what each has not taken up yet as one batch, and appends the likeliest token of each.
  /// Returns the logits, [sequences, vocab_size].
  at::Tensor step(const std::vector<Answer*>& members) const {
    std::vector<int64_t> ids, last_rows;
    std::vector<Sequence> sequences;
    for (Answer* member : members) {
      const int64_t held = member->cache.length();
      const auto rows = static_cast<int64_t>(member->tokens.size()) - held;
      sequences.push_back({std::ssize(ids), rows, held, &member->cache});
      ids.insert(ids.end(), member->tokens.begin() + held, member->tokens.end());
      last_rows.push_back(std::ssize(ids) - 1);
    }
    const at::Tensor hidden =
        slice_.forward(slice_.embed(at::tensor(ids, at::kLong)), std::move(sequences), 0);
    at::Tensor logits = slice_.logits(hidden.index_select(0, at::tensor(last_rows, at::kLong)));
    const at::Tensor likeliest = logits.argmax(1);
    for (std::size_t i = 0; i < members.size(); ++i) {
      members[i]->tokens.push_back(likeliest[static_cast<int64_t>(i)].item<int64_t>());
    }
    return logits;
  }

 private:
  static std::filesystem::path directory() {
    const char* models = std::getenv("MESHNET_TINY_MODELS");
    if (!models)
      throw std::runtime_error("MESHNET_TINY_MODELS is not set: run the tests with ctest");
    return std::filesystem::path(models) / "dense";
  }
  LayerRange layers() const { return {0, config_.num_hidden_layers}; }

  ModelConfig config_;
  ModelSlice slice_;
  Recipe recipe_;
};

const std::vector<int64_t> kPrompt = {5, 17, 130, 41, 7};

std::vector<Answer> others(const Model& model, int64_t round) {
  std::vector<Answer> made;
  for (int64_t i = 0; i < kOthers; ++i) {
    const auto length = static_cast<std::size_t>(1 + (round * 3 + i * 5) % 40);
    made.push_back(model.begin(std::vector<int64_t>(length, 3 + round + i)));
  }
  return made;
}

/// One answer's logits at every step when nothing else runs.
std::vector<at::Tensor> alone(const Model& model) {
  Answer sequence = model.begin(kPrompt);
  std::vector<at::Tensor> logits;
  for (int i = 0; i < kTokens; ++i) logits.push_back(model.step({&sequence})[0]);
  return logits;
}

class LogitsTest : public testing::TestWithParam<at::ScalarType> {};

TEST_P(LogitsTest, AreTheSameBesideSevenOthersTwentyTimesWhenBatchesAreOfOne) {
  const c10::InferenceMode no_gradients;
  const Model model(GetParam());
  const auto expected = alone(model);
  for (int64_t round = 0; round < 20; ++round) {
    Answer sequence = model.begin(kPrompt);
    auto company = others(model, round);
    for (const at::Tensor& logits : expected) {
      for (Answer& other : company) model.step({&other});
      ASSERT_TRUE(at::equal(model.step({&sequence})[0], logits)) << "round " << round;
    }
  }
}

TEST_P(LogitsTest, AreWithinTheToleranceInPackedBatches) {
  const c10::InferenceMode no_gradients;
  const Model model(GetParam());
  const auto expected = alone(model);
  const double tolerance = GetParam() == at::kFloat ? 1e-4 : 0.04;
  for (int64_t round = 0; round < 20; ++round) {
    Answer sequence = model.begin(kPrompt);
    auto company = others(model, round);
    std::vector<Answer*> members = {&sequence};
    for (Answer& other : company) members.push_back(&other);
    for (const at::Tensor& logits : expected) {
      const at::Tensor difference = (model.step(members)[0] - logits).abs().max();
      ASSERT_LT((difference / logits.abs().max()).item<double>(), tolerance) << "round " << round;
      const int64_t likeliest = logits.argmax().item<int64_t>();
      if (sequence.tokens.back() != likeliest)
        break;  // rounded otherwise: another answer from here
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, LogitsTest, testing::Values(at::kFloat, at::kBFloat16));

}  // namespace
}  // namespace meshnet
