// The second law: from state is as from nothing, however the sequence is cut in time and in layers.

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <memory>

#include "cache/recipe.h"
#include "models/slice.h"
#include "support.h"

namespace meshnet {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kLayers = 4;  // of the dense one

/// A tiny model cut into slices, with the state of one session in each.
class Route {
 public:
  Route(const std::filesystem::path& dir, std::vector<int64_t> cuts, at::ScalarType dtype)
      : dtype_(dtype) {
    cuts.insert(cuts.begin(), 0);
    cuts.push_back(read_config(dir).num_hidden_layers);
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      const LayerRange layers{cuts[i], cuts[i + 1]};
      slices_.push_back(std::make_unique<ModelSlice>(load_slice(dir, layers, dtype)));
      recipes_.emplace_back(recipe_fields(read_config(dir), layers, dtype));
    }
  }

  std::vector<SliceCache> session() const {
    std::vector<SliceCache> caches;
    for (const Recipe& recipe : recipes_) {
      caches.push_back(recipe.make_cache(recipe.owned().first, at::kCPU));
    }
    return caches;
  }

  /// The next ids of a session → float32 logits of the newest [vocab_size].
  at::Tensor step(const at::Tensor& input_ids, std::vector<SliceCache>& caches) const {
    at::Tensor hidden_states = slices_.front()->embed(input_ids);
    const int64_t rows = input_ids.size(0);
    for (std::size_t i = 0; i < slices_.size(); ++i) {
      hidden_states = slices_[i]->forward(
          hidden_states, {{0, rows, caches[i].length(), &caches[i]}}, slices_[i]->layers().first);
    }
    return slices_.back()->logits(hidden_states.narrow(0, rows - 1, 1))[0];
  }

  const ModelSlice& slice(std::size_t i) const { return *slices_[i]; }
  const Recipe& recipe(std::size_t i) const { return recipes_[i]; }

 private:
  at::ScalarType dtype_;
  std::vector<std::unique_ptr<ModelSlice>> slices_;
  std::vector<Recipe> recipes_;
};

class State : public testing::Test {
 private:
  c10::InferenceMode no_gradients_;
};

class EveryTinyModelWithState : public State, public testing::WithParamInterface<std::string> {
 protected:
  std::filesystem::path dir() const { return tiny_model(GetParam()); }
  Tensors golden_ = tiny_golden(GetParam());
  at::Tensor input_ids_ = golden_.at("input_ids");
};

INSTANTIATE_TEST_SUITE_P(Families,
                         EveryTinyModelWithState,
                         testing::ValuesIn(tiny_models()),
                         [](const auto& each) { return each.param; });

TEST_P(EveryTinyModelWithState, DecodesTheTokensOfTransformersAtEveryCut) {
  const at::Tensor expected = golden_.at("greedy_ids");
  const at::Tensor expected_logits = golden_.at("greedy_logits");
  for (const auto& cuts : cuts_of(read_config(dir()).num_hidden_layers)) {
    const Route route(dir(), cuts, at::kFloat);
    auto caches = route.session();
    at::Tensor next = input_ids_.narrow(0, 0, 5);
    for (int64_t i = 0; i < expected.size(0); ++i) {
      const at::Tensor logits = route.step(next, caches);
      next = logits.argmax().unsqueeze(0);
      ASSERT_LT(relative_error(logits, expected_logits[i]), 1e-4) << "token " << i;
      ASSERT_EQ(next.item<int64_t>(), expected[i].item<int64_t>())
          << "token " << i << " cut at " << testing::PrintToString(cuts);
    }
  }
}

TEST_P(EveryTinyModelWithState, AnyChunksOfAPrefillAreTheWhole) {
  const Route route(dir(), {2}, at::kFloat);
  const at::Tensor expected = golden_.at("logits.130")[129];
  for (const int64_t chunk : {1, 3, 31, 64, 65, 129, 130}) {
    auto caches = route.session();
    at::Tensor logits;
    for (int64_t first = 0; first < 130; first += chunk) {
      logits = route.step(input_ids_.narrow(0, first, std::min(chunk, 130 - first)), caches);
    }
    EXPECT_LT(relative_error(logits, expected), 1e-4) << "chunks of " << chunk;
  }
}

TEST_P(EveryTinyModelWithState, InLowPrecisionIsCloseToTheStatelessRun) {
  // Products of one row and of many rows round differently; these weights are wide, so it shows.
  for (const auto& [dtype, tolerance] :
       std::vector<std::pair<at::ScalarType, double>>{{at::kBFloat16, 0.15}, {at::kHalf, 2e-2}}) {
    const Route route(dir(), {1}, dtype);
    auto stateless = route.session();
    const at::Tensor expected = route.step(input_ids_.narrow(0, 0, 64), stateless);
    auto caches = route.session();
    route.step(input_ids_.narrow(0, 0, 40), caches);
    at::Tensor logits;
    for (int64_t i = 40; i < 64; ++i) logits = route.step(input_ids_.narrow(0, i, 1), caches);
    EXPECT_LT(relative_error(logits, expected), tolerance) << c10::toString(dtype);
  }
}

TEST_P(EveryTinyModelWithState, SplitsDecodeBitForBitAlike) {
  const Route whole(dir(), {}, at::kBFloat16);
  const Route split(dir(), {1, 3}, at::kBFloat16);
  auto whole_caches = whole.session();
  auto split_caches = split.session();
  for (const auto& [first, rows] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 20}, {20, 1}, {21, 1}}) {
    const at::Tensor ids = input_ids_.narrow(0, first, rows);
    EXPECT_TRUE(at::equal(whole.step(ids, whole_caches), split.step(ids, split_caches))) << first;
  }
}

