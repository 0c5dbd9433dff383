# What `cmake --install` puts beside the binary: the public headers, the libraries, and a package for find_package(cairn).
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(package_directory ${CMAKE_INSTALL_LIBDIR}/cmake/cairn)
install(FILES include/cairn/cairn.h include/cairn/cairn.hpp include/cairn/error.hpp
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/cairn)
install(TARGETS cairn cairn_dependencies EXPORT cairn_static ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT cairn_static NAMESPACE cairn:: DESTINATION ${package_directory})
if(CAIRN_SHARED_LIBRARY)
  install(TARGETS cairn_shared EXPORT cairn_shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT cairn_shared NAMESPACE cairn:: DESTINATION ${package_directory})
endif()
write_basic_package_version_file(${CMAKE_BINARY_DIR}/cairnConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES cmake/cairnConfig.cmake ${CMAKE_BINARY_DIR}/cairnConfigVersion.cmake DESTINATION ${package_directory})
