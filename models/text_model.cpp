#include "models/text_model.h"

#include <algorithm>

namespace meshnet {
namespace {

bool has_text_model(const std::vector<std::string>& names, const std::string& prefix) {
  const std::string layers = prefix + "layers.";
  const std::string embed_tokens = prefix + "embed_tokens.";
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return name.starts_with(layers) || name.starts_with(embed_tokens);
  });
}

}  // namespace

TextModelNames find_text_model(const std::vector<std::string>& names) {
  TextModelNames found{"model.", "lm_head.weight"};
  for (const char* prefix : {"model.language_model.", "language_model.model."}) {
    if (has_text_model(names, prefix)) {
      found.prefix = prefix;
      break;
    }
  }
  const std::string older_lm_head = "language_model." + found.lm_head;
  const auto has = [&](const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (!has(found.lm_head) && has(older_lm_head)) found.lm_head = older_lm_head;
  return found;
}

}  // namespace meshnet
