#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The demo itself, after the build: two questions to the model, then attention timed on this machine.
set -u
build=${1:-build}
keyfold=$build/keyfold

if ! "$keyfold" --help | grep -q '^  generate '; then
    echo "keyfold: built without PCRE2 (libpcre2-dev), which the tokeniser needs: the model is left out" >&2
elif model=$(sh scripts/fetch-model.sh); then
    for question in "What is the capital of France?" "Why is the sky blue?"; do
        printf '\n> %s\n' "$question"
        "$keyfold" generate -m "$model" --chat -p "$question" -n 400 || exit 1
    done
else
    echo "keyfold: going on without the model: attention on random data" >&2
fi

printf '\nAttention on this machine, beside its own ceilings (keyfold bench measures more):\n'
"$keyfold" bench attention --seconds 0.5 --dtype fp32,bf16 --shape 1,8,8,2048,2048,64 --causal || exit 1
printf '\nDecode: one query over 32768 keys\n'
"$keyfold" bench attention --seconds 0.5 --dtype bf16,fp16 --shape 1,32,8,1,32768,128
