// The gated delta rule: the twin against transformers, the kernels against the twin, and every way
// to cut a sequence against every other.

#include "models/kernels/gated_delta.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>

#include <limits>
#include <string>
#include <vector>

#include "support.h"

namespace meshnet {
namespace {

constexpr double kFloatRounding = 1e-5;      // of sums of some hundred float32 numbers
constexpr double kBf16Rounding = 1.0 / 256;  // of one number
const std::vector<int64_t> kLengths = {1, 2, 3, 5, 31, 32, 33, 63, 64, 65, 127, 128, 129, 130, 300};

/// Arguments of the rule, without the state.
struct Inputs {
  at::Tensor query, key, value, g, beta;

  Inputs rows(int64_t first, int64_t count) const {
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, first, count); };
    return {part(query), part(key), part(value), part(g), part(beta)};
  }
  int64_t tokens() const { return value.size(0); }
};

struct Shape {
  int64_t num_k_heads, num_v_heads, head_k_dim, head_v_dim;
};
const std::vector<Shape> kShapes = {{2, 4, 128, 128}, {2, 6, 24, 40}, {3, 3, 16, 8}, {1, 2, 7, 33}};

/// Views into rows of q, k and v, as the layer has them.
Inputs random_inputs(const Shape& shape, int64_t tokens, double decay = 1.0) {
  const int64_t key_dim = shape.num_k_heads * shape.head_k_dim;
  const int64_t value_dim = shape.num_v_heads * shape.head_v_dim;
  const auto parts = at::randn({tokens, 2 * key_dim + value_dim})
                         .split_with_sizes({key_dim, key_dim, value_dim}, 1);
  const std::vector<int64_t> gates = {tokens, shape.num_v_heads};
  return {parts[0].view({tokens, shape.num_k_heads, shape.head_k_dim}),
          parts[1].view({tokens, shape.num_k_heads, shape.head_k_dim}),
          parts[2].view({tokens, shape.num_v_heads, shape.head_v_dim}),
          at::rand(gates) * -decay,
          at::rand(gates)};
}

at::Tensor random_state(const Shape& shape) {
  return at::randn({shape.num_v_heads, shape.head_k_dim, shape.head_v_dim});
}

using Rule = decltype(&gated_delta_rule);

at::Tensor run(Rule rule, const Inputs& in, const at::Tensor& state) {
  return rule(in.query, in.key, in.value, in.g, in.beta, state);
}

/// In pieces of these sizes, the last of them again and again.
at::Tensor run_cut(Rule rule,
                   const Inputs& in,
                   const std::vector<int64_t>& sizes,
                   const at::Tensor& state) {
  std::vector<at::Tensor> out;
  int64_t first = 0;
  for (std::size_t i = 0; first < in.tokens(); ++i) {
    const int64_t count = std::min(sizes[std::min(i, sizes.size() - 1)], in.tokens() - first);
    out.push_back(run(rule, in.rows(first, count), state));
    first += count;
  }
  return at::cat(out);
}

class GatedDelta : public testing::Test {
 protected:
  void SetUp() override { at::manual_seed(0); }

 private:
  c10::InferenceMode no_gradients_;
};

TEST_F(GatedDelta, EveryWayIsTransformers) {
  const Tensors golden =
      read_safetensors(path_from_environment("MESHNET_DELTA_GOLDEN") / "rule.safetensors");
  for (const std::string name : {"odd", "real", "strong", "bfloat16"}) {
    const auto at = [&](const std::string& key) { return golden.at(name + "." + key); };
    const Inputs in{at("query"), at("key"), at("value"), at("g"), at("beta")};
    const double tolerance = in.value.scalar_type() == at::kFloat ? kFloatRounding : kBf16Rounding;
    for (const Rule rule : {gated_delta_rule_reference, gated_delta_rule, gated_delta_chunks_cpu}) {
      for (const std::string theirs : {"recurrent", "chunk"}) {
        // Their chunks take differences of cumulated g, which lose digits where decays are strong.
        const double slack = name == "strong" && theirs == "chunk" ? 10 : 1;
        const at::Tensor state = at("state").clone();
        const at::Tensor out = run(rule, in, state);
        EXPECT_LT(relative_error(out, at(theirs)), tolerance * slack) << name << theirs;
        EXPECT_LT(relative_error(state, at(theirs + "_state")), kFloatRounding) << name << theirs;
      }
    }
    const at::Tensor state = at("state").clone();
    const at::Tensor out = run_cut(gated_delta_step_cpu, in, {1}, state);
    EXPECT_LT(relative_error(out, at("recurrent")), tolerance) << name;
    EXPECT_LT(relative_error(state, at("recurrent_state")), kFloatRounding) << name;
  }
}

