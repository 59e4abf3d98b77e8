# In the place of deps.cmake where MESHNET_MODELS_ONLY asks for cache/ and models/ alone: what these two need besides LibTorch,
# taken as headers, from the system or from the folder that CMAKE_INCLUDE_PATH names.

find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)

find_path(MESHNET_HEADERS nlohmann/json.hpp REQUIRED DOC "Folder of the headers of nlohmann_json, spdlog and fmt")
foreach(library nlohmann_json::nlohmann_json spdlog::spdlog)
  add_library(${library} INTERFACE IMPORTED)
  target_include_directories(${library} INTERFACE "${MESHNET_HEADERS}")
endforeach()
target_compile_definitions(spdlog::spdlog INTERFACE SPDLOG_FMT_EXTERNAL FMT_HEADER_ONLY)
