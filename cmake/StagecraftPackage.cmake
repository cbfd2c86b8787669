# cpack, from a build tree: a tarball and a Debian package of the installed files, stripped.
#
# The packages do not contain libtorch: it comes from the torch wheel, which is not a Debian package. The tool works
# without it; `stagecraft train` finds it when it starts (cli/torch_libraries.h), and find_package(Stagecraft)
# through a Python.

string(REGEX MATCH "^[0-9]+\\.[0-9]+" _torch "${Libtorch_VERSION}")
set(CPACK_GENERATOR TGZ)
find_program(STAGECRAFT_DPKG_DEB dpkg-deb)
if(STAGECRAFT_DPKG_DEB)
  list(APPEND CPACK_GENERATOR DEB)
endif()
set(CPACK_PACKAGE_NAME stagecraft)
set(CPACK_PACKAGE_VENDOR "The Stagecraft developers")
set(CPACK_PACKAGE_CONTACT "The Stagecraft developers <stagecraft@example.org>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "pipeline parallelism: schedules, their tool, and a library on libtorch")
set(CPACK_PACKAGE_DESCRIPTION "The tool makes, checks, times and draws schedules, and needs nothing else.")
if(STAGECRAFT_TORCH)
  string(APPEND CPACK_PACKAGE_DESCRIPTION
         "\nTraining with it, and programs on the library, need torch ${_torch}"
         "\n(pip install 'torch==${_torch}.*'): name its Python in STAGECRAFT_PYTHON, or the"
         "\nfolder of its libraries in STAGECRAFT_TORCH_LIB.")
endif()
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
string(TOLOWER "stagecraft-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}" CPACK_PACKAGE_FILE_NAME)
set(CPACK_PACKAGE_DIRECTORY "${PROJECT_BINARY_DIR}/packages")
set(CPACK_PACKAGE_CHECKSUM SHA256)
set(CPACK_STRIP_FILES ON)
# The line above strips programs only.
set(CPACK_PRE_BUILD_SCRIPTS "${PROJECT_SOURCE_DIR}/cmake/strip_archives.cmake")
set(CPACK_STAGECRAFT_STRIP "${CMAKE_STRIP}")
# Folders get the permissions that Debian requires, independent of the umask of the build.
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "g++, cmake, python3, openmpi-bin, mpich")
# dpkg-shlibdeps is not used: it would require a package of libtorch, and it may not be installed. The packages need C
# and C++ libraries that are at least as new as those of the build.
execute_process(COMMAND getconf GNU_LIBC_VERSION OUTPUT_VARIABLE _libc ERROR_QUIET)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6, libgcc-s1, libstdc++6")
if(_libc MATCHES "glibc ([0-9]+\\.[0-9]+)")
  set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= ${CMAKE_MATCH_1}), libgcc-s1, libstdc++6")
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  string(REGEX MATCH "^[0-9]+" _gcc "${CMAKE_CXX_COMPILER_VERSION}")
  string(APPEND CPACK_DEBIAN_PACKAGE_DEPENDS " (>= ${_gcc})")
endif()

include(CPack)
