# `cmake --install --component python` installs the files of a wheel that are not Python. (The list
# of packages in pyproject.toml names the Python files.) The folder python/ is not part of `all`,
# and CMake installs nothing from such a folder, so this is read at the root.
get_property(modules GLOBAL PROPERTY SC_PYTHON_MODULES)
install(TARGETS ${modules} LIBRARY DESTINATION stagecraft COMPONENT python EXCLUDE_FROM_ALL)
install(FILES "${PROJECT_BINARY_DIR}/python/stagecraft/_build.py" DESTINATION stagecraft COMPONENT python EXCLUDE_FROM_ALL)
set(programs stagecraft)
if(STAGECRAFT_TORCH)
  list(APPEND programs stagecraft-train stagecraft-model)
endif()
install(TARGETS ${programs} RUNTIME DESTINATION stagecraft/bin COMPONENT python EXCLUDE_FROM_ALL)
install(FILES "${PROJECT_SOURCE_DIR}/examples/corpus/pride_and_prejudice.txt"
        DESTINATION stagecraft/share/stagecraft/corpus COMPONENT python EXCLUDE_FROM_ALL)
