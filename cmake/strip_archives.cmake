# Run by cpack over what it is about to pack: takes the debug information out of the static libraries, which is most of
# them and names the folders of whoever built it.
file(GLOB_RECURSE archives "${CPACK_TEMPORARY_INSTALL_DIRECTORY}/*.a")
foreach(archive ${archives})
  execute_process(COMMAND "${CPACK_STAGECRAFT_STRIP}" --strip-debug "${archive}" COMMAND_ERROR_IS_FATAL ANY)
endforeach()
