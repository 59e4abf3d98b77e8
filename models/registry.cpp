#include "models/registry.h"

#include <array>

namespace meshnet {

extern const Architecture kGemma3Text;     // arch/gemma3.cpp
extern const Architecture kLlama;          // arch/llama.cpp
extern const Architecture kMistral;        // arch/mistral.cpp
extern const Architecture kQwen2;          // arch/qwen2.cpp
extern const Architecture kQwen3;          // arch/qwen3.cpp
extern const Architecture kQwen35MoeText;  // arch/qwen3_5.cpp
extern const Architecture kQwen35Text;     // arch/qwen3_5.cpp
extern const Architecture kQwen3Moe;       // arch/qwen3_moe.cpp
extern const Architecture kQwen3Next;      // arch/qwen3_next.cpp

namespace {

constexpr std::array kArchitectures{&kGemma3Text,
                                    &kLlama,
                                    &kMistral,
                                    &kQwen2,
                                    &kQwen3,
                                    &kQwen35MoeText,
                                    &kQwen35Text,
                                    &kQwen3Moe,
                                    &kQwen3Next};

}  // namespace

const Architecture* find_architecture(std::string_view model_type) {
  for (const Architecture* architecture : kArchitectures) {
    if (architecture->model_type == model_type) return architecture;
  }
  return nullptr;
}

std::string supported_architectures() {
  std::string names;
  for (const Architecture* architecture : kArchitectures) {
    if (!names.empty()) names += ", ";
    names += architecture->model_type;
  }
  return names;
}

}  // namespace meshnet
