# Language level, warnings, sanitizers and ccache, for our own targets only: nothing here reaches third-party headers.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}")

set(MESHNET_SANITIZE "" CACHE STRING "Sanitizers for -fsanitize=, e.g. address,undefined or thread")

# Compiled objects are shared by all clones: paths are made relative to the clone before they are hashed.
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(ccache_launcher
      "${CMAKE_COMMAND}" -E env
      "CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}"
      CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      "${CCACHE_PROGRAM}")
  set(CMAKE_C_COMPILER_LAUNCHER "${ccache_launcher}")
  set(CMAKE_CXX_COMPILER_LAUNCHER "${ccache_launcher}")
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${ccache_launcher}")
endif()

# What every target of ours links: warnings, and the sanitizers of the preset.
add_library(meshnet_options INTERFACE)
target_include_directories(meshnet_options INTERFACE "${CMAKE_SOURCE_DIR}")
target_compile_options(
  meshnet_options
  INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall
            -Wextra
            -Wshadow
            -Wconversion
            -Werror
            -fpch-preprocess
            -ffile-prefix-map=${CMAKE_SOURCE_DIR}=.>)
# models/ goes into a shared library, too (tests/gpu). Not CMake's own setting, which gives executables -fPIE: they share the
# precompiled header of the libraries.
target_compile_options(
  meshnet_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fPIC -fno-semantic-interposition>
                            $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-fPIC>)
if(MESHNET_SANITIZE)
  # GCC's flow warnings misjudge instrumented coroutines and std::regex; the builds without sanitizers keep them.
  target_compile_options(
    meshnet_options
    INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${MESHNET_SANITIZE}
              -fno-omit-frame-pointer
              -Wno-mismatched-new-delete
              -Wno-maybe-uninitialized>)
  target_link_options(meshnet_options INTERFACE -fsanitize=${MESHNET_SANITIZE})
endif()

# meshnet_library(NAME SRCS ... [DEPS ...]): a static library of ours, links listed in full where it is declared.
function(meshnet_library name)
  cmake_parse_arguments(arg "" "" "SRCS;DEPS" ${ARGN})
  add_library(${name} STATIC ${arg_SRCS})
  target_link_libraries(${name} PUBLIC meshnet_options ${arg_DEPS})
endfunction()
