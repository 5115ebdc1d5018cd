# SPDX-License-Identifier: Apache-2.0
# What `make install` puts where: libraries, header, pkg-config file, CMake package, command, man page, bash completion. All of it is
# relocatable: no file names the prefix but keyfold.pc.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS keyfold keyfold_static EXPORT keyfold-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES include/keyfold.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/keyfold)
install(EXPORT keyfold-targets NAMESPACE keyfold:: DESTINATION ${package})
configure_package_config_file(cmake/keyfold-config.cmake.in ${CMAKE_BINARY_DIR}/keyfold-config.cmake INSTALL_DESTINATION ${package})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/keyfold-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/keyfold-config.cmake ${CMAKE_BINARY_DIR}/keyfold-config-version.cmake DESTINATION ${package})

# Made when installing, for only then is the prefix known.
install(CODE "
  set(PREFIX \"\${CMAKE_INSTALL_PREFIX}\")
  set(LIBDIR \"${CMAKE_INSTALL_LIBDIR}\")
  set(INCLUDEDIR \"${CMAKE_INSTALL_INCLUDEDIR}\")
  set(VERSION \"${PROJECT_VERSION}\")
  set(LIBS_PRIVATE \"${KEYFOLD_LIBS_PRIVATE}\")
  configure_file(\"${CMAKE_SOURCE_DIR}/cmake/keyfold.pc.in\" \"${CMAKE_BINARY_DIR}/keyfold.pc\" @ONLY)")
install(FILES ${CMAKE_BINARY_DIR}/keyfold.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

if(TARGET keyfold_command)
  install(TARGETS keyfold_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(FILES docs/keyfold.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES scripts/keyfold.bash DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/bash-completion/completions RENAME keyfold)
endif()
