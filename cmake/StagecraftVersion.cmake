# Reads STAGECRAFT_VERSION from stagecraft/base/version.h, the only place that defines it.

set(_header "${CMAKE_CURRENT_LIST_DIR}/../stagecraft/base/version.h")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${_header}")
set(_numbers)
foreach(_part MAJOR MINOR PATCH)
  file(STRINGS "${_header}" _line REGEX "^#define STAGECRAFT_VERSION_${_part} [0-9]+$")
  if(NOT _line MATCHES "([0-9]+)$")
    message(FATAL_ERROR "${_header} has no STAGECRAFT_VERSION_${_part}")
  endif()
  list(APPEND _numbers ${CMAKE_MATCH_1})
endforeach()
list(JOIN _numbers "." STAGECRAFT_VERSION)
