# Makes the packages, installs them into a folder of its own and uses them as a stranger would: the tool without torch,
# training with torch named, examples/cmake_project on the library.
include("${CMAKE_CURRENT_LIST_DIR}/installed_tree.cmake")

# The files of a tree, without the tree.
function(list_files OUT TREE)
  file(GLOB_RECURSE files RELATIVE "${TREE}" "${TREE}/*")
  list(SORT files)
  set(${OUT} "${files}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE "${SCRATCH}")
file(MAKE_DIRECTORY "${SCRATCH}")
run(${CPACK} --config ${BUILD}/CPackConfig.cmake -B ${SCRATCH})

# The tarball ---------------------------------------------------------------------------------
file(GLOB tarball "${SCRATCH}/stagecraft-${VERSION}-*.tar.gz")
file(ARCHIVE_EXTRACT INPUT "${tarball}" DESTINATION "${SCRATCH}/tarball")
file(GLOB prefix "${SCRATCH}/tarball/stagecraft-${VERSION}-*")
check_tree("${prefix}")

# The Debian package --------------------------------------------------------------------------
find_program(DPKG_DEB dpkg-deb)
if(DPKG_DEB)
  file(GLOB package "${SCRATCH}/stagecraft_${VERSION}_*.deb")
  expect_output("${VERSION}\n" ${DPKG_DEB} -f ${package} Version)
  set(root "${SCRATCH}/root")
  run(id -u)
  find_program(DPKG dpkg)
  if(output EQUAL 0 AND DPKG)
    # Into a system with nothing else in it, so what it depends on is not there.
    file(MAKE_DIRECTORY "${root}/var/lib/dpkg/info" "${root}/var/lib/dpkg/updates")
    file(TOUCH "${root}/var/lib/dpkg/status" "${root}/var/lib/dpkg/available")
    run(${DPKG} --root=${root} --force-depends --force-script-chrootless -i ${package})
    run(${DPKG} --root=${root} -s stagecraft)
    if(NOT output MATCHES "Status: install ok installed")
      message(FATAL_ERROR "dpkg says of it\n${output}")
    endif()
  else()
    run(${DPKG_DEB} -x ${package} ${root})
  endif()
  list_files(in_tarball "${prefix}")
  set(prefix "${root}/usr")
  list_files(in_package "${prefix}")
  if(NOT in_tarball STREQUAL in_package)
    message(FATAL_ERROR "the tarball has\n${in_tarball}\nthe package\n${in_package}")
  endif()
  check_tree("${prefix}")
endif()

# Without torch -------------------------------------------------------------------------------
set(clean ${CMAKE_COMMAND} -E env --unset=LD_LIBRARY_PATH --unset=STAGECRAFT_TORCH_LIB)
set(tool "${prefix}/bin/stagecraft")
run(${clean} ${tool} draw 1F1B --ranks 2 --microbatches 4 --color never)
if(NOT output MATCHES "rank 1 +[.]+F0")
  message(FATAL_ERROR "draw printed\n${output}")
endif()
if(NOT PYTHON)
  foreach(command model train)
    expect_refusal("there is no stagecraft-${command} beside this program" ${clean} ${tool} ${command})
  endforeach()
  return()
endif()
foreach(command model train)
  expect_refusal("stagecraft-${command} needs torch [0-9]+[.][0-9]+, which false does not have: .*STAGECRAFT_PYTHON.*STAGECRAFT_TORCH_LIB"
                 ${clean} STAGECRAFT_PYTHON=false ${tool} ${command})
endforeach()
expect_refusal("there is no libtorch_cpu.so in it" ${clean} STAGECRAFT_TORCH_LIB=${SCRATCH} ${tool} train)
file(WRITE "${SCRATCH}/old/version.py" "__version__ = '1.2.3+cpu'\n")
file(WRITE "${SCRATCH}/old/lib/libtorch_cpu.so" "")
expect_refusal("built with torch [0-9]+[.][0-9]+; .*/old/lib has 1.2.3[+]cpu"
               ${clean} STAGECRAFT_TORCH_LIB=${SCRATCH}/old/lib ${tool} train)

# With torch ----------------------------------------------------------------------------------
foreach(command model train)
  expect_output("stagecraft ${VERSION}\n" ${clean} STAGECRAFT_TORCH_LIB=${TORCH}/lib ${tool} ${command} --version)
  expect_output("stagecraft ${VERSION}\n" ${clean} LD_LIBRARY_PATH=${TORCH}/lib ${tool}-${command} --version)
endforeach()
run(${clean} STAGECRAFT_PYTHON=${PYTHON} ${tool} train --steps 1 --layers 2 --width 16 --heads 2 --context 8
    --batch 2 --microbatches 2 --eval-every 0 --sample 0)
if(NOT output MATCHES "2 stages on 2 ranks")
  message(FATAL_ERROR "train printed\n${output}")
endif()

# The Python of the package, which calls its program back to split the model.
run(${clean} STAGECRAFT_PYTHON=${PYTHON} ${tool} compile --help)
if(NOT output MATCHES "stagecraft compile gpt.pt2 --stages 4")
  message(FATAL_ERROR "compile --help printed\n${output}")
endif()
execute_process(COMMAND ${clean} --unset=PYTHONPATH STAGECRAFT_PYTHON=${PYTHON} ${tool} compile ${ARCHIVE} --program stage0 -o ${SCRATCH}/model.scp --fix nothing
                RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT result EQUAL 1 OR NOT output MATCHES "stagecraft compile: --fix nothing: the model has no such size")
  message(FATAL_ERROR "compile ended with ${result} and printed\n${output}")
endif()

set(launcher)
if(LAUNCHER)
  set(launcher -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER})
endif()
# The example of the package, elsewhere, so that it cannot find anything of this checkout by accident.
file(COPY "${prefix}/share/doc/stagecraft/examples/cmake_project/" DESTINATION "${SCRATCH}/consumer")
run(${CMAKE_COMMAND} -S ${SCRATCH}/consumer -B ${SCRATCH}/consumer/build -G Ninja -DCMAKE_PREFIX_PATH=${prefix}
    -DSTAGECRAFT_PYTHON=${PYTHON} ${launcher})
run(${CMAKE_COMMAND} --build ${SCRATCH}/consumer/build)
expect_output("stagecraft ${VERSION}\nTensor[3, 2] float32\nTensor[2, 2] float32\nTensor[2, 2] float32\n"
              ${SCRATCH}/consumer/build/hello)
message(STATUS "packed, installed, found, built and run")
