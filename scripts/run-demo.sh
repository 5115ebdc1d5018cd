#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The demo itself, after the build: two questions to the model, then attention timed on this machine; on its GPU, too, where the build has
# found one.
set -u
build=${1:-build}
keyfold=$build/keyfold
gpu=no
if "$keyfold" info --backend cuda >/dev/null 2>&1; then gpu=yes; fi

if ! "$keyfold" --help | grep -q '^  generate '; then
    echo "keyfold: built without PCRE2 (libpcre2-dev), which the tokeniser needs: the model is left out" >&2
elif model=$(sh scripts/fetch-model.sh); then
    for question in "What is the capital of France?" "Why is the sky blue?"; do
        printf '\n> %s\n' "$question"
        "$keyfold" generate -m "$model" --chat -p "$question" -n 400 || exit 1
    done
    if [ "$gpu" = yes ]; then
        printf '\nThe same on the GPU:\n\n> %s\n' "$question"
        "$keyfold" generate -m "$model" --chat -p "$question" -n 400 --device cuda || exit 1
    fi
else
    echo "keyfold: going on without the model: attention on random data" >&2
fi

printf '\nAttention on this machine, beside its own ceilings (keyfold bench measures more):\n'
"$keyfold" bench attention --seconds 0.5 --dtype fp32,bf16 --shape 1,8,8,2048,2048,64 --causal || exit 1
printf '\nDecode: one query over 32768 keys\n'
"$keyfold" bench attention --seconds 0.5 --dtype bf16,fp16 --shape 1,32,8,1,32768,128 || exit 1
[ "$gpu" = yes ] || exit 0
printf '\nPrefill and decode on the GPU\n'
"$keyfold" bench attention --backend cuda --seconds 0.5 --dtype bf16 --shape 4,32,32,4096,4096,128 --causal || exit 1
"$keyfold" bench attention --backend cuda --seconds 0.5 --dtype bf16 --shape 1,32,8,1,8192,128
