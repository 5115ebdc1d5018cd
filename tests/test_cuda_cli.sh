#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A GPU's commands where there is none: a sentence and status 1, whether the backend or the device is missing; and what they refuse anywhere.
. "$(dirname "$0")/command.sh"

has() { "$keyfold" --help | grep -q "^  $1 "; }

refused 2 'verify: --isa avx2 is none of 80' verify --backend cuda --isa avx2
refused 2 'verify: --device needs a number' verify --backend cuda --device -1
refused 2 'bench: --isa 75 is none of 80' bench softmax --backend cuda --isa 75
refused 2 'profile: which operation' profile
if has generate; then
    for device in gpu cuda: cuda:x cuda:-1 cuda:2147483648; do
        refused 2 'is expected' generate -m nothing -p hello --device $device
    done
fi

if ! "$keyfold" info --backend cuda >/dev/null 2>&1; then
    refused 1 'no CUDA' info --backend cuda
    refused 1 'no CUDA' info --backend cuda --ceilings --json
    refused 1 'no CUDA' verify --backend cuda
    refused 1 'no CUDA' verify --backend cuda --device 99
    refused 1 'no CUDA' verify --backend cuda --isa 75
    refused 1 'no CUDA' bench --backend cuda
    refused 1 'no CUDA' bench softmax --backend cuda --shape 16,64
    if has tune; then refused 1 'tune: ' tune --out "$work/tuned.h"; fi
    if has generate && [ -n "${KEYFOLD_MODEL:-}" ]; then
        refused 1 'no CUDA' generate -m "$KEYFOLD_MODEL" -p hello --device cuda
        refused 1 'no CUDA' generate -m "$KEYFOLD_MODEL" -p hello --device cuda:99
    fi
fi
[ ! -e "$work/tuned.h" ] || complain "tune wrote a table that nothing was measured for"
[ "$failures" -eq 0 ] || { echo "$failures failures"; exit 1; }
