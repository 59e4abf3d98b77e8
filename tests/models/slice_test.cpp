// The first law: a split model is the whole model. And the whole model is that of transformers.

#include "models/slice.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "support.h"

namespace meshnet {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kLayers = 4;  // of the dense one

class Slice : public testing::Test {
 private:
  c10::InferenceMode no_gradients_;
};

/// The same for every kind of tiny model.
class EveryTinyModel : public Slice, public testing::WithParamInterface<std::string> {
 protected:
  std::filesystem::path dir() const { return tiny_model(GetParam()); }
  Tensors golden_ = tiny_golden(GetParam());
  at::Tensor input_ids_ = golden_.at("input_ids");
  int64_t tokens_ = input_ids_.size(0);
  int64_t layers_ = read_config(dir()).num_hidden_layers;
};

INSTANTIATE_TEST_SUITE_P(Families,
                         EveryTinyModel,
                         testing::ValuesIn(tiny_models()),
                         [](const auto& each) { return each.param; });

TEST_P(EveryTinyModel, HasTheLogitsOfTransformersInFloat32) {
  const ModelSlice whole = load_whole(dir());
  for (const int64_t length : {1, 2, 3, 5, 63, 64, 65, 130}) {
    const at::Tensor logits = run_route({&whole}, input_ids_.narrow(0, 0, length));
    EXPECT_EQ(logits.scalar_type(), at::kFloat);
    EXPECT_LT(relative_error(logits, golden_.at("logits." + std::to_string(length))), 1e-4)
        << length << " tokens";
  }
}

TEST_P(EveryTinyModel, HasTheHiddenStatesOfTransformersAfterEveryLayer) {
  const ModelSlice first = load_slice(dir(), {0, 1});
  at::Tensor hidden_states = first.embed(input_ids_);
  EXPECT_TRUE(at::equal(hidden_states, golden_.at("hidden_states.embed")));
  for (int64_t layer = 0; layer < layers_; ++layer) {
    const ModelSlice slice = load_slice(dir(), {layer, layer + 1});
    hidden_states = slice.forward(hidden_states, {{0, tokens_, 0}}, layer);
    const at::Tensor expected = golden_.at("hidden_states." + std::to_string(layer));
    EXPECT_LT(relative_error(hidden_states, expected), 3e-4) << "layer " << layer;
  }
}

TEST_P(EveryTinyModel, ChoosesTheTokensOfTransformers) {
  const ModelSlice whole = load_whole(dir());
  at::Tensor ids = input_ids_.narrow(0, 0, 5);
  const at::Tensor expected = golden_.at("greedy_ids");
  for (int64_t i = 0; i < expected.size(0); ++i) {
    const at::Tensor next = run_route({&whole}, ids)[-1].argmax();
    ASSERT_EQ(next.item<int64_t>(), expected[i].item<int64_t>()) << "token " << i;
    ids = at::cat({ids, next.unsqueeze(0)});
  }
}

/// About as far from bfloat16 as transformers computes it as that is from float32: where an
/// operation sums in another order, some values are rounded the other way. Where that decides
/// between two experts, all that follows is another one's.
TEST_P(EveryTinyModel, IsCloseToTransformersInBfloat16) {
  const ModelSlice whole = load_whole(dir(), at::kBFloat16);
  const at::Tensor logits = run_route({&whole}, input_ids_);
  EXPECT_EQ(logits.scalar_type(), at::kFloat);
  const double apart = relative_error(golden_.at("logits_bfloat16"), golden_.at("logits.130"));
  const bool experts = read_config(dir()).raw->contains("num_experts_per_tok");
  EXPECT_LT(relative_error(logits, golden_.at("logits_bfloat16")), (experts ? 3 : 1) * apart);
}

TEST_P(EveryTinyModel, SplitAnywhereIsTheWholeBitForBit) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const ModelSlice whole = load_whole(dir(), dtype);
    const at::Tensor expected = run_route({&whole}, input_ids_);
    for (std::vector<int64_t> cuts : cuts_of(layers_)) {
      cuts.insert(cuts.begin(), 0);
      cuts.push_back(layers_);
      std::vector<std::unique_ptr<ModelSlice>> slices;
      std::vector<const ModelSlice*> route;
      for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
        slices.push_back(
            std::make_unique<ModelSlice>(load_slice(dir(), {cuts[i], cuts[i + 1]}, dtype)));
        route.push_back(slices.back().get());
      }
      EXPECT_TRUE(at::equal(run_route(route, input_ids_), expected))
          << c10::toString(dtype) << " cut at " << testing::PrintToString(cuts);
    }
  }
}

TEST_P(EveryTinyModel, PackedSequencesAreAsEachAlone) {
  const ModelSlice whole = load_whole(dir());
  const at::Tensor first_ids = input_ids_.narrow(0, 0, 7);
  const at::Tensor second_ids = input_ids_.narrow(0, 20, 12);
  at::Tensor hidden_states = whole.embed(at::cat({first_ids, second_ids}));
  hidden_states = whole.forward(hidden_states, {{0, 7, 0}, {7, 12, 0}}, 0);
  const at::Tensor logits = whole.logits(hidden_states);
  EXPECT_LT(relative_error(logits.narrow(0, 0, 7), run_route({&whole}, first_ids)), 5e-5);
  EXPECT_LT(relative_error(logits.narrow(0, 7, 12), run_route({&whole}, second_ids)), 5e-5);
}