TEST_F(GatedDelta, ChunksAndStepsAreTheTwinAtEveryLength) {
  for (const Shape& shape : kShapes) {
    for (const int64_t tokens : kLengths) {
      const Inputs in = random_inputs(shape, tokens);
      for (const bool fresh : {true, false}) {
        const at::Tensor before = random_state(shape) * (fresh ? 0 : 1);
        const at::Tensor expected_state = before.clone();
        const at::Tensor expected = run(gated_delta_rule_reference, in, expected_state);
        const at::Tensor chunks_state = before.clone();
        const at::Tensor steps_state = before.clone();
        const at::Tensor chunks = run(gated_delta_chunks_cpu, in, chunks_state);
        const at::Tensor steps = run_cut(gated_delta_step_cpu, in, {1}, steps_state);
        ASSERT_EQ(chunks.sizes(), expected.sizes());
        EXPECT_LT(relative_error(chunks, expected), kFloatRounding) << tokens;
        EXPECT_LT(relative_error(steps, expected), kFloatRounding) << tokens;
        EXPECT_LT(relative_error(chunks_state, expected_state), kFloatRounding) << tokens;
        EXPECT_LT(relative_error(steps_state, expected_state), kFloatRounding) << tokens;
      }
    }
  }
}

TEST_F(GatedDelta, TheGpuKernelIsTheTwin) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  for (const Shape& shape : std::vector<Shape>{{2, 6, 24, 40}, {2, 4, 128, 128}, {1, 2, 200, 33}}) {
    for (const int64_t tokens : kLengths) {
      const Inputs in = random_inputs(shape, tokens);
      const at::Tensor expected_state = random_state(shape);
      const at::Tensor state = expected_state.to(at::kCUDA);
      const at::Tensor expected = run(gated_delta_rule_reference, in, expected_state);
      const auto gpu = [](const at::Tensor& x) { return x.to(at::kCUDA); };
      const Inputs there{gpu(in.query), gpu(in.key), gpu(in.value), gpu(in.g), gpu(in.beta)};
      const at::Tensor out = run_cut(gated_delta_rule, there, {tokens / 3 + 1}, state);
      EXPECT_LT(relative_error(out.cpu(), expected), kFloatRounding) << tokens;
      EXPECT_LT(relative_error(state.cpu(), expected_state), kFloatRounding) << tokens;
    }
  }
}

// B05: state from pass to pass, and lengths that are no multiple of anything.
TEST_F(GatedDelta, TheSameWhereverAPromptIsCut) {
  for (const Shape& shape : kShapes) {
    const Inputs in = random_inputs(shape, 130, 0.1);  // weak decays: the first token counts
    const at::Tensor before = random_state(shape);
    const at::Tensor expected_state = before.clone();
    const at::Tensor expected = run(gated_delta_rule, in, expected_state);
    for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{
             {64, 66}, {65, 65}, {1}, {1, 129}, {129, 1}, {31, 1, 2, 32, 64}, {7}}) {
      const at::Tensor state = before.clone();
      const at::Tensor out = run_cut(gated_delta_rule, in, sizes, state);
      EXPECT_LT(relative_error(out, expected), kFloatRounding) << testing::PrintToString(sizes);
      EXPECT_LT(relative_error(state, expected_state), kFloatRounding)
          << testing::PrintToString(sizes);
    }
  }
}

TEST_F(GatedDelta, StrongDecaysAndExtremeBetasStayFinite) {
  const Shape shape{2, 4, 32, 48};
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double strong : {-1e-9, -20.0, -88.0, -120.0, -1e4, -infinity}) {
    Inputs in = random_inputs(shape, 100, 0.01);
    in.g.slice(0, 3, {}, 7).fill_(strong);
    in.g[50].fill_(strong);
    in.g[51].fill_(strong);
    in.beta = (in.beta > 0.5).to(at::kFloat);
    in.beta.slice(0, 0, {}, 5).fill_(1e-7);
    const at::Tensor before = random_state(shape) * 100;
    const at::Tensor expected_state = before.clone();
    const at::Tensor expected = run(gated_delta_rule_reference, in, expected_state);
    ASSERT_TRUE(expected.isfinite().all().item<bool>());
    for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{{100}, {1}}) {
      const at::Tensor state = before.clone();
      const at::Tensor out = run_cut(gated_delta_rule, in, sizes, state);
      EXPECT_LT(relative_error(out, expected), kFloatRounding) << strong;
      EXPECT_LT(relative_error(state, expected_state), kFloatRounding) << strong;
    }
  }
}

