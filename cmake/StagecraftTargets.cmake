# sc_library(NAME SRCS HDRS DEPS), sc_program, sc_test: one library target a folder.

# The precompiled header that all torch targets share: what nearly every one of them includes anyway.
function(_sc_pch)
  if(TARGET sc_pch)
    return()
  endif()
  file(WRITE "${PROJECT_BINARY_DIR}/pch.cpp.in" "// Carries the shared precompiled header.\n")
  file(COPY_FILE "${PROJECT_BINARY_DIR}/pch.cpp.in" "${PROJECT_BINARY_DIR}/pch.cpp" ONLY_IF_DIFFERENT)
  add_library(sc_pch OBJECT "${PROJECT_BINARY_DIR}/pch.cpp")
  target_link_libraries(sc_pch PRIVATE sc_flags Libtorch::libtorch)
  target_precompile_headers(sc_pch PRIVATE <ATen/core/ivalue.h> <functional> <string> <vector>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Keeps the include in the preprocessed text, so that ccache sees it.
    target_compile_options(sc_pch PRIVATE -fpch-preprocess)
  endif()
endfunction()

# Without fused multiply-add, which some processors have and others do not: simulations and drawings are the same on all.
function(_sc_without_torch TARGET)
  target_include_directories(${TARGET} SYSTEM PRIVATE $<TARGET_PROPERTY:fmt::fmt-header-only,INTERFACE_INCLUDE_DIRECTORIES>)
  target_link_libraries(${TARGET} PRIVATE $<BUILD_INTERFACE:sc_flags>)
  target_compile_options(${TARGET} PRIVATE -ffp-contract=off)
endfunction()

function(_sc_use_torch TARGET)
  target_link_libraries(${TARGET} PRIVATE $<BUILD_INTERFACE:sc_flags>)
  # clang-tidy cannot read g++'s precompiled headers.
  if(NOT STAGECRAFT_TIDY)
    _sc_pch()
    target_precompile_headers(${TARGET} REUSE_FROM sc_pch)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      target_compile_options(${TARGET} PRIVATE -fpch-preprocess)
    endif()
  endif()
endfunction()

# sc_library(NAME base SRCS a.cpp HDRS a.h INTERNAL_HDRS b.h DEPS other [TORCH])
#
# Makes stagecraft_NAME (alias Stagecraft::NAME) from the current folder. HDRS are installed;
# INTERNAL_HDRS are for this project only. DEPS are names of other folders. TORCH: needs libtorch.
# Every header also gets a source of its own that includes nothing else, so one that does not
# compile alone breaks the build.
function(sc_library)
  cmake_parse_arguments(ARG "TORCH" "NAME" "SRCS;HDRS;INTERNAL_HDRS;DEPS" ${ARGN})
  set(target stagecraft_${ARG_NAME})
  add_library(${target} STATIC ${ARG_SRCS})
  add_library(Stagecraft::${ARG_NAME} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${ARG_NAME})
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(${target} PUBLIC cxx_std_20)
  foreach(dep ${ARG_DEPS})
    target_link_libraries(${target} PUBLIC stagecraft_${dep})
  endforeach()
  # Header-only, and never as a PUBLIC dependency: beside libtorch the wheel's own fmt is used.
  target_compile_definitions(${target} PRIVATE FMT_HEADER_ONLY)
  if(ARG_TORCH)
    target_link_libraries(${target} PUBLIC Libtorch::libtorch)
    _sc_use_torch(${target})
  else()
    _sc_without_torch(${target})
  endif()

  set(alone)
  foreach(header ${ARG_HDRS} ${ARG_INTERNAL_HDRS})
    cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY "${PROJECT_SOURCE_DIR}" OUTPUT_VARIABLE folder)
    string(MAKE_C_IDENTIFIER "${header}" id)
    set(source "${CMAKE_CURRENT_BINARY_DIR}/alone/${id}.cpp")
    file(CONFIGURE OUTPUT "${source}" CONTENT "#include \"${folder}/${header}\"\n")
    list(APPEND alone "${source}")
  endforeach()
  if(alone AND STAGECRAFT_TESTS AND NOT STAGECRAFT_SANITIZE AND NOT STAGECRAFT_TIDY)
    add_library(${target}_headers OBJECT ${alone})
    target_link_libraries(${target}_headers PRIVATE ${target} sc_flags)
    target_compile_definitions(${target}_headers PRIVATE FMT_HEADER_ONLY)
    target_compile_options(${target}_headers PRIVATE -O0 -g0)
  endif()

  set_property(GLOBAL APPEND PROPERTY SC_LIBRARIES ${target})
  install(TARGETS ${target} EXPORT StagecraftTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY "${PROJECT_SOURCE_DIR}" OUTPUT_VARIABLE folder)
  foreach(header ${ARG_HDRS})
    cmake_path(GET header PARENT_PATH inner)
    install(FILES ${header} DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/${folder}/${inner}")
  endforeach()
endfunction()

# sc_program(NAME x SRCS x.cpp DEPS base [TORCH])
function(sc_program)
  cmake_parse_arguments(ARG "TORCH" "NAME" "SRCS;DEPS;LIBRARIES" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SRCS})
  target_include_directories(${ARG_NAME} PRIVATE "${PROJECT_SOURCE_DIR}")
  foreach(dep ${ARG_DEPS})
    target_link_libraries(${ARG_NAME} PRIVATE stagecraft_${dep})
  endforeach()
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_LIBRARIES})
  target_compile_definitions(${ARG_NAME} PRIVATE FMT_HEADER_ONLY)
  if(ARG_TORCH)
    _sc_use_torch(${ARG_NAME})
  else()
    _sc_without_torch(${ARG_NAME})
  endif()
endfunction()

# sc_test(NAME tree_test SRCS tree_test.cpp DEPS tree LABELS unit [TORCH] [TIMEOUT s])
#
# A torch-linked binary is one ctest entry, since it takes half a second to start; a torch-free one is
# discovered test by test.
function(sc_test)
  cmake_parse_arguments(ARG "TORCH" "NAME;TIMEOUT" "SRCS;DEPS;LABELS;LIBRARIES" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  set(torch)
  if(ARG_TORCH)
    set(torch TORCH)
  endif()
  sc_program(NAME ${ARG_NAME} SRCS ${ARG_SRCS} DEPS ${ARG_DEPS}
             LIBRARIES GTest::gmock GTest::gtest_main ${ARG_LIBRARIES} ${torch})
  set_target_properties(${ARG_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
  if(ARG_TORCH)
    add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME})
    set_tests_properties(${ARG_NAME} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
                         ENVIRONMENT "${SC_TEST_ENVIRONMENT}")
  else()
    gtest_discover_tests(${ARG_NAME} TEST_PREFIX "${ARG_NAME}." DISCOVERY_TIMEOUT 60
                         PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
  endif()
endfunction()
