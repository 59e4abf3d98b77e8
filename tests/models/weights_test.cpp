// What the loader is made of: names of the text model, progress.

#include "models/weights.h"

#include <gmock/gmock.h>

#include "models/load_progress.h"
#include "models/text_model.h"

namespace meshnet {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;

struct TextModelCase {
  std::vector<std::string> names;
  std::string prefix;
  std::string lm_head;
};

TEST(TextModel, IsFoundByWhatThereIs) {
  for (const auto& [names, prefix, lm_head] : std::vector<TextModelCase>{
           {{"lm_head.weight", "model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight"},
            "model.",
            "lm_head.weight"},
           // transformers 5, and Qwen's releases
           {{"lm_head.weight",
             "model.language_model.embed_tokens.weight",
             "model.language_model.layers.0.mlp.up_proj.weight",
             "model.visual.blocks.0.attn.qkv.weight",
             "mtp.layers.0.mlp.up_proj.weight"},
            "model.language_model.",
            "lm_head.weight"},
           // Gemma 3's releases, and with a head of their own
           {{"language_model.model.layers.0.mlp.up_proj.weight",
             "multi_modal_projector.mm_soft_emb_norm.weight",
             "vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight"},
            "language_model.model.",
            "lm_head.weight"},
           {{"language_model.lm_head.weight",
             "language_model.model.embed_tokens.weight",
             "vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight"},
            "language_model.model.",
            "language_model.lm_head.weight"},
           // a node's own part
           {{"model.language_model.layers.7.mlp.up_proj.weight"},
            "model.language_model.",
            "lm_head.weight"},
           {{"model.language_model.norm.weight", "model.layers.0.mlp.up_proj.weight"},
            "model.",
            "lm_head.weight"},
           {{"x.model.layers.0.mlp.up_proj.weight"}, "model.", "lm_head.weight"},
           {{}, "model.", "lm_head.weight"}}) {
    const TextModelNames found = find_text_model(names);
    EXPECT_EQ(found.prefix, prefix) << testing::PrintToString(names);
    EXPECT_EQ(found.lm_head, lm_head) << testing::PrintToString(names);
  }
}

TEST(LoadProgress, SpeaksEveryTenSeconds) {
  constexpr int64_t kGibi = int64_t{1} << 30;
  const LoadProgress::Clock::time_point start{};
  LoadProgress progress(start);
  EXPECT_FALSE(progress.add("a", kGibi, start + seconds(9)));
  EXPECT_THAT(
      progress.add("b", kGibi / 2, start + seconds(12)).value(),
      AllOf(HasSubstr("1.5 GiB"), HasSubstr("12 s"), HasSubstr("0.12 GiB/s"), HasSubstr("b")));
  EXPECT_FALSE(progress.add("c", kGibi, start + seconds(21)));
  EXPECT_THAT(progress.add("d", kGibi, start + seconds(22)).value(),
              AllOf(HasSubstr("3.5 GiB"), HasSubstr("up to d")));
}

}  // namespace
}  // namespace meshnet
