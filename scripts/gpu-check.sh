#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# For a person with a GPU: builds keyfold with its CUDA backend, proves it there, and measures it.
#
#   sh scripts/gpu-check.sh            every stage that has not been done yet
#   sh scripts/gpu-check.sh STAGE...   these stages, done or not: build verify arch sequences kernels memcheck racecheck initcheck synccheck model bench peers profile
#
# What a stage prints goes to reports/GPU/STAGE.txt, GPU being the device's name ("h200"). A stage that passed is not run again by
# itself; one that failed or was interrupted is. Each has a time limit, in seconds, which LIMIT_STAGE=N sets (LIMIT_verify=3600). Other
# settings: KEYFOLD (an existing command, which is taken in the place of building one), PROCESSES, OUT (the folder of the reports).
#
#   build      the library, the command, for this machine's architectures
#   verify     every case against the oracle; the shapes asked for at full size
#   arch       the same, quickly, held to compute capability 8.0 and 8.6, which other GPUs have
#   sequences  chains of kernels in every mode of launch, bound anew, and in a graph of the caller's
#   kernels    which case launches which kernel; the smallest of each is what the four tools run
#   memcheck … synccheck    compute-sanitizer over those
#   model      a model's logits against the CPU's, and what a token's step costs, with random weights in the shapes of three models
#   bench, peers, profile   speed beside the device's ceilings, beside other libraries; ncu over one kernel of each kind
set -u
cd "$(dirname "$0")/.." || exit 1
build=${BUILD:-build}
PROCESSES=${PROCESSES:-$(nproc 2>/dev/null || echo 4)}
[ "$PROCESSES" -le 16 ] || PROCESSES=16
stages="build verify arch sequences kernels memcheck racecheck initcheck synccheck model bench peers profile"

command -v nvidia-smi >/dev/null || { echo "gpu-check: there is no nvidia-smi, so no GPU"; exit 1; }
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader -i 0 | sed 's/^NVIDIA //' | tr 'A-Z ' 'a-z-')
[ -n "$gpu" ] || { echo "gpu-check: nvidia-smi names no GPU"; exit 1; }
out=${OUT:-reports/$gpu}
work=$build/gpu-check
mkdir -p "$out" "$work"
keyfold=${KEYFOLD:-$build/keyfold}

architectures="here 80 86"
held_to() { [ "$1" = here ] || echo "--isa $1"; }

limit_of() {
    eval "limit=\${LIMIT_$1:-}"
    case $1 in
        build) echo "${limit:-1800}" ;;
        verify) echo "${limit:-3600}" ;;
        *) echo "${limit:-1200}" ;;
    esac
}

parts() { timeout "$(limit_of "$stage")" sh scripts/verify-parts.sh "$keyfold" "$PROCESSES" "$work/$stage" --backend cuda --threads 1 --limit 120 "$@"; }

stage_build() {
    [ -z "${KEYFOLD:-}" ] || { echo "KEYFOLD is set: $keyfold"; return 0; }
    timeout "$(limit_of build)" make CUDA=ON BUILD="$build" && "$keyfold" info --backend cuda
}

stage_verify() { parts; }

stage_arch() {
    status=0
    for arch in 80 86; do
        echo "held to compute capability $arch:"
        parts --quick --isa "$arch" || status=1
    done
    return "$status"
}

stage_sequences() {
    [ -x "$build/keyfold_cuda_sequence_check" ] || { echo "$build/keyfold_cuda_sequence_check is not built"; return 77; }
    timeout "$(limit_of sequences)" "$build/keyfold_cuda_sequence_check"
}

stage_model() {
    status=0
    for types in "" "--rows bf16 --cache bf16"; do
        # shellcheck disable=SC2086
        timeout "$(limit_of model)" "$keyfold" bench model --backend cuda --shape smollm2-135m $types --check || status=1
    done
    for shape in smollm2-135m tinyllama-1.1b llama-3.2-1b; do
        for depth in 0 900; do
            timeout "$(limit_of model)" "$keyfold" bench model --backend cuda --shape "$shape" --rows bf16 --cache bf16 --depth "$depth" || status=1
        done
    done
    return "$status"
}

# The smallest case of each kernel, of this architecture and of the others'. Kernels that no case launches are named, and fail the stage.
stage_kernels() {
    for arch in $architectures; do
        echo "architecture: $arch"
        # shellcheck disable=SC2046
        parts --quick --kernels --once $(held_to "$arch") | tee "$work/kernels-$arch.txt"
        sed -n 's/^kernel [0-9]* \([^ ]*\) .*/\1/p' "$work/kernels-$arch.txt" | sort -u >"$work/cases-$arch.txt"
    done
    cat "$work"/kernels-*.txt | sed -n 's/^kernel [0-9]* [^ ]* //p' | sort -u >"$work/launched.txt"
    echo "$(wc -l <"$work/launched.txt") kernels, $(cat "$work"/cases-*.txt | sort -u | wc -l) cases"
    [ -s "$work/launched.txt" ] || return 1
    # The kernels are registered by their mangled names, which stand among the library's constants.
    library=$build/libkeyfold.so
    if ! objcopy -O binary --only-section=.rodata "$library" "$work/rodata" 2>/dev/null; then
        echo "kernels that no case launches: not looked for (no $library, or no objcopy)"
        return 0
    fi
    strings -a -n 8 "$work/rodata" | grep '^_Z' | sort -u >"$work/all.txt"
    not_launched=$(grep -vxFf "$work/launched.txt" "$work/all.txt")
    [ -z "$not_launched" ] || { echo "no case launches:"; echo "$not_launched" | c++filt 2>/dev/null || echo "$not_launched"; return 1; }
}

