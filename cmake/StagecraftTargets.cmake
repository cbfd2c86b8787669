# sc_library(NAME SRCS HDRS DEPS), sc_program, sc_test: one library target for each folder.

# Compiles several sources of a target as one translation unit, so that their common headers are read once
# (STAGECRAFT_UNITY). scripts/check_unity.py finds names that would clash. Targets change the size of a unit with the property
# UNITY_BUILD_BATCH_SIZE.
function(_sc_unity TARGET)
  set_target_properties(${TARGET} PROPERTIES UNITY_BUILD ${STAGECRAFT_UNITY} UNITY_BUILD_BATCH_SIZE 12)
  get_target_property(sources ${TARGET} SOURCES)
  list(FILTER sources EXCLUDE REGEX "[$]<")
  list(TRANSFORM sources PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/" REGEX "^[^/]")
  list(JOIN sources "\n" sources)
  file(WRITE "${PROJECT_BINARY_DIR}/unity/${TARGET}.txt" "${sources}\n")
  if(STAGECRAFT_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # In a unit, g++ treats the sources as headers, and warns of classes that have members from unnamed namespaces.
    target_compile_options(${TARGET} PRIVATE -Wno-subobject-linkage)
  endif()
  # Properties of sources are set after the target is made, so the units are made when the folder is complete.
  cmake_language(EVAL CODE "cmake_language(DEFER CALL _sc_make_units ${TARGET})")
endfunction()

# Makes the units of a target with UNITY_BUILD. CMake's own units name their sources by absolute paths, so ccache would
# compile all of them again in each clone. The units made here name them relative to the project.
function(_sc_make_units TARGET)
  get_target_property(unity ${TARGET} UNITY_BUILD)
  if(NOT unity)
    return()
  endif()
  set_target_properties(${TARGET} PROPERTIES UNITY_BUILD OFF)
  get_target_property(batch ${TARGET} UNITY_BUILD_BATCH_SIZE)
  set(together)
  get_target_property(sources ${TARGET} SOURCES)
  foreach(source ${sources})
    if(NOT source MATCHES "[.]cpp$" OR source MATCHES "[$]<")
      continue()
    endif()
    # A source with settings of its own is compiled alone.
    set(alone OFF)
    foreach(setting SKIP_UNITY_BUILD_INCLUSION COMPILE_DEFINITIONS COMPILE_OPTIONS INCLUDE_DIRECTORIES)
      get_source_file_property(value "${source}" ${setting})
      if(value)
        set(alone ON)
      endif()
    endforeach()
    cmake_path(ABSOLUTE_PATH source NORMALIZE OUTPUT_VARIABLE file)
    cmake_path(IS_PREFIX PROJECT_SOURCE_DIR "${file}" inside)
    if(inside AND NOT alone)
      list(APPEND together "${source}")
    endif()
  endforeach()
  list(LENGTH together count)
  if(count LESS 2)
    return()
  endif()
  target_include_directories(${TARGET} PRIVATE "${PROJECT_SOURCE_DIR}")
  math(EXPR last "${count} - 1")
  foreach(begin RANGE 0 ${last} ${batch})
    list(SUBLIST together ${begin} ${batch} unit)
    set(text "")
    foreach(source ${unit})
      cmake_path(ABSOLUTE_PATH source NORMALIZE)
      cmake_path(RELATIVE_PATH source BASE_DIRECTORY "${PROJECT_SOURCE_DIR}")
      string(APPEND text "#include \"${source}\"\n")
    endforeach()
    set_source_files_properties(${unit} PROPERTIES HEADER_FILE_ONLY ON)
    set(file "${PROJECT_BINARY_DIR}/unity/${TARGET}/unit_${begin}.cpp")
    file(CONFIGURE OUTPUT "${file}" CONTENT "${text}" @ONLY)
    target_sources(${TARGET} PRIVATE "${file}")
  endforeach()
endfunction()

# Compiles headers alone (see sc_library).
add_custom_target(header_checks)

# The wheel's headers come first: it has its own fmt, and a different version of fmt may be in a folder with GoogleTest or
# JSON.
function(_sc_torch_headers_first TARGET)
  target_include_directories(${TARGET} SYSTEM BEFORE PRIVATE
    $<BUILD_INTERFACE:$<TARGET_PROPERTY:Libtorch::libtorch,INTERFACE_INCLUDE_DIRECTORIES>>)
endfunction()

# Makes a target NAME whose precompiled header others reuse. It has the given headers.
function(_sc_pch NAME)
  if(TARGET ${NAME})
    return()
  endif()
  set(source "${PROJECT_BINARY_DIR}/${NAME}.cpp")
  file(CONFIGURE OUTPUT "${source}" CONTENT "// Carries a precompiled header.\n")
  add_library(${NAME} OBJECT EXCLUDE_FROM_ALL "${source}")
  target_include_directories(${NAME} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_compile_definitions(${NAME} PRIVATE STAGECRAFT_TORCH)
  _sc_torch_headers_first(${NAME})
  target_link_libraries(${NAME} PRIVATE sc_flags Libtorch::libtorch)
  target_compile_options(${NAME} PRIVATE ${SC_TEST_OPTIMISATION})
  target_precompile_headers(${NAME} PRIVATE ${ARGN})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # The include stays in the preprocessed text, so that ccache sees it.
    target_compile_options(${NAME} PRIVATE -fpch-preprocess)
  endif()
endfunction()

# Compiles without fused multiply-add, which not all processors have, so that simulations and drawings are the same on
# all of them.
function(_sc_without_torch TARGET)
  target_include_directories(${TARGET} SYSTEM PRIVATE $<TARGET_PROPERTY:fmt::fmt-header-only,INTERFACE_INCLUDE_DIRECTORIES>)
  target_link_libraries(${TARGET} PRIVATE $<BUILD_INTERFACE:sc_flags>)
  target_compile_options(${TARGET} PRIVATE -ffp-contract=off ${SC_TEST_OPTIMISATION})
  _sc_unity(${TARGET})
endfunction()

# Gives a target a precompiled header: that of the library, with headers that nearly every source includes; below tests/
# (SC_TEST_CODE) the same with GoogleTest; with USER that of users' programs, with the header of the whole library.
# (torch/torch.h is not in it, because loading it would take longer than compiling it.)
function(_sc_use_torch TARGET)
  cmake_parse_arguments(ARG "USER" "" "" ${ARGN})
  _sc_torch_headers_first(${TARGET})
  target_link_libraries(${TARGET} PRIVATE $<BUILD_INTERFACE:sc_flags> stagecraft_torch_fmt)
  target_compile_options(${TARGET} PRIVATE ${SC_TEST_OPTIMISATION})
  _sc_unity(${TARGET})
  # clang-tidy cannot read g++'s precompiled headers.
  if(STAGECRAFT_PCH AND NOT STAGECRAFT_TIDY)
    set(common <ATen/core/ivalue.h> <fmt/format.h> <functional> <string> <vector>)
    if(ARG_USER)
      set(pch sc_user_pch)
      _sc_pch(${pch} "${PROJECT_SOURCE_DIR}/stagecraft/stagecraft.h")
    elseif(SC_TEST_CODE)
      set(pch sc_test_pch)
      _sc_pch(${pch} ${common} <gmock/gmock.h> <gtest/gtest.h>)
      # The target and the precompiled header must have the same definitions.
      target_link_libraries(${pch} PRIVATE GTest::gmock)
      target_link_libraries(${TARGET} PRIVATE GTest::gmock)
    else()
      set(pch sc_pch)
      _sc_pch(${pch} ${common})
    endif()
    target_precompile_headers(${TARGET} REUSE_FROM ${pch})
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      target_compile_options(${TARGET} PRIVATE -fpch-preprocess)
    endif()
  endif()
endfunction()

# sc_library(NAME base SRCS a.cpp HDRS a.h INTERNAL_HDRS b.h DEPS other [TORCH])
#
# Makes stagecraft_NAME (alias Stagecraft::NAME) from the current folder. HDRS are installed; INTERNAL_HDRS are for this
# project only. DEPS are names of other folders. TORCH: needs libtorch. If sources are compiled alone (STAGECRAFT_UNITY=OFF),
# every header also gets a source that includes nothing else, so a header that does not compile alone breaks the build. An
# internal header gets one only if no source of its name includes it first.
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
  if(ARG_TORCH)
    target_link_libraries(${target} PUBLIC Libtorch::libtorch)
    _sc_use_torch(${target})
  else()
    _sc_without_torch(${target})
  endif()

  set(alone)
  set(headers ${ARG_HDRS})
  foreach(header ${ARG_INTERNAL_HDRS})
    string(REGEX REPLACE "h$" "cpp" source "${header}")
    if(NOT source IN_LIST ARG_SRCS)
      list(APPEND headers ${header})
    endif()
  endforeach()
  foreach(header ${headers})
    cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY "${PROJECT_SOURCE_DIR}" OUTPUT_VARIABLE folder)
    string(MAKE_C_IDENTIFIER "${header}" id)
    set(source "${CMAKE_CURRENT_BINARY_DIR}/alone/${id}.cpp")
    file(CONFIGURE OUTPUT "${source}" CONTENT "#include \"${folder}/${header}\"\n")
    list(APPEND alone "${source}")
  endforeach()
  if(alone AND STAGECRAFT_TESTS AND NOT STAGECRAFT_UNITY AND NOT STAGECRAFT_TIDY)
    add_library(${target}_headers OBJECT EXCLUDE_FROM_ALL ${alone})
    add_dependencies(header_checks ${target}_headers)
    target_link_libraries(${target}_headers PRIVATE ${target} sc_flags)
    if(ARG_TORCH)
      # A precompiled header would add parts of the standard library and of torch, so `make single-files` uses
      # none.
      _sc_use_torch(${target}_headers)
    endif()
  endif()

  set_property(GLOBAL APPEND PROPERTY SC_LIBRARIES ${target})
  install(TARGETS ${target} EXPORT StagecraftTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY "${PROJECT_SOURCE_DIR}" OUTPUT_VARIABLE folder)
  foreach(header ${ARG_HDRS})
    set_property(GLOBAL APPEND PROPERTY SC_INSTALLED_HEADERS "${CMAKE_CURRENT_SOURCE_DIR}/${header}")
    cmake_path(GET header PARENT_PATH inner)
    install(FILES ${header} DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/${folder}/${inner}")
  endforeach()
endfunction()

# sc_program(NAME x SRCS x.cpp DEPS base [TORCH [USER]]). USER: a program as users write it, with
# stagecraft.h.
function(sc_program)
  cmake_parse_arguments(ARG "TORCH;USER" "NAME" "SRCS;DEPS;LIBRARIES" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SRCS})
  target_include_directories(${ARG_NAME} PRIVATE "${PROJECT_SOURCE_DIR}")
  foreach(dep ${ARG_DEPS})
    target_link_libraries(${ARG_NAME} PRIVATE stagecraft_${dep})
  endforeach()
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_LIBRARIES})
  if(STAGECRAFT_SANITIZE MATCHES "thread")
    # Shows ThreadSanitizer the lock of std::timed_mutex.
    target_sources(${ARG_NAME} PRIVATE "${PROJECT_SOURCE_DIR}/tests/support/tsan_clocklock.cpp")
    set_source_files_properties("${PROJECT_SOURCE_DIR}/tests/support/tsan_clocklock.cpp"
                                PROPERTIES SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
  if(ARG_TORCH)
    set(user)
    if(ARG_USER)
      set(user USER)
    endif()
    _sc_use_torch(${ARG_NAME} ${user})
  else()
    _sc_without_torch(${ARG_NAME})
  endif()
endfunction()

# Sets ARG_TIMEOUT of a test in seconds, unless it was given; sanitizers take longer.
macro(_sc_timeout)
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(STAGECRAFT_SANITIZE)
    math(EXPR ARG_TIMEOUT "5 * ${ARG_TIMEOUT}")
  endif()
endmacro()

# Tests that hold a lock run one after the other. ctest starts expensive tests first, so that this chain has the whole
# run.
set(SC_LOCKED_COST 150)

# sc_test(NAME tree_test SRCS tree_test.cpp DEPS tree LABELS unit [TORCH] [TIMEOUT s])
#
# A torch-linked binary is one ctest entry, because it takes half a second to start. A torch-free
# binary is discovered test by test.
function(sc_test)
  cmake_parse_arguments(ARG "TORCH" "NAME;TIMEOUT" "SRCS;DEPS;LABELS;LIBRARIES" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  _sc_timeout()
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
    # Tests of several processes that detect each other's silence. Only one such test runs at a time, together with
    # tests of a single process. (Tests with MPI run alone, because their processes wait by polling.)
    if("multiproc" IN_LIST ARG_LABELS)
      set_tests_properties(${ARG_NAME} PROPERTIES RESOURCE_LOCK processes COST ${SC_LOCKED_COST}
                           ENVIRONMENT "${SC_SAME_BITS_ENVIRONMENT}")
    endif()
  else()
    gtest_discover_tests(${ARG_NAME} TEST_PREFIX "${ARG_NAME}." DISCOVERY_TIMEOUT 60
                         PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
  endif()
endfunction()

# sc_mpi_labels(OUT MPI): the labels of a test with one MPI. With the first MPI that was found, the test is part of `make
# test`. With other MPIs it is labelled slow: MPIs rarely differ if the conformance suite, which runs with all of them,
# finds no difference.
function(sc_mpi_labels OUT MPI)
  get_property(mpis GLOBAL PROPERTY SC_MPIS)
  list(GET mpis 0 first)
  set(labels "multiproc;mpi")
  if(NOT MPI STREQUAL first)
    set(labels slow)
  endif()
  set(${OUT} "${labels}" PARENT_SCOPE)
endfunction()

# sc_mpi_test(NAME x_test PROCESSES 2 4 [SLOW_PROCESSES 3] SRCS x_test.cpp DEPS runtime [LIBRARIES l] [TIMEOUT s] [EVERY_MPI])
#
# A test program that mpirun starts (tests/support/mpi_main.cpp): an entry x_test.MPI.N for each MPI that was found and
# each number of processes. EVERY_MPI: `make test` runs it with all MPIs (sc_mpi_labels).
function(sc_mpi_test)
  cmake_parse_arguments(ARG "EVERY_MPI" "NAME;TIMEOUT" "PROCESSES;SLOW_PROCESSES;SRCS;DEPS;LIBRARIES" ${ARGN})
  get_property(mpis GLOBAL PROPERTY SC_MPIS)
  if(NOT mpis)
    return()
  endif()
  _sc_timeout()
  sc_program(NAME ${ARG_NAME} TORCH SRCS ${ARG_SRCS} DEPS ${ARG_DEPS} LIBRARIES sc_test_mpi GTest::gmock ${ARG_LIBRARIES})
  set_target_properties(${ARG_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
  foreach(mpi ${mpis})
    add_dependencies(${ARG_NAME} stagecraft_${mpi})
    sc_mpi_run(command ${mpi})
    sc_mpi_labels(labels ${mpi})
    if(ARG_EVERY_MPI)
      set(labels "multiproc;mpi")
    endif()
    foreach(count ${ARG_PROCESSES} ${ARG_SLOW_PROCESSES})
      if(count IN_LIST ARG_SLOW_PROCESSES)
        set(labels slow)
      endif()
      set(test ${ARG_NAME}.${mpi}.${count})
      add_test(NAME ${test} COMMAND ${command} -np ${count} $<TARGET_FILE:${ARG_NAME}>)
      set_tests_properties(${test} PROPERTIES LABELS "${labels}" TIMEOUT ${ARG_TIMEOUT} RUN_SERIAL ON
                           ENVIRONMENT "${SC_SAME_BITS_ENVIRONMENT};${SC_MPI_ENVIRONMENT}")
    endforeach()
  endforeach()
endfunction()

# Allows Open MPI to run as root and with more processes than cores. MPICH needs no options for
# this.
set(SC_MPI_ENVIRONMENT OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1)
function(sc_mpi_run OUT MPI)
  string(TOUPPER "STAGECRAFT_${MPI}_RUN" run)
  set(command "${${run}}")
  if(MPI STREQUAL "openmpi")
    list(APPEND command --oversubscribe --bind-to none)
  endif()
  set(${OUT} "${command}" PARENT_SCOPE)
endfunction()

# sc_depend_on_all_below(TARGET folder...): makes the target depend on every target of these folders and those below.
function(sc_depend_on_all_below TARGET)
  foreach(folder ${ARGN})
    cmake_path(ABSOLUTE_PATH folder BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}" NORMALIZE)
    get_property(targets DIRECTORY "${folder}" PROPERTY BUILDSYSTEM_TARGETS)
    get_property(folders DIRECTORY "${folder}" PROPERTY SUBDIRECTORIES)
    if(targets)
      add_dependencies(${TARGET} ${targets})
    endif()
    sc_depend_on_all_below(${TARGET} ${folders})
  endforeach()
endfunction()
