# LibTorch and the CUDA compiler. After all other libraries: Torch's config changes global state that would break their lookups.

# By default both come from the Python environment that scripts/setup makes (.venv). A machine that has its own LibTorch
# (2.11 to 2.15) says -DMESHNET_LIBTORCH=/path/to/libtorch; its own CUDA toolkit is then found in the usual places.
file(GLOB venv_torch "${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch")
set(MESHNET_LIBTORCH "${venv_torch}" CACHE PATH "LibTorch directory (the one that holds share/cmake/Torch)")
if(NOT EXISTS "${MESHNET_LIBTORCH}/share/cmake/Torch")
  message(FATAL_ERROR "no LibTorch at '${MESHNET_LIBTORCH}': run scripts/setup, or pass -DMESHNET_LIBTORCH=DIR")
endif()

if(MESHNET_LIBTORCH STREQUAL "${venv_torch}")
  file(GLOB venv_cuda "${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/cu1[0-9]")
  if(EXISTS "${venv_cuda}/bin/nvcc")
    set(CMAKE_CUDA_COMPILER "${venv_cuda}/bin/nvcc" CACHE FILEPATH "CUDA compiler")
    set(CUDAToolkit_ROOT "${venv_cuda}" CACHE PATH "CUDA toolkit, as CMake looks for it")
    set(CUDA_TOOLKIT_ROOT_DIR "${venv_cuda}" CACHE PATH "CUDA toolkit, as Torch looks for it")
  endif()
endif()

# Kernels are compiled wherever there is an nvcc, GPU or not. Torch's config turns the list into nvcc flags itself.
set(TORCH_CUDA_ARCH_LIST "8.0;9.0" CACHE STRING "GPU architectures to compile kernels for")
set(CMAKE_CUDA_ARCHITECTURES OFF)
include(CheckLanguage)
check_language(CUDA)
if(CMAKE_CUDA_COMPILER)
  enable_language(CUDA)
  set(MESHNET_CUDA ON)
endif()

list(APPEND CMAKE_PREFIX_PATH "${MESHNET_LIBTORCH}")
find_package(Torch REQUIRED)

# The profiler's headers need no GPU and no library; they come with the CUDA compiler.
find_path(
  MESHNET_NVTX_INCLUDE nvtx3/nvToolsExt.h
  HINTS "${venv_cuda}/include" ${CUDAToolkit_INCLUDE_DIRS} ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES}
  PATHS /usr/local/cuda/include
  DOC "Folder of the nvtx3 headers")
if(NOT MESHNET_NVTX_INCLUDE)
  message(STATUS "No nvtx3 headers: built without ranges for profilers (-DMESHNET_NVTX_INCLUDE=DIR names their folder)")
endif()

# Torch, and the one precompiled header of all targets that use it: only stable, widely used headers.
add_library(meshnet_torch INTERFACE)
target_link_libraries(meshnet_torch INTERFACE torch)
