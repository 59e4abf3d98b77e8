# Tokenizer and chat templates over the Rust crate in text_rs/. Included by CMakeLists.txt beside it.

meshnet_library(
  meshnet_text
  SRCS
  "${CMAKE_CURRENT_LIST_DIR}/tokenizer.cpp"
  "${CMAKE_CURRENT_LIST_DIR}/chat_template.cpp"
  DEPS
  meshnet_text_rs
  nlohmann_json::nlohmann_json)
