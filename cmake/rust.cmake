# The text crate, runtime/text_rs: cargo builds the static library, meshnet_text_rs links it.
# Cargo's target folder is shared by all clones (MESHNET_HOME), so that a second clone does not compile the dependencies
# again. Two clones write the same file name there: the lock is held until this clone has its copy.

find_program(CARGO_PROGRAM cargo REQUIRED)
find_program(FLOCK_PROGRAM flock REQUIRED)

if(DEFINED ENV{MESHNET_HOME})
  set(cargo_target_dir "$ENV{MESHNET_HOME}/cargo-target")
else()
  set(cargo_target_dir "$ENV{HOME}/.cache/meshnet/cargo-target")
endif()
file(MAKE_DIRECTORY "${cargo_target_dir}")

set(text_rs_dir "${CMAKE_SOURCE_DIR}/runtime/text_rs")
set(text_rs_library "${CMAKE_BINARY_DIR}/libmeshnet_text_rs.a")
file(GLOB text_rs_sources CONFIGURE_DEPENDS "${text_rs_dir}/src/*.rs")
add_custom_command(
  OUTPUT "${text_rs_library}"
  COMMAND
    "${FLOCK_PROGRAM}" "${cargo_target_dir}/meshnet.lock" sh -c
    "\"${CARGO_PROGRAM}\" build --locked --release --target-dir \"${cargo_target_dir}\" && cp \"${cargo_target_dir}/release/libmeshnet_text_rs.a\" \"${text_rs_library}\""
  WORKING_DIRECTORY "${text_rs_dir}"
  DEPENDS ${text_rs_sources} "${text_rs_dir}/Cargo.toml" "${text_rs_dir}/Cargo.lock"
  COMMENT "Building the text crate (tokenizers, minijinja)"
  USES_TERMINAL
  VERBATIM)
add_custom_target(meshnet_text_rs_build DEPENDS "${text_rs_library}")

add_library(meshnet_text_rs STATIC IMPORTED GLOBAL)
set_target_properties(
  meshnet_text_rs PROPERTIES IMPORTED_LOCATION "${text_rs_library}" INTERFACE_INCLUDE_DIRECTORIES
                                                                    "${text_rs_dir}")
target_link_libraries(meshnet_text_rs INTERFACE Threads::Threads ${CMAKE_DL_LIBS} m)
add_dependencies(meshnet_text_rs meshnet_text_rs_build)
