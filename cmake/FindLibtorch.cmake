# Finds the libtorch inside a torch wheel and makes Libtorch::libtorch.
#
# The Python is STAGECRAFT_PYTHON (variable or environment), else .venv beside the sources. The wheel's
# own find_package(Torch) is not used: with a CUDA wheel it demands a CUDA toolkit, which nothing here
# needs. Sets Libtorch_VERSION, Libtorch_PREFIX and Libtorch_PYTHON.

set(_python "${STAGECRAFT_PYTHON}")
if(NOT _python AND DEFINED ENV{STAGECRAFT_PYTHON})
  set(_python "$ENV{STAGECRAFT_PYTHON}")
endif()
if(NOT _python AND EXISTS "${CMAKE_SOURCE_DIR}/.venv/bin/python")
  set(_python "${CMAKE_SOURCE_DIR}/.venv/bin/python")
endif()

unset(Libtorch_PREFIX)
unset(Libtorch_VERSION)
set(_reason "no Python with torch is known: run scripts/bootstrap, or give -DSTAGECRAFT_PYTHON=PATH (torch 2.11 to 2.13), or build without it: -DSTAGECRAFT_TORCH=OFF")
if(_python)
  # Asks for the place only: importing torch would take seconds.
  execute_process(
    COMMAND "${_python}" -c "
import importlib.metadata, importlib.util, os
print(os.path.dirname(importlib.util.find_spec('torch').origin))
print(importlib.metadata.version('torch'))"
    OUTPUT_VARIABLE _answer ERROR_VARIABLE _error RESULT_VARIABLE _result OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(_result EQUAL 0)
    string(REPLACE "\n" ";" _answer "${_answer}")
    list(GET _answer 0 Libtorch_PREFIX)
    list(GET _answer 1 Libtorch_VERSION)
    string(REGEX MATCH "^[0-9.]+[0-9]" Libtorch_VERSION "${Libtorch_VERSION}")
    find_program(Libtorch_PYTHON NAMES "${_python}" NO_CACHE)
  else()
    set(_reason "${_python} has no torch (expected 2.11 to 2.13)")
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Libtorch
  REQUIRED_VARS Libtorch_PREFIX VERSION_VAR Libtorch_VERSION REASON_FAILURE_MESSAGE "${_reason}")

if(Libtorch_FOUND AND (Libtorch_VERSION VERSION_LESS 2.11 OR Libtorch_VERSION VERSION_GREATER_EQUAL 2.14))
  message(WARNING "torch ${Libtorch_VERSION} found; Stagecraft is tested with 2.11 to 2.13")
endif()

if(Libtorch_FOUND AND NOT TARGET Libtorch::libtorch)
  find_package(Threads REQUIRED)
  add_library(Libtorch::libtorch INTERFACE IMPORTED)
  target_include_directories(Libtorch::libtorch SYSTEM INTERFACE
    "${Libtorch_PREFIX}/include" "${Libtorch_PREFIX}/include/torch/csrc/api/include")
  target_compile_definitions(Libtorch::libtorch INTERFACE AT_PER_OPERATOR_HEADERS _GLIBCXX_USE_CXX11_ABI=1)
  set(_libs "${Libtorch_PREFIX}/lib/libtorch_cpu.so" "${Libtorch_PREFIX}/lib/libc10.so")
  if(EXISTS "${Libtorch_PREFIX}/lib/libtorch_cuda.so")
    list(APPEND _libs "${Libtorch_PREFIX}/lib/libtorch_cuda.so" "${Libtorch_PREFIX}/lib/libc10_cuda.so")
  endif()
  # A CUDA wheel registers its kernels when its libraries load; the linker would drop them as unused.
  list(JOIN _libs "," _joined)
  target_link_options(Libtorch::libtorch INTERFACE "LINKER:-rpath,${Libtorch_PREFIX}/lib")
  target_link_libraries(Libtorch::libtorch INTERFACE
    "-Wl,--no-as-needed,${_joined},--as-needed" Threads::Threads)
endif()