# sanitizer TOOL OPTIONS...: the kernels' cases, shared by processes. What the tool finds makes its exit status 99.
sanitizer() {
    tool=$1
    shift
    command -v compute-sanitizer >/dev/null || { echo "compute-sanitizer is not installed"; return 77; }
    [ -s "$work/cases-here.txt" ] || { echo "the stage 'kernels' comes first"; return 1; }
    rm -f "$work/$tool"-*
    for arch in $architectures; do
        part=0
        while [ "$part" -lt "$PROCESSES" ]; do
            # shellcheck disable=SC2046
            timeout "$(limit_of "$tool")" compute-sanitizer --tool "$tool" --error-exitcode 99 "$@" "$keyfold" verify --backend cuda $(held_to "$arch") --quick \
                --once --names --threads 1 --cases "$work/cases-$arch.txt" --part "$part/$PROCESSES" >"$work/$tool-$arch-$part.txt" 2>&1 || echo "$?" >"$work/$tool-$arch-$part.status" &
            part=$((part + 1))
        done
        wait
    done
    cases=$(cat "$work/$tool"-*.txt | sed -n 's/^verify: \([0-9]*\) cases.*/\1/p' | awk '{ n += $1 } END { print n + 0 }')
    # A part without a case ends with 1; every other status is a finding.
    bad=$(cat "$work/$tool"-*.status 2>/dev/null | grep -vc '^1$')
    for file in "$work/$tool"-*.txt; do
        grep -q '^verify: 0 cases, 0 failed' "$file" || grep -E '^(FAILED|========= (Invalid|Error|Warning|Race|Program|Uninit|Barrier)|.*ERROR SUMMARY: [1-9])' "$file" | head -n 20
    done
    echo "$tool: $cases cases, $bad processes with findings"
    [ "$cases" -gt 0 ] && [ "$bad" -eq 0 ]
}

stage_memcheck() { sanitizer memcheck --leak-check no; }
stage_racecheck() { sanitizer racecheck; }
stage_initcheck() { sanitizer initcheck; }
stage_synccheck() { sanitizer synccheck; }

stage_bench() {
    timeout "$(limit_of bench)" "$keyfold" info --ceilings --backend cuda || return 1
    timeout "$(limit_of bench)" "$keyfold" bench --backend cuda --json >"$out/bench.json" || return 1
    "$keyfold" bench --backend cuda --quick
}

stage_peers() {
    python3 -c 'import torch' 2>/dev/null || { echo "torch is not installed"; return 77; }
    library=$(cd "$build" && pwd)/libkeyfold.so
    KEYFOLD_LIBRARY=$library PYTHONPATH=python timeout "$(limit_of peers)" python3 -m keyfold.peers --device cuda --isolate --json "$out/peers.json"
}

stage_profile() {
    command -v ncu >/dev/null || { echo "ncu is not installed"; return 77; }
    status=0
    for case in "attention --shape 4,32,32,4096,4096,128 --dtype bf16" "attention --shape 1,32,8,1,8192,128 --dtype bf16" \
        "rmsnorm --shape 8192,8192 --dtype bf16" "swiglu --shape 8192,14336 --dtype bf16" "softmax --shape 4096,32000 --dtype fp32" \
        "rope --shape 1,32,4096,128 --dtype bf16" "linear --shape 1,32000,2048 --dtype bf16" "linear --shape 1,32000,2048 --dtype q4_0"; do
        echo "== $case"
        # shellcheck disable=SC2086
        timeout "$(limit_of profile)" "$keyfold" profile $case || status=1
    done
    return "$status"
}

failed=0
# shellcheck disable=SC2086,SC2048
for stage in ${*:-$stages}; do
    case " $stages " in *" $stage "*) ;; *) echo "gpu-check: there is no stage $stage"; exit 2 ;; esac
    if [ $# -eq 0 ] && [ -e "$work/done-$stage" ]; then
        echo "done before  $stage"
        continue
    fi
    rm -f "$work/done-$stage"
    begin=$(date +%s)
    {
        printf '%s, %s, driver %s\n%s\n' "$(git rev-parse --short HEAD 2>/dev/null || echo 'no commit')" "$gpu" \
            "$(nvidia-smi --query-gpu=driver_version --format=csv,noheader -i 0)" "sh scripts/gpu-check.sh $stage"
        "stage_$stage"
        echo "exit status $?"
    } >"$work/$stage.log" 2>&1 </dev/null
    status=$(sed -n 's/^exit status //p' "$work/$stage.log" | tail -n 1)
    cp "$work/$stage.log" "$out/$stage.txt"
    took="$(($(date +%s) - begin)) s"
    case $status in
        0) echo "passed       $stage ($took): $out/$stage.txt"; : >"$work/done-$stage" ;;
        77) echo "skipped      $stage: $(tail -n 2 "$work/$stage.log" | head -n 1)" ;;
        *) tail -n 30 "$work/$stage.log"; echo "FAILED       $stage ($took): $out/$stage.txt"; failed=1 ;;
    esac
done
exit "$failed"
