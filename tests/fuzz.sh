#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Fuzzes the GGUF reader and the tokeniser with libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer:
#
#   sh tests/fuzz.sh [SECONDS]     60 if not given
#
# Needs clang with its sanitizers, and PCRE2. New inputs go into a folder that is thrown away; an input that finds something stays as
# build-fuzz/crash-*, and the exit status is 1. Without clang or PCRE2 it says so; exit status 77.
set -u
cd "$(dirname "$0")/.." || exit 1
seconds=${1:-60}
clang=${CLANG:-clang}
model="src/model/common.c src/model/gguf.c src/model/tokenizer.c src/model/encode.c"

command -v "$clang" >/dev/null 2>&1 || { echo "fuzz: no $clang" >&2; exit 77; }
echo '#include <pcre2.h>' | "$clang" -DPCRE2_CODE_UNIT_WIDTH=8 -E -x c - >/dev/null 2>&1 || { echo "fuzz: no pcre2.h" >&2; exit 77; }

mkdir -p build-fuzz || exit 1
# shellcheck disable=SC2086
"$clang" -std=gnu11 -g -O1 -Wall -Wextra -Werror -Isrc -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -o build-fuzz/fuzz_gguf \
    tests/fuzz/fuzz_gguf.c $model -lpcre2-8 || exit 1
corpus=$(mktemp -d build-fuzz/corpus.XXXXXX) || exit 1
trap 'rm -rf "$corpus"' EXIT
trap 'exit 1' INT TERM
# A file of a few kilobytes holds every kind of entry. The time limit is far above what any of them needs.
build-fuzz/fuzz_gguf -max_total_time="$seconds" -max_len=8192 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix=build-fuzz/ \
    "$corpus" tests/fuzz/corpus_gguf 2>build-fuzz/log
status=$?
if [ $status -ne 0 ]; then
    tail -n 60 build-fuzz/log >&2
    echo "fuzz: a finding; the input is in build-fuzz/" >&2
    exit 1
fi
sed -n 's/^stat::number_of_executed_units: */fuzz: no finding in executions: /p' build-fuzz/log
