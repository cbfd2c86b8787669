# Finds the libtorch inside a torch wheel and makes Libtorch::libtorch.
#
# The Python is STAGECRAFT_PYTHON (variable or environment), otherwise that of .venv next to the
# sources. The wheel's own find_package(Torch) is not used: with a CUDA wheel it demands a CUDA
# toolkit, which nothing here needs. Sets Libtorch_VERSION, Libtorch_PREFIX and Libtorch_PYTHON.

include(FindPackageHandleStandardArgs)

# Sets `out` to the absolute path of the Python: the build may be configured again from a different folder.
function(_libtorch_python out)
  set(python "${STAGECRAFT_PYTHON}")
  if(NOT python AND DEFINED ENV{STAGECRAFT_PYTHON})
    set(python "$ENV{STAGECRAFT_PYTHON}")
  endif()
  if(NOT python AND EXISTS "${CMAKE_SOURCE_DIR}/.venv/bin/python")
    set(python "${CMAKE_SOURCE_DIR}/.venv/bin/python")
  endif()
  if(python MATCHES "/")
    # Links are not resolved: the link of a virtual environment leads to a Python that does not know
    # the environment.
    cmake_path(ABSOLUTE_PATH python BASE_DIRECTORY "${CMAKE_SOURCE_DIR}" NORMALIZE)
  elseif(python)
    find_program(program NAMES "${python}" NO_CACHE)
    set(python "${program}")
  endif()
  set(${out} "${python}" PARENT_SCOPE)
endfunction()

# Asks the Python for the place and the version of its torch. torch is not imported, because this
# would take seconds.
function(_libtorch_ask python)
  set(reason "no Python with torch is known: run scripts/bootstrap, or give -DSTAGECRAFT_PYTHON=PATH (torch 2.11 to 2.15), or build without it: -DSTAGECRAFT_TORCH=OFF")
  if(python)
    execute_process(
      COMMAND "${python}" -c "
import importlib.metadata, importlib.util, os
print(os.path.dirname(importlib.util.find_spec('torch').origin))
print(importlib.metadata.version('torch'))"
      OUTPUT_VARIABLE answer ERROR_QUIET RESULT_VARIABLE result OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(result EQUAL 0)
      string(REGEX MATCH "^([^\n]*)\n([0-9]+\\.[0-9]+(\\.[0-9]+)?)" matched "${answer}")
      set(Libtorch_PREFIX "${CMAKE_MATCH_1}" PARENT_SCOPE)
      set(Libtorch_VERSION "${CMAKE_MATCH_2}" PARENT_SCOPE)
    else()
      set(reason "${python} has no torch (expected 2.11 to 2.15)")
    endif()
  endif()
  set(Libtorch_REASON "${reason}" PARENT_SCOPE)
endfunction()

function(_libtorch_targets)
  find_package(Threads REQUIRED)
  add_library(Libtorch::libtorch INTERFACE IMPORTED GLOBAL)
  target_include_directories(Libtorch::libtorch SYSTEM INTERFACE
    "${Libtorch_PREFIX}/include" "${Libtorch_PREFIX}/include/torch/csrc/api/include")
  target_compile_definitions(Libtorch::libtorch INTERFACE AT_PER_OPERATOR_HEADERS _GLIBCXX_USE_CXX11_ABI=1)
  # A CUDA wheel registers its kernels when its libraries load; the linker would drop them as unused.
  target_link_options(Libtorch::libtorch INTERFACE "LINKER:--no-as-needed")
  foreach(name torch_cpu c10 torch_cuda c10_cuda)
    set(file "${Libtorch_PREFIX}/lib/lib${name}.so")
    if(EXISTS "${file}")
      add_library(Libtorch::${name} SHARED IMPORTED GLOBAL)
      set_target_properties(Libtorch::${name} PROPERTIES IMPORTED_LOCATION "${file}")
      target_link_libraries(Libtorch::libtorch INTERFACE Libtorch::${name})
    endif()
  endforeach()
  target_link_libraries(Libtorch::libtorch INTERFACE Threads::Threads)
endfunction()

unset(Libtorch_PREFIX)
unset(Libtorch_VERSION)
_libtorch_python(Libtorch_PYTHON)
_libtorch_ask("${Libtorch_PYTHON}")
find_package_handle_standard_args(Libtorch
  REQUIRED_VARS Libtorch_PREFIX VERSION_VAR Libtorch_VERSION REASON_FAILURE_MESSAGE "${Libtorch_REASON}")
if(Libtorch_FOUND AND (Libtorch_VERSION VERSION_LESS 2.11 OR Libtorch_VERSION VERSION_GREATER_EQUAL 2.16))
  message(WARNING "torch ${Libtorch_VERSION} found; Stagecraft is for 2.11 to 2.15")
endif()
if(Libtorch_FOUND AND NOT TARGET Libtorch::libtorch)
  _libtorch_targets()
endif()
