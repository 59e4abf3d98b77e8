// Which experts the layers of a whole model choose: those that a token's own sequence asks for,
// whoever ran before or runs beside it. Seen from outside, by an observer of LibTorch's operations.

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "cache/recipe.h"
#include "models/slice.h"
#include "support.h"

namespace meshnet {
namespace {

constexpr int64_t kNumExperts = 8;  // of the tiny models
constexpr int64_t kTopK = 3;

/// The experts of one layer [rows, kTopK], each layer of a step in its turn.
using Choices = std::vector<at::Tensor>;
thread_local Choices* observed = nullptr;

/// top_k_routing sorts each row's probabilities; no other operation sorts a row of so many.
void note_sorted(const at::RecordFunction& function, at::ObserverContext*) {
  if (std::string_view(function.name()) != "aten::sort" || !observed) return;
  const at::Tensor index = function.outputs().at(1).toTensor();
  if (index.dim() == 2 && index.size(1) == kNumExperts) {
    observed->push_back(index.narrow(1, 0, kTopK).clone());
  }
}

class Observer {
 public:
  explicit Observer(Choices& choices)
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(
                [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
                  return nullptr;
                },
                note_sorted)
                .needsOutputs(true)
                .scopes({at::RecordScope::FUNCTION}))) {
    observed = &choices;
  }
  ~Observer() {
    observed = nullptr;
    at::removeCallback(handle_);
  }
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

 private:
  at::CallbackHandle handle_;
};

/// A stateless run over the first ids of a session, then a prefill of them in two chunks, then
/// decodes.
class Session {
 public:
  Session(const ModelSlice& slice, const Recipe& recipe, at::Tensor ids)
      : slice_(slice), ids_(std::move(ids)), cache_(recipe.make_cache(0, at::kCPU)) {}

  static constexpr int kSteps = 3 + 12;

  void step(int number) {
    if (number == 0) {
      run(0, 9, nullptr);
    } else if (number < 3) {
      run(cache_.length(), number == 1 ? 7 : 4, &cache_);
    } else {
      run(cache_.length(), 1, &cache_);
    }
  }

  const Choices& choices() const { return choices_; }

 private:
  void run(int64_t first, int64_t count, SliceCache* cache) {
    const Observer observer(choices_);
    slice_.forward(
        slice_.embed(ids_.narrow(0, first, count)), {{0, count, first, cache}}, /*start_layer=*/0);
  }

  const ModelSlice& slice_;
  at::Tensor ids_;
  SliceCache cache_;
  Choices choices_;
};

class RoutingOfAModel : public testing::TestWithParam<std::string> {
 private:
  c10::InferenceMode no_gradients_;
};

INSTANTIATE_TEST_SUITE_P(Families,
                         RoutingOfAModel,
                         testing::Values("qwen3_moe", "qwen3_next", "qwen3_5_moe"),
                         [](const auto& each) { return each.param; });

TEST_P(RoutingOfAModel, TwoSessionsChooseAsEachAlone) {
  const std::filesystem::path dir = tiny_model(GetParam());
  const ModelConfig config = read_config(dir);
  const ModelSlice slice = load_whole(dir);
  const Recipe recipe(recipe_fields(config, slice.layers(), at::kFloat));
  const at::Tensor ids = tiny_golden(GetParam()).at("input_ids");
  const auto make = [&](int64_t from) {
    return Session(slice, recipe, ids.narrow(0, from, 9 + 7 + 4 + 12));
  };
  Session alone = make(0), other_alone = make(40), one = make(0), other = make(40);
  for (int step = 0; step < Session::kSteps; ++step) alone.step(step);
  for (int step = 0; step < Session::kSteps; ++step) other_alone.step(step);
  // Each a step of another mode than the one before it.
  for (int step = 0; step < Session::kSteps + 2; ++step) {
    if (step < Session::kSteps) one.step(step);
    if (step >= 2) other.step(step - 2);
  }

  const auto dense =
      read_json(dir / "config.json").value("mlp_only_layers", nlohmann::json::array());
  const auto layers = static_cast<std::size_t>(config.num_hidden_layers) - dense.size();
  ASSERT_EQ(alone.choices().size(), Session::kSteps * layers);
  for (const auto& [mine, expected] : {std::pair{&one, &alone}, {&other, &other_alone}}) {
    ASSERT_EQ(mine->choices().size(), expected->choices().size());
    for (std::size_t i = 0; i < expected->choices().size(); ++i) {
      EXPECT_TRUE(at::equal(mine->choices()[i], expected->choices()[i]))
          << "step " << i / layers << ", layer of experts " << i % layers;
    }
  }
  EXPECT_FALSE(at::equal(alone.choices()[0], other_alone.choices()[0]));
}

}  // namespace
}  // namespace meshnet
