#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The public header compiles by itself as C11 and as C++11, with every warning an error; includes nothing but the standard's headers; and
# declares nothing outside kf_ and KF_.
set -eu
cd "$KEYFOLD_SOURCE"
strict="-Wall -Wextra -pedantic -Werror -fsyntax-only -Iinclude"
${CC:-cc} -std=c11 $strict tests/header_c11.c
for other in gcc clang; do
    command -v $other >/dev/null 2>&1 && $other -std=c11 $strict tests/header_c11.c
done
if command -v "${CXX:-c++}" >/dev/null 2>&1; then
    "${CXX:-c++}" -std=c++11 $strict tests/header_cxx11.cc
else
    echo "no C++ compiler: C++ was not tried"
fi

includes=$(sed -n 's/^ *# *include *//p' include/keyfold.h | tr '\n' ' ')
[ "$includes" = "<float.h> <stdbool.h> <stddef.h> <stdint.h> " ] || { echo "keyfold.h includes $includes"; exit 1; }

# Macros: what the header defines beyond an empty program with the same includes.
printf '#include <float.h>\n#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>\n' >"$KEYFOLD_BUILD/empty_header.h"
${CC:-cc} -std=c11 -dM -E "$KEYFOLD_BUILD/empty_header.h" | sort >"$KEYFOLD_BUILD/macros_before"
${CC:-cc} -std=c11 -dM -E include/keyfold.h | sort >"$KEYFOLD_BUILD/macros_after"
strange=$(comm -13 "$KEYFOLD_BUILD/macros_before" "$KEYFOLD_BUILD/macros_after" | awk '{print $2}' | grep -v '^KF_\|^KEYFOLD_H$' || true)
[ -z "$strange" ] || { echo "keyfold.h defines $strange"; exit 1; }
