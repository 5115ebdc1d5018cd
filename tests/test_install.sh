#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs into a staging folder and builds a C program against it three ways: pkg-config (shared and static) and CMake. The program calls
# the library and says its version.
set -eu
[ -z "${KEYFOLD_SANITIZE:-}" ] || { echo "skip: a sanitizer's library is not installed"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=/opt/keyfold
DESTDIR=$work/stage cmake --install "$KEYFOLD_BUILD" --prefix $prefix >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
root=$work/stage$prefix

cat >"$work/main.c" <<'PROGRAM'
#include <keyfold.h>
#include <stdio.h>
int main(void) {
    kf_context *context = NULL;
    if (kf_context_create(NULL, &context) != KF_OK) return 1;
    kf_context_destroy(context);
    puts(kf_version_string());
    return 0;
}
PROGRAM
version=$(sed -n 's/^project(keyfold VERSION \([0-9.]*\).*/\1/p' "$KEYFOLD_SOURCE/CMakeLists.txt")
expect() { [ "$2" = "$version" ] || { echo "$1: the program said \"$2\" in place of $version"; exit 1; }; }

find_one() { find "$root" -name "$1" | grep . || { echo "not installed: $1"; exit 1; }; }
libdir=$(dirname "$(find_one 'libkeyfold.so')")
find_one 'libkeyfold.so.0' >/dev/null
find_one 'libkeyfold.a' >/dev/null
find_one keyfold.1 >/dev/null
find_one keyfold-config.cmake >/dev/null
[ -f "$root/include/keyfold.h" ] || { echo "not installed: include/keyfold.h"; exit 1; }
[ "$("$root/bin/keyfold" --version)" = "keyfold $version" ] || { echo "the installed command does not run"; exit 1; }
if command -v objdump >/dev/null 2>&1; then
    objdump -p "$libdir/libkeyfold.so" | grep -q 'SONAME *libkeyfold.so.0$' || { echo "the SONAME is not libkeyfold.so.0"; exit 1; }
fi
if grep -rl "$KEYFOLD_SOURCE\|$work" "$root/lib" "$root/include" --include='*.pc' --include='*.cmake' --include='*.h' 2>/dev/null; then
    echo "these name a folder of the build"
    exit 1
fi

if command -v pkg-config >/dev/null 2>&1; then
    PKG_CONFIG_PATH=$libdir/pkgconfig
    PKG_CONFIG_SYSROOT_DIR=$work/stage
    export PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR
    ${CC:-cc} "$work/main.c" $(pkg-config --cflags --libs keyfold) -o "$work/shared"
    expect "pkg-config, shared" "$(LD_LIBRARY_PATH=$libdir "$work/shared")"
    cflags=$(pkg-config --cflags keyfold)
    unset PKG_CONFIG_SYSROOT_DIR # what the archive needs is not in the stage
    ${CC:-cc} "$work/main.c" $cflags "$libdir/libkeyfold.a" $(pkg-config --static --libs-only-other keyfold) \
        $(pkg-config --static --libs-only-l keyfold | sed 's/-lkeyfold//') -o "$work/static"
    expect "pkg-config, static" "$("$work/static")"
else
    echo "no pkg-config: that way was not tried"
fi

mkdir "$work/project"
mv "$work/main.c" "$work/project/"
cat >"$work/project/CMakeLists.txt" <<'PROJECT'
cmake_minimum_required(VERSION 3.18)
project(user LANGUAGES C)
find_package(keyfold 0.1 REQUIRED)
add_executable(shared main.c)
target_link_libraries(shared PRIVATE keyfold::keyfold)
add_executable(static main.c)
target_link_libraries(static PRIVATE keyfold::keyfold_static)
PROJECT
cmake -S "$work/project" -B "$work/project/build" -DCMAKE_PREFIX_PATH="$root" -DCMAKE_C_COMPILER="${CC:-cc}" >"$work/log" 2>&1 &&
    cmake --build "$work/project/build" >>"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
expect "CMake, shared" "$("$work/project/build/shared")"
expect "CMake, static" "$("$work/project/build/static")"
