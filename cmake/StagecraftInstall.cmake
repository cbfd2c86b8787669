# cmake --install: libraries, headers, the tool, and a package that find_package(Stagecraft) finds.

include(CMakePackageConfigHelpers)
set(_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/Stagecraft")

install(TARGETS stagecraft_all EXPORT StagecraftTargets)
install(TARGETS stagecraft RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(EXPORT StagecraftTargets NAMESPACE Stagecraft:: DESTINATION ${_package_dir})
configure_package_config_file(cmake/StagecraftConfig.cmake.in "${PROJECT_BINARY_DIR}/StagecraftConfig.cmake"
                              INSTALL_DESTINATION ${_package_dir})
write_basic_package_version_file("${PROJECT_BINARY_DIR}/StagecraftConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/StagecraftConfig.cmake"
              "${PROJECT_BINARY_DIR}/StagecraftConfigVersion.cmake" cmake/FindLibtorch.cmake
        DESTINATION ${_package_dir})
# The place and the name that Debian uses for licences.
set(_doc_dir "${CMAKE_INSTALL_DATADIR}/doc/stagecraft")
install(FILES LICENSE DESTINATION ${_doc_dir} RENAME copyright)
if(STAGECRAFT_TORCH)
  install(DIRECTORY examples/cmake_project DESTINATION ${_doc_dir}/examples)
endif()
