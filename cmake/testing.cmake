# meshnet_test(NAME SRCS ... DEPS ... [LABELS fast|slow]): a GoogleTest binary, run under ctest.

enable_testing()

function(meshnet_test name)
  cmake_parse_arguments(arg "" "LABELS" "SRCS;DEPS" ${ARGN})
  if(NOT arg_LABELS)
    set(arg_LABELS fast)
  endif()
  add_executable(${name} ${arg_SRCS})
  target_link_libraries(${name} PRIVATE ${arg_DEPS} GTest::gmock GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS ${arg_LABELS} TIMEOUT 600)
endfunction()
