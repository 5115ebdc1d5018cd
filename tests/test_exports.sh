#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The shared library exports kf_ symbols alone, all that the header declares; nothing of ours ends the process or writes to a stream; it needs
# the C library and nothing else.
set -eu
library=$KEYFOLD_BUILD/libkeyfold.so
command -v nm >/dev/null 2>&1 || { echo "skip: no nm (binutils)"; exit 77; }
[ -z "${KEYFOLD_SANITIZE:-}" ] || { echo "skip: a sanitizer brings symbols of its own"; exit 77; }

exported=$(nm -D --defined-only "$library" | awk '$2 != "A" {print $3}' | sed 's/@.*//' | sort -u)
strange=$(echo "$exported" | grep -v '^kf_' || true)
[ -z "$strange" ] || { echo "exported, but not kf_: $strange"; exit 1; }

declared=$(tr '\n' ' ' <"$KEYFOLD_SOURCE/include/keyfold.h" | grep -o 'KF_API [^;{]*(' | sed 's/ *($//; s/.*[ *]//' | grep '^kf_' | sort -u)
[ "$(echo "$declared" | wc -l)" -gt 20 ] || { echo "the header's declarations were not found"; exit 1; }
for name in $declared; do
    echo "$exported" | grep -qx "$name" || { echo "declared, but not exported: $name"; exit 1; }
done
for name in $exported; do
    echo "$declared" | grep -qx "$name" || { echo "exported, but not declared: $name"; exit 1; }
done

forbidden='exit|_exit|_Exit|quick_exit|abort|raise|kill|__assert_fail|__assert|printf|vprintf|__printf_chk|__vprintf_chk|fprintf|vfprintf|__fprintf_chk'
forbidden="$forbidden|__vfprintf_chk|dprintf|vdprintf|puts|fputs|putchar|putc|fputc|fwrite|write|perror|psignal|syslog|stdout|stderr|err|errx|warn|warnx"
# In our own objects: the linked library also holds CUDA's runtime, which has its own way of dying. nvcc gives a device function's host
# side, which nobody can reach, a call of exit for a body.
called=$(nm -A --undefined-only "$KEYFOLD_BUILD/libkeyfold.a" | awk '{print $1, $NF}' | grep -Ev '\.cu\.o: exit$' | sed 's/@.*//' |
    grep -E " ($forbidden)\$" || true)
[ -z "$called" ] || { echo "the library calls: $called"; exit 1; }

# It needs the C library alone (whose parts are libraries of their own in older ones): CUDA's runtime is inside, its driver is found when a
# context is made, cuBLASLt when a product asks for it. So one library loads with and without a GPU.
if command -v readelf >/dev/null 2>&1; then
    needed=$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
    [ -n "$needed" ] || { echo "readelf names no library that $library needs"; exit 1; }
    strange=$(echo "$needed" | grep -Ev '^(lib(c|m|pthread|dl|rt|c\.musl-[a-z0-9_]*)\.so\.[0-9]+|ld-linux[-a-z0-9_]*\.so\.[0-9]+)$' || true)
    [ -z "$strange" ] || { echo "the library needs more than the C library: $strange"; exit 1; }
fi
echo "$(echo "$exported" | wc -l) symbols, all kf_"
