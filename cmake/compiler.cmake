# Flags for every target of the project.
add_compile_options(-Wall -Wextra -Wshadow $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor> -Wno-unknown-pragmas)
if(CAIRN_WERROR)
  add_compile_options(-Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Highway's vectors trip these when a kernel is inlined deeply.
  add_compile_options(-Wno-psabi -Wno-maybe-uninitialized -Wno-uninitialized)
endif()
# Kernels dispatch at run time; everything else asks for a processor of 2010 or later.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  add_compile_options(-march=x86-64-v2 -maes -mpclmul)
endif()
# Scores may be infinite, so no -ffast-math; errno and traps are not used.
add_compile_options(-fno-math-errno -fno-trapping-math)
if(CAIRN_SANITIZE)
  add_compile_options(-fsanitize=${CAIRN_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=${CAIRN_SANITIZE})
endif()
if(CAIRN_FUZZ)
  # Coverage for the fuzzer in every object; the programs of tests/fuzz link its main().
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=address,undefined)
endif()
