#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# clang-tidy over what a configured build compiles, but for the tests (their headers expand to what it warns of). Settings: .clang-tidy.
#
#   sh scripts/lint.sh BUILD [FILES...]     FILES: patterns of git's; all of src and tools where there are none
set -u
build=${1:-build}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- 'src/*.c' 'tools/*.c'
command -v clang-tidy >/dev/null 2>&1 || { echo "keyfold: clang-tidy is missing: apt-get install clang-tidy" >&2; exit 1; }
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
files=$(git ls-files "$@" | while read -r file; do grep -q "/$file\"" "$build/compile_commands.json" && echo "$file"; done)
echo "$files" | xargs -P "$(nproc 2>/dev/null || echo 2)" -n 4 clang-tidy --quiet -p "$build" >"$log" 2>&1
status=$?
grep -v -E '^[0-9]+ warnings?( and [0-9]+ errors?)? generated|^$' "$log"
[ "$status" -eq 0 ] && echo "lint: $(echo "$files" | wc -l) files, nothing found"
exit "$status"