// What decays of a chunk multiply to must not lose the weak ones beside a strong one, as
// differences of their running sum would.
TEST_F(GatedDelta, WeakDecaysSurviveBesideAStrongOne) {
  const Shape shape{1, 1, 16, 16};
  Inputs in = random_inputs(shape, 32);
  in.g.fill_(-1e-3);
  in.g[0].fill_(-1e5);
  const at::Tensor expected_state = random_state(shape);
  const at::Tensor state = expected_state.clone();
  const at::Tensor expected = run(gated_delta_rule_reference, in, expected_state);
  EXPECT_LT(relative_error(run(gated_delta_chunks_cpu, in, state), expected), 2e-6);
  EXPECT_LT(relative_error(state, expected_state), 2e-6);
}

// Equal keys without decay make the largest triangular system; zero keys have no direction.
TEST_F(GatedDelta, EqualAndZeroKeys) {
  const Shape shape{2, 2, 32, 32};
  Inputs in = random_inputs(shape, 70);
  in.key = in.key[0].expand_as(in.key).contiguous();
  in.key.narrow(0, 40, 5).zero_();
  in.query.narrow(0, 60, 5).zero_();
  in.g.zero_();
  in.beta.fill_(1.0);
  const at::Tensor expected_state = random_state(shape);
  const at::Tensor state = expected_state.clone();
  const at::Tensor expected = run(gated_delta_rule_reference, in, expected_state);
  EXPECT_LT(relative_error(run(gated_delta_rule, in, state), expected), kFloatRounding);
  EXPECT_LT(relative_error(state, expected_state), kFloatRounding);
}

TEST_F(GatedDelta, HalfPrecisionRoundsOnceAtTheEnd) {
  for (const Shape& shape : kShapes) {
    for (const auto& [dtype, rounding] :
         {std::pair{at::kBFloat16, kBf16Rounding}, {at::kHalf, 1.0 / 2048}}) {
      for (const int64_t tokens : {1, 37}) {
        Inputs in = random_inputs(shape, tokens);
        in.query = in.query.to(dtype);
        in.key = in.key.to(dtype);
        in.value = in.value.to(dtype);
        const at::Tensor expected_state = random_state(shape);
        const at::Tensor state = expected_state.clone();
        Inputs wide = in;
        wide.query = in.query.to(at::kFloat);
        wide.key = in.key.to(at::kFloat);
        wide.value = in.value.to(at::kFloat);
        const at::Tensor expected = run(gated_delta_rule_reference, wide, expected_state);
        const at::Tensor out = run(gated_delta_rule, in, state);
        EXPECT_EQ(out.scalar_type(), dtype);
        EXPECT_LT(relative_error(out, expected), rounding);
        EXPECT_LT(relative_error(state, expected_state), kFloatRounding);
      }
    }
  }
}

TEST_F(GatedDelta, SaysWhatDoesNotFit) {
  const Shape shape{2, 6, 24, 40};
  const Inputs in = random_inputs(shape, 5);
  const at::Tensor state = random_state(shape);
  const auto message = [&](const Inputs& inputs, const at::Tensor& with) {
    return message_of([&] { run(gated_delta_rule, inputs, with); });
  };
  Inputs wrong = in;
  wrong.key = in.key.narrow(2, 0, 8);
  EXPECT_THAT(message(wrong, state), testing::HasSubstr("[5, 2, 8]"));
  wrong = in;
  wrong.beta = in.beta.narrow(0, 0, 4);
  EXPECT_THAT(message(wrong, state), testing::HasSubstr("g and beta [5, 6]"));
  EXPECT_THAT(message(in, state.narrow(2, 0, 8)), testing::HasSubstr("state [6, 24, 40]"));
  EXPECT_THAT(message(in, state.to(at::kDouble)), testing::HasSubstr("float32"));
}

}  // namespace
}  // namespace meshnet
