# Settings of all targets: language level, warnings, visibility, ccache, sanitizers, clang-tidy.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
# Libraries and programs need the same code model to share a precompiled header.
add_compile_options(-fPIC)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release)
endif()
# Asserts stay on. Line tables are enough for a backtrace and keep torch-linked binaries small.
set(CMAKE_CXX_FLAGS_RELEASE "-O2")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")

add_library(sc_flags INTERFACE)
target_compile_options(sc_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wnon-virtual-dtor
  -Woverloaded-virtual -Wimplicit-fallthrough $<$<BOOL:${STAGECRAFT_WERROR}>:-Werror>)

# For SC_ASSERT (stagecraft/base/assert.h).
target_compile_definitions(sc_flags INTERFACE $<$<BOOL:${STAGECRAFT_ASSERTIONS}>:STAGECRAFT_ASSERTIONS>)

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13 AND NOT STAGECRAFT_TIDY)
  # g++ 12 warns of overlapping copies in std::string that do not exist (its bug 105651).
  target_compile_options(sc_flags INTERFACE -Wno-restrict)
endif()

# The presets of the sanitizers disable STAGECRAFT_WERROR, because their instrumentation makes g++ 12 warn of
# standard headers. The plain build checks the same sources. `vptr` is disabled: for some types, the x86_64
# wheel hides the data that it compares.
if(STAGECRAFT_SANITIZE)
  add_compile_options(-fsanitize=${STAGECRAFT_SANITIZE} -fno-sanitize=vptr -fno-omit-frame-pointer
                      -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${STAGECRAFT_SANITIZE})
endif()

find_program(STAGECRAFT_CCACHE ccache)
if(STAGECRAFT_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER AND NOT STAGECRAFT_TIDY)
  # Without this sloppiness ccache refuses every file that uses a precompiled header. Clones in different folders share
  # compiled objects. With CCACHE_DEPEND, ccache learns from the compiler which files were included, and need not
  # preprocess every source itself.
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env CCACHE_DEPEND=1
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1 "${STAGECRAFT_CCACHE}")
endif()

if(STAGECRAFT_TIDY)
  find_program(STAGECRAFT_CLANG_TIDY clang-tidy REQUIRED)
  set(CMAKE_CXX_CLANG_TIDY "${STAGECRAFT_CLANG_TIDY}" --quiet)
endif()
