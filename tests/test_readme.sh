#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The README's C example, its first ```c block, compiles with warnings as errors and runs.
set -eu
readme=$KEYFOLD_SOURCE/README.md
[ -f "$readme" ] || { echo "skip: there is no README.md"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
awk '/^```c$/ && !seen {inside = 1; seen = 1; next} /^```/ {inside = 0} inside' "$readme" >"$work/example.c"
[ -s "$work/example.c" ] || { echo "README.md has no block of C"; exit 1; }
sanitize=${KEYFOLD_SANITIZE:+-fsanitize=$KEYFOLD_SANITIZE}
${CC:-cc} -std=c11 -Wall -Wextra -Werror $sanitize -I"$KEYFOLD_SOURCE/include" "$work/example.c" -L"$KEYFOLD_BUILD" -lkeyfold \
    -Wl,-rpath,"$KEYFOLD_BUILD" -lm -o "$work/example"
"$work/example"