TEST_P(EveryTinyModelWithState, PackedSessionsAreAsEachAlone) {
  const Route route(dir(), {}, at::kFloat);
  auto first = route.session();
  auto second = route.session();
  route.step(input_ids_.narrow(0, 0, 7), first);
  route.step(input_ids_.narrow(0, 20, 12), second);
  const ModelSlice& slice = route.slice(0);
  const at::Tensor ids = at::cat({input_ids_.narrow(0, 7, 1), input_ids_.narrow(0, 32, 1)});
  const at::Tensor logits = slice.logits(slice.forward(
      slice.embed(ids), {{0, 1, 7, &first[0]}, {1, 1, 12, &second[0]}}, /*start_layer=*/0));

  auto alone = route.session();
  route.step(input_ids_.narrow(0, 0, 7), alone);
  EXPECT_LT(relative_error(logits[0], route.step(input_ids_.narrow(0, 7, 1), alone)), 5e-5);
  alone = route.session();
  route.step(input_ids_.narrow(0, 20, 12), alone);
  EXPECT_LT(relative_error(logits[1], route.step(input_ids_.narrow(0, 32, 1), alone)), 5e-5);
}

TEST_P(EveryTinyModelWithState, TakesExactlyTheBytesOfItsRecipe) {
  const Route route(dir(), {1}, at::kBFloat16);
  auto caches = route.session();
  for (int64_t i = 0; i < 64; i += 16) {
    route.step(input_ids_.narrow(0, i, 16), caches);
    for (std::size_t slice = 0; slice < 2; ++slice) {
      const Recipe& recipe = route.recipe(slice);
      EXPECT_EQ(caches[slice].layers(), recipe.owned());
      EXPECT_EQ(caches[slice].nbytes(), recipe.nbytes(recipe.owned().first, i + 16));
    }
  }
}

// B02 and B10: K/V alone is never rolled back beside recurrent state or a window that has passed.
TEST_P(EveryTinyModelWithState, RollsBackAllLayersOrNone) {
  const auto types = read_config(dir()).layer_types;
  const bool recurrent = std::ranges::count(types, LayerType::kLinear) > 0;
  const bool windowed = std::ranges::count(types, LayerType::kSliding) > 0;
  const Route route(dir(), {}, at::kFloat);
  const auto decode_ten = [&](std::vector<SliceCache>& caches) {
    at::Tensor logits;
    for (int i = 0; i < 10; ++i) {
      logits = route.step(input_ids_.narrow(0, caches[0].length(), 1), caches);
    }
    return logits;
  };
  for (const auto& [held, kept] :
       std::vector<std::pair<int64_t, int64_t>>{{20, 15}, {20, 19}, {20, 0}, {5, 4}, {40, 6}}) {
    SCOPED_TRACE(std::to_string(held) + " to " + std::to_string(kept));
    auto caches = route.session();
    route.step(input_ids_.narrow(0, 0, held), caches);
    const bool done = caches[0].truncate(kept);
    const int64_t length = done ? kept : held;
    EXPECT_EQ(caches[0].length(), length);
    if (!windowed || kept == 0) {
      EXPECT_EQ(done, !recurrent || kept == 0);
    }
    auto fresh = route.session();
    if (length > 0) route.step(input_ids_.narrow(0, 0, length), fresh);
    EXPECT_LT(relative_error(decode_ten(caches), decode_ten(fresh)), 1e-4);
  }
}

TEST_F(State, StartsAtAnyLayerItHolds) {
  const Tensors golden = tiny_golden("dense");
  const at::Tensor input_ids = golden.at("input_ids").narrow(0, 0, 64);
  const ModelSlice first = load_slice(tiny_model("dense"), {0, 2});
  const ModelSlice overlapping = load_slice(tiny_model("dense"), {1, kLayers});
  const Recipe recipe(recipe_fields(read_config(tiny_model("dense")), {1, kLayers}, at::kFloat));
  SliceCache cache = recipe.make_cache(/*start_layer=*/2, at::kCPU);
  EXPECT_EQ(cache.layers(), (LayerRange{2, kLayers}));
  const at::Tensor seam = first.forward(first.embed(input_ids), {{0, 64, 0}}, 0);
  overlapping.forward(seam.narrow(0, 0, 60), {{0, 60, 0, &cache}}, 2);
  const at::Tensor hidden_states =
      overlapping.forward(seam.narrow(0, 60, 4), {{0, 4, 60, &cache}}, 2);
  EXPECT_LT(relative_error(overlapping.logits(hidden_states)[3], golden.at("logits.64")[63]), 1e-4);
}

TEST_F(State, RefusesStateOfAnotherPositionOrOtherLayers) {
  const ModelSlice slice = load_slice(tiny_model("dense"), {1, 3});
  const Recipe recipe(recipe_fields(read_config(tiny_model("dense")), {1, 3}, at::kFloat));
  SliceCache cache = recipe.make_cache(1, at::kCPU);
  const at::Tensor hidden_states = at::zeros({1, 64});
  EXPECT_THAT(message_of([&] { slice.forward(hidden_states, {{0, 1, 5, &cache}}, 1); }),
              AllOf(HasSubstr("expected 5 tokens"), HasSubstr("got 0")));
  EXPECT_THAT(message_of([&] { slice.forward(hidden_states, {{0, 1, 0, &cache}}, 2); }),
              AllOf(HasSubstr("over layers 2"), HasSubstr("1-2")));
  EXPECT_EQ(cache.length(), 0);
}

}  // namespace
}  // namespace meshnet