TEST_F(Slice, StartsAtAnyLayerItHolds) {
  const at::Tensor input_ids = tiny_golden("dense").at("input_ids");
  const ModelSlice whole = load_whole(tiny_model("dense"));
  const ModelSlice first = load_slice(tiny_model("dense"), {0, 2});
  const ModelSlice overlapping = load_slice(tiny_model("dense"), {1, kLayers});
  at::Tensor hidden_states = first.forward(first.embed(input_ids), {{0, input_ids.size(0), 0}}, 0);
  hidden_states = overlapping.forward(hidden_states, {{0, input_ids.size(0), 0}}, 2);
  EXPECT_TRUE(at::equal(overlapping.logits(hidden_states), run_route({&whole}, input_ids)));
}

TEST_F(Slice, OnlyTheRowsAskedForBecomeLogits) {
  const at::Tensor input_ids = tiny_golden("dense").at("input_ids");
  const ModelSlice whole = load_whole(tiny_model("dense"));
  const at::Tensor hidden_states =
      whole.forward(whole.embed(input_ids), {{0, input_ids.size(0), 0}}, 0);
  const at::Tensor last = whole.logits(hidden_states.narrow(0, 63, 1));
  ASSERT_EQ(last.sizes(), (at::IntArrayRef{1, 199}));
  EXPECT_LT(relative_error(last[0], run_route({&whole}, input_ids)[63]), 1e-5);
}

TEST_F(Slice, PositionsTravelWithTheStep) {
  // Rotary attention sees differences of positions only: all moved alike is nearly nothing moved,
  // one sequence not moved with the other is something else.
  const at::Tensor input_ids = tiny_golden("dense").at("input_ids").narrow(0, 0, 6);
  const ModelSlice whole = load_whole(tiny_model("dense"));
  const at::Tensor embedded = whole.embed(input_ids);
  const at::Tensor expected = whole.logits(whole.forward(embedded, {{0, 6, 0}}, 0));
  const at::Tensor moved = whole.logits(whole.forward(embedded, {{0, 6, 100}}, 0));
  EXPECT_FALSE(at::equal(moved, expected));
  EXPECT_LT(relative_error(moved, expected), 1e-2);
  const ModelSlice first = load_slice(tiny_model("dense"), {0, 1});
  EXPECT_GT(relative_error(first.forward(embedded, {{0, 3, 0}, {3, 3, 3}}, 0),
                           first.forward(embedded, {{0, 6, 0}}, 0)),
            1e-2);
}

TEST_F(Slice, RefusesStepsThatItCannotRun) {
  const ModelSlice middle = load_slice(tiny_model("dense"), {1, 3});
  const at::Tensor hidden_states = at::zeros({4, 64});
  const auto refusal =
      [&](const at::Tensor& states, const std::vector<Sequence>& sequences, int64_t start_layer) {
        return message_of([&] { middle.forward(states, sequences, start_layer); });
      };
  EXPECT_THAT(refusal(hidden_states, {{0, 4, 0}}, 0), AllOf(HasSubstr("1-2"), HasSubstr("got 0")));
  EXPECT_THAT(refusal(hidden_states, {{0, 4, 0}}, 3), HasSubstr("got 3"));
  EXPECT_THAT(refusal(at::zeros({4, 63}), {{0, 4, 0}}, 1), HasSubstr("[4, 63]"));
  EXPECT_THAT(refusal(at::zeros({1, 4, 64}), {{0, 4, 0}}, 1), HasSubstr("[1, 4, 64]"));
  EXPECT_THAT(refusal(hidden_states, {{0, 3, 0}}, 1), HasSubstr("4 rows together, got 3"));
  EXPECT_THAT(refusal(hidden_states, {}, 1), HasSubstr("4 rows together, got 0"));
  EXPECT_THAT(refusal(hidden_states, {{0, 2, 0}, {1, 3, 0}}, 1), HasSubstr("first_row 1"));
  EXPECT_THAT(refusal(hidden_states, {{0, 0, 0}, {0, 4, 0}}, 1), HasSubstr("rows 0"));
  EXPECT_THAT(refusal(hidden_states, {{0, 4, -1}}, 1), HasSubstr("position -1"));
  EXPECT_THAT(message_of([&] { middle.embed(at::zeros({1}, at::kLong)); }), HasSubstr("layer 0"));
  EXPECT_THAT(message_of([&] { middle.logits(hidden_states); }), HasSubstr("last layer"));
}

TEST_F(Slice, RefusesIdsOutsideTheVocabulary) {
  const ModelSlice first = load_slice(tiny_model("dense"), {0, 1});
  for (const int64_t id : {int64_t{-1}, int64_t{199}}) {
    EXPECT_THAT(message_of([&] { first.embed(at::tensor({int64_t{5}, id})); }),
                AllOf(HasSubstr("0 to 198"), HasSubstr(std::to_string(id))));
  }
}

}  // namespace
}  // namespace meshnet
