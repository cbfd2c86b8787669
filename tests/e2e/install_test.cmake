# Installs the build and looks at what is there. What it is good for, e2e.package tries.
include("${CMAKE_CURRENT_LIST_DIR}/installed_tree.cmake")

file(REMOVE_RECURSE "${PREFIX}")
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${PREFIX})
check_tree("${PREFIX}")
message(STATUS "installed")
