# Run by cpack before it packs the files: removes the debug information of the static libraries. It is the larger part
# of them, and contains the paths of the build machine.
file(GLOB_RECURSE archives "${CPACK_TEMPORARY_INSTALL_DIRECTORY}/*.a")
foreach(archive ${archives})
  execute_process(COMMAND "${CPACK_STAGECRAFT_STRIP}" --strip-debug "${archive}" COMMAND_ERROR_IS_FATAL ANY)
endforeach()
