# The tokenizer crate, runtime/text_rs: built by cargo into a static library, linked as meshnet_text_rs.
# Its target folder is shared by all clones (MESHNET_HOME), so that a second clone does not compile the dependencies again.

find_program(CARGO_PROGRAM cargo REQUIRED)

if(DEFINED ENV{MESHNET_HOME})
  set(cargo_target_dir "$ENV{MESHNET_HOME}/cargo-target")
else()
  set(cargo_target_dir "$ENV{HOME}/.cache/meshnet/cargo-target")
endif()
