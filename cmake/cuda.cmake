# SPDX-License-Identifier: Apache-2.0
# nvcc, the kernels' flags, and what a program that holds the backend links to. Included where KEYFOLD_CUDA is not OFF.
include(CheckLanguage)
# Toolkits stand in folders that are seldom in PATH.
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(KEYFOLD_NVCC nvcc PATHS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda /opt/cuda PATH_SUFFIXES bin)
  mark_as_advanced(KEYFOLD_NVCC)
  if(KEYFOLD_NVCC)
    set(ENV{CUDACXX} ${KEYFOLD_NVCC})
  endif()
endif()
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  if(NOT KEYFOLD_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "KEYFOLD_CUDA is ${KEYFOLD_CUDA} and nvcc was not found; set CUDACXX or CMAKE_CUDA_COMPILER")
  endif()
  message(STATUS "nvcc not found: the CUDA backend is left out")
  return()
endif()
set(CMAKE_CUDA_ARCHITECTURES OFF) # the flags below say it, PTX included
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

set(CUDA_OPTIONS --generate-code=arch=compute_80,code=compute_80 -Xcompiler=-Wall,-Wextra,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics)
foreach(arch ${KEYFOLD_CUDA_ARCHITECTURES})
  list(APPEND CUDA_OPTIONS --generate-code=arch=compute_${arch},code=sm_${arch})
endforeach()
if(KEYFOLD_WERROR)
  list(APPEND CUDA_OPTIONS -Werror=all-warnings)
endif()
file(GLOB CUDA_SOURCES CONFIGURE_DEPENDS src/cuda/*.c src/cuda/*.cu)
set_source_files_properties(src/cuda/attention.c src/cuda/prefill_64.cu src/cuda/prefill_128.cu PROPERTIES
  COMPILE_DEFINITIONS KF_TUNE=$<BOOL:${KEYFOLD_TUNE}>)
target_sources(keyfold_objects PRIVATE ${CUDA_SOURCES})
target_compile_options(keyfold_objects PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${CUDA_OPTIONS}>")
target_include_directories(keyfold_objects PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
set_target_properties(keyfold_objects PROPERTIES CUDA_ARCHITECTURES OFF CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON
  CUDA_VISIBILITY_PRESET hidden)
foreach(target keyfold keyfold_static)
  # Nothing here needs the C++ library or nvcc at the link.
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE C CUDA_RUNTIME_LIBRARY None CUDA_ARCHITECTURES OFF)
endforeach()
target_link_libraries(keyfold PRIVATE CUDA::cudart_static)
target_link_libraries(keyfold_static PUBLIC CUDA::cudart_static)
target_link_options(keyfold PRIVATE -Wl,--exclude-libs,ALL)
set(KEYFOLD_HAVE_CUDA 1)
# For keyfold.pc: what the archive needs.
get_target_property(cudart CUDA::cudart_static IMPORTED_LOCATION)
set(KEYFOLD_LIBS_PRIVATE "${cudart} -ldl -lrt ")
