# Decides whether the sources that need CUDA's headers are built. Sets STAGECRAFT_CUDA to ON or OFF in this scope,
# and Libtorch_CUDA_INCLUDE to the folders of the headers.
#
# The headers are those of a toolkit (CUDA_HOME, /usr/local/cuda*), otherwise those of the CUDA libraries next to a CUDA
# wheel of torch. These wheels lack the folder crt, which torch's Triton has. CUDA is not linked, because torch's libraries
# link it.

set(_cuda_folders)
if(DEFINED ENV{CUDA_HOME})
  list(APPEND _cuda_folders "$ENV{CUDA_HOME}/include")
endif()
file(GLOB _cuda_toolkits /usr/local/cuda/include /usr/local/cuda-*/include)
file(GLOB _cuda_wheels "${Libtorch_PREFIX}/../nvidia/cu*/include")
list(APPEND _cuda_folders ${_cuda_toolkits} ${_cuda_wheels})

set(Libtorch_CUDA_INCLUDE)
foreach(folder ${_cuda_folders})
  if(EXISTS "${folder}/cuda_runtime_api.h")
    set(_cuda_crt "${folder}")
    if(NOT EXISTS "${folder}/crt/host_config.h")
      file(GLOB _cuda_crt "${Libtorch_PREFIX}/../triton/backends/nvidia/include")
    endif()
    if(_cuda_crt AND EXISTS "${_cuda_crt}/crt/host_config.h")
      set(Libtorch_CUDA_INCLUDE "${folder}" "${_cuda_crt}")
      list(REMOVE_DUPLICATES Libtorch_CUDA_INCLUDE)
      break()
    endif()
  endif()
endforeach()

set(_cuda_reason)
if(NOT EXISTS "${Libtorch_PREFIX}/lib/libtorch_cuda.so")
  set(_cuda_reason "this torch has no CUDA")
elseif(NOT Libtorch_CUDA_INCLUDE)
  set(_cuda_reason "CUDA's headers were not found (cuda_runtime_api.h and crt/host_config.h; pip install nvidia-cuda-runtime nvidia-cuda-crt brings them)")
endif()
if(STAGECRAFT_CUDA STREQUAL "AUTO")
  if(_cuda_reason)
    message(STATUS "Steps as CUDA graphs: no, ${_cuda_reason}")
    set(STAGECRAFT_CUDA OFF)
  else()
    message(STATUS "Steps as CUDA graphs: yes, headers in ${Libtorch_CUDA_INCLUDE}")
    set(STAGECRAFT_CUDA ON)
  endif()
elseif(STAGECRAFT_CUDA AND _cuda_reason)
  message(FATAL_ERROR "STAGECRAFT_CUDA=${STAGECRAFT_CUDA}: ${_cuda_reason}")
endif()
