#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# For a person with a GPU: builds keyfold with its CUDA backend, proves it there, and measures it.
#
#   sh scripts/gpu-check.sh            every stage that has not been done yet
#   sh scripts/gpu-check.sh STAGE...   these stages, done or not
#
# What a stage prints goes to reports/GPU/STAGE.txt, GPU being the device's name ("h200"). A stage that passed at this commit is not run
# again by itself; one that failed or was interrupted is. Each has a time limit, in seconds, which LIMIT_STAGE=N sets (LIMIT_verify=3600).
# Other settings: KEYFOLD (an existing command, which is taken in the place of building one), MUTANTS (a folder of programs, likewise, from
# `tests/mutants.sh --cuda-build`), PROCESSES, OUT (the folder of the reports), COMMIT (where this folder is no clone). On a machine of
# several GPUs that are alike, verify, large and the sanitizers are shared by them all; CUDA_VISIBLE_DEVICES says which ones are meant.
#
#   build      the library, the command, for this machine's architectures
#   verify     every case against the oracle in every way of calling, one in sixteen fifty times, large shapes scaled down; on the device as it
#              is and held to the older compute capabilities 8.0 and 8.6, which other GPUs have. Which case launches which kernel goes to
#              kernels.txt; a kernel that none launches fails the stage
#   large      the shapes asked for at full size, every element, fifty times into NaN-filled outputs
#   sequences  chains of kernels in every mode of launch, bound anew, and in a graph of the caller's; first calls inside of a capture
#   devices    where there are two: all on the second one while the first is current; tensors and streams of the other one
#   memcheck racecheck initcheck synccheck    compute-sanitizer over the smallest case of each kernel, once for each: a kernel is the same
#              machine code whatever the device is held to; racecheck and initcheck also over cases whose loops go round; "verify" comes first
#   mutants    kernels that are broken on purpose, one line at a time: verify must notice each
#   python     the Python package's tests that need a device: beside torch's flash backend and eager; where there are two, both devices
#   model      a model's logits against the CPU's, and what a token's step costs, with random weights in the shapes of three models
#   bench      speed beside the device's ceilings
#   peers      speed beside other libraries, and what was asked of it
#   dobench    Triton's do_bench of each fusion beside eager and torch.compile
#   profile    Nsight Compute over prefill, decode and each fusion
set -u
cd "$(dirname "$0")/.." || exit 1
build=${BUILD:-build}
cores=$(nproc 2>/dev/null || echo 4)
PROCESSES=${PROCESSES:-$((cores < 16 ? cores : 16))} # each has a context on the device: a few hundred megabytes
stages="build verify large sequences devices memcheck racecheck initcheck synccheck mutants python model bench peers dobench profile"

command -v nvidia-smi >/dev/null || { echo "gpu-check: there is no nvidia-smi, so no GPU"; exit 1; }
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader -i 0 | sed 's/^NVIDIA //' | tr 'A-Z ' 'a-z-')
commit=${COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || echo 'no commit')}
[ -n "$gpu" ] || { echo "gpu-check: nvidia-smi names no GPU"; exit 1; }
out=${OUT:-reports/$gpu}
work=$build/gpu-check
mkdir -p "$out" "$work"
keyfold=${KEYFOLD:-$build/keyfold}

# The devices that share the work: those that are like the first.
device_names() { nvidia-smi --query-gpu=name --format=csv,noheader; }
if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
    devices=$CUDA_VISIBLE_DEVICES
elif [ "$(device_names | sort -u | wc -l)" -eq 1 ]; then
    devices=$(device_names | awk '{ printf "%s%d", (NR > 1 ? "," : ""), NR - 1 }')
else
    devices=0
fi

# As the device is, and held to older ones.
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader -i 0 | tr -d .)
architectures=here
for arch in 80 86; do [ "$arch" -ge "${capability:-90}" ] || architectures="$architectures $arch"; done
held_to() { [ "$1" = here ] || echo "--isa $1"; }

limit_of() {
    eval "limit=\${LIMIT_$1:-}"
    case $1 in
        build | mutants) echo "${limit:-1800}" ;;
        verify) echo "${limit:-3600}" ;;
        *) echo "${limit:-1200}" ;;
    esac
}

# parts SECONDS PROCESSES FOLDER OPTIONS...: verify, shared by processes; no case is begun after SECONDS
parts() {
    seconds=$1 processes=$2 folder=$work/$3
    shift 3
    DEVICES=${shared-$devices} timeout "$((seconds + 150))" sh scripts/verify-parts.sh "$keyfold" "$processes" "$folder" --backend cuda --limit 120 --stop-after "$seconds" "$@"
}

# The architectures share the processes.
processes_each() {
    # shellcheck disable=SC2086
    set -- $architectures
    echo "$(((PROCESSES + $# - 1) / $#))"
}

# The smallest case of each kernel, in the order of the kernels, to cases-ARCHITECTURE.txt: of a kernel that several launch, the first one's.
find_smallest() {
    rm -f "$work"/cases-*.txt
    # Among them one in which initcheck once found something, however small others become.
    again=attention/report/rope-small-keys/bf16
    echo "$again" >"$work/cases-here.txt"
    for arch in $architectures; do
        touch "$work/cases-$arch.txt"
        sed -n 's/^kernel [0-9]* //p' "$work/verify-$arch.txt" | sort -k2 | sed "s/^/$arch /"
    done | awk -v work="$work" -v again="$again" 'BEGIN { listed["here", again] = 1 } !seen[$3]++ && !listed[$1, $2]++ { print $2 >>(work "/cases-" $1 ".txt") }'
}

stage_build() {
    [ -z "${KEYFOLD:-}" ] || { echo "KEYFOLD is set: $keyfold"; return 0; }
    timeout "$(limit_of build)" make CUDA=ON BUILD="$build" && "$keyfold" info --backend cuda
}

# Kernels that no case launches are named.
stage_verify() {
    status=0
    rm -f "$work"/verify-*.failed
    for arch in $architectures; do
        # shellcheck disable=SC2046
        parts "$(limit_of verify)" "$(processes_each)" "verify-$arch" --threads 1 --quick --kernels $(held_to "$arch") >"$work/verify-$arch.txt" || : >"$work/verify-$arch.failed" &
    done
    wait
    for arch in $architectures; do
        [ ! -e "$work/verify-$arch.failed" ] || status=1
        echo "architecture: $arch"
        grep -v '^kernel ' "$work/verify-$arch.txt"
    done
    find_smallest
    for arch in $architectures; do
        echo "$commit, architecture: $arch (threads, case, kernel)"
        grep '^kernel ' "$work/verify-$arch.txt" | sort -k4
    done >"$out/kernels.txt"
    sed -n 's/^kernel [0-9]* [^ ]* //p' "$out/kernels.txt" | sort -u >"$work/launched.txt"
    echo "$(wc -l <"$work/launched.txt") kernels, the smallest cases of each: $(cat "$work"/cases-*.txt | wc -l)"
    [ -s "$work/launched.txt" ] || return 1
    # The kernels are registered by their mangled names, which stand among the library's constants.
    library=$build/libkeyfold.so
    if ! objcopy -O binary --only-section=.rodata "$library" "$work/rodata" 2>/dev/null; then
        echo "kernels that no case launches: not looked for (no $library, or no objcopy)"
        return "$status"
    fi
    strings -a -n 8 "$work/rodata" | grep '^_Z' | sort -u >"$work/all.txt"
    not_launched=$(grep -vxFf "$work/launched.txt" "$work/all.txt")
    [ -z "$not_launched" ] || { echo "no case launches:"; echo "$not_launched" | c++filt 2>/dev/null || echo "$not_launched"; }
    # Some are for devices from 9.0 on alone.
    [ -z "$not_launched" ] || [ "${capability:-90}" -lt 90 ] || return 1
    return "$status"
}

# Few processes of several threads: a case's tensors and the oracle's answers are gigabytes.
stage_large() {
    threads=$((PROCESSES / 5))
    [ "$threads" -ge 1 ] || threads=1
    parts "$(limit_of large)" 6 large --threads "$threads" --large --times
    status=$?
    echo "the cases that took longest:"
    cat "$work"/large/part-* | grep '^time ' | sort -k2,2rn | head -n 12
    return "$status"
}

device_count() {
    if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then echo "$CUDA_VISIBLE_DEVICES" | tr ',' '\n' | wc -l; else nvidia-smi --list-gpus | wc -l; fi
}

stage_devices() {
    [ "$(device_count)" -ge 2 ] || { echo "there is one device"; return 77; }
    status=0 shared=
    for device in 0 1; do
        echo "device $device:"
        parts "$(limit_of devices)" 2 "devices-$device" --threads 1 --quick --device "$device" --op device || status=1
    done
    echo "every operation on device 1:"
    parts "$(limit_of devices)" "$PROCESSES" devices-all --threads 1 --quick --device 1 || status=1
    return "$status"
}

stage_sequences() {
    [ -x "$build/keyfold_cuda_sequence_check" ] || { echo "$build/keyfold_cuda_sequence_check is not built"; return 77; }
    status=0
    timeout "$(limit_of sequences)" "$build/keyfold_cuda_sequence_check" || status=1
    [ -x "$build/keyfold_cuda_first_call_check" ] || { echo "$build/keyfold_cuda_first_call_check is not built"; return "$status"; }
    timeout "$(limit_of sequences)" "$build/keyfold_cuda_first_call_check" || status=1
    return "$status"
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

# Where a place in shared memory is used again: there races are, and reads of what has not arrived.
rounds='^(attention/(decode|prefill|few-tiles|full-lists|head-dims)|linear/[^/]*/(units|wide|many-columns|many-steps)|kv_append/aligned|merge_states/two-parts|rmsnorm/aligned/(4104|16392)|softmax/fixed-split)/'

# sanitizer TOOL PATTERN OPTIONS...: the kernels' cases and those that match, shared by processes, of which each has neighbours in the list, for
# they are of the same modules: what a process loads it must instrument first. What the tool finds makes its exit status 99. When the time is up no
# case is begun any more.
sanitizer() {
    tool=$1 pattern=$2 seconds=$(limit_of "$1")
    shift 2
    command -v compute-sanitizer >/dev/null || { echo "compute-sanitizer is not installed"; return 77; }
    [ -s "$work/cases-here.txt" ] || { echo "the stage 'verify' comes first"; return 1; }
    rm -f "$work/$tool"-*
    for arch in $architectures; do cp "$work/cases-$arch.txt" "$work/$tool-$arch.cases"; done
    "$keyfold" verify --list --backend cuda --quick | grep -E "$pattern" | grep -vxFf "$work/cases-here.txt" >>"$work/$tool-here.cases"
    wanted=$(cat "$work/$tool"-*.cases | wc -l)
    most=$(((wanted + PROCESSES - 1) / PROCESSES)) number=0
    for arch in $architectures; do
        each=$((($(wc -l <"$work/$tool-$arch.cases") + most - 1) / most)) part=0
        while [ "$part" -lt "$each" ]; do
            name=$work/$tool-$arch-$part
            awk -v part="$part" -v each="$each" 'int((NR - 1) / 4) % each == part' "$work/$tool-$arch.cases" >"$name.list"
            # shellcheck disable=SC2046
            CUDA_VISIBLE_DEVICES=$(echo "$devices" | awk -F, -v n="$number" '{ print $(n % NF + 1) }') timeout "$((seconds + 60))" \
                compute-sanitizer --tool "$tool" --error-exitcode 99 "$@" "$keyfold" verify --backend cuda $(held_to "$arch") --quick \
                --once --names --times --threads 1 --stop-after "$seconds" --cases "$name.list" >"$name.txt" 2>&1 || echo "$?" >"$name.status" &
            part=$((part + 1)) number=$((number + 1))
        done
    done
    wait
    cases=$(cat "$work/$tool"-*.txt | sed -n 's/^verify: \([0-9]*\) cases.*/\1/p' | awk '{ n += $1 } END { print n + 0 }')
    failed_cases=$(cat "$work/$tool"-*.txt | sed -n 's/^verify: .* cases, \([0-9]*\) failed.*/\1/p' | awk '{ n += $1 } END { print n + 0 }')
    # A part without a case ends with 1, one that took too long with 124; every other status is a finding.
    bad=$(cat "$work/$tool"-*.status 2>/dev/null | grep -vcE '^(1|124)$')
    late=$(cat "$work/$tool"-*.status 2>/dev/null | grep -c '^124$')
    for file in "$work/$tool"-*.txt; do
        grep -q '^verify: 0 cases, 0 failed' "$file" || grep -E '^(FAILED|========= (Invalid|Error|Warning|Race|Program|Uninit|Barrier)|=========     (and|at) |.*ERROR SUMMARY: [1-9])' "$file" | head -n 40
    done
    [ "$late" -eq 0 ] || echo "$tool: $late processes ended by the time"
    echo "$tool: $cases cases of $wanted, $failed_cases failed, $bad processes with findings"
    [ "$cases" -gt 0 ] && [ "$cases" -eq "$wanted" ] && [ "$failed_cases" -eq 0 ] && [ "$bad" -eq 0 ]
}

stage_memcheck() { sanitizer memcheck '^$' --leak-check no; }
stage_racecheck() { sanitizer racecheck "$rounds"; }
stage_initcheck() { sanitizer initcheck "$rounds"; }
stage_synccheck() { sanitizer synccheck '^$'; }

stage_mutants() {
    if [ -n "${MUTANTS:-}" ]; then
        set -- --cuda-run "$MUTANTS"
    else
        set -- --cuda
    fi
    KEYFOLD_BUILD=$build timeout "$(limit_of mutants)" sh tests/mutants.sh "$@"
}

# with_python COMMAND...: where this build's library is found by the package
with_python() {
    library=$(cd "$build" && pwd)/libkeyfold.so
    KEYFOLD_COMMIT=$commit KEYFOLD_LIBRARY=$library PYTHONPATH=python${PYTHONPATH:+:$PYTHONPATH} timeout "$(limit_of "$stage")" "$@"
}

stage_python() {
    python3 -c 'import torch, pytest' 2>/dev/null || { echo "torch or pytest is not installed"; return 77; }
    with_python python3 -m pytest -q -p no:cacheprovider --tb=short -rfs python/tests/test_cuda.py python/tests/test_devices.py
}

# Every row of a report says where it is from.
stage_bench() {
    command="keyfold bench --backend cuda --seconds ${SECONDS_A_ROW:=0.5} --json"
    timeout "$(limit_of bench)" "$keyfold" info --ceilings --backend cuda || return 1
    timeout "$(limit_of bench)" "$keyfold" bench --backend cuda --seconds "$SECONDS_A_ROW" --json >"$work/bench.json"
    status=$?
    sed "s/^ {/ {\"commit\": \"$commit\", \"machine\": \"$gpu\", \"command\": \"$command\", /" "$work/bench.json" >"$out/bench.json"
    sed -n 's/.*"op": "\([^"]*\)", "variant": "\([^"]*\)".*"dtype": "\([^"]*\)", "shape": {\([^}]*\)}.*"time_us": \([0-9.]*\).*"ceiling_name": "\([^"]*\)".*"share": \([0-9.]*\).*/\1 \2 \3 (\4): \5 us, \7 of \6/p' "$work/bench.json"
    return "$status"
}

stage_peers() {
    python3 -c 'import torch' 2>/dev/null || { echo "torch is not installed"; return 77; }
    with_python python3 -m keyfold.peers --device cuda --asked --reports "$out"
}

# Plain calls, the cache cleared by writing; medians. A process for each operation: what one has printed is kept whatever the others do.
stage_dobench() {
    python3 -c 'import torch, triton' 2>/dev/null || { echo "torch or triton is not installed"; return 77; }
    status=0
    for op in rmsnorm swiglu softmax kv_append rope_attention; do
        with_python python3 -m keyfold.peers --device cuda --op "$op" --rotated q,qk --peers eager,compile --timing none --do-bench || status=1
    done
    return "$status"
}

stage_profile() {
    command -v ncu >/dev/null || { echo "ncu is not installed"; return 77; }
    status=0
    for case in "attention --shape 4,32,32,4096,4096,128 --dtype bf16" "attention --shape 2,16,16,4096,4096,64 --dtype bf16 --causal" \
        "attention --shape 1,32,32,1,8192,128 --dtype bf16" "attention --shape 1,32,8,1,8192,128 --dtype bf16" \
        "rmsnorm --shape 8192,8192 --dtype bf16" "swiglu --shape 8192,14336 --dtype bf16" "softmax --shape 4096,32000 --dtype fp32" \
        "rope --shape 1,32,4096,128 --dtype bf16" "kv_append --shape 1,32,8192,128 --dtype bf16" \
        "attention --shape 2,32,8,4096,4096,128 --dtype bf16 --causal --rope" "linear --shape 1,32000,2048 --dtype bf16" "linear --shape 1,32000,2048 --dtype q4_0"; do
        echo "== keyfold profile $case"
        # shellcheck disable=SC2086
        timeout "$(limit_of profile)" "$keyfold" profile $case || status=1
    done
    return "$status"
}

failed=0
# shellcheck disable=SC2086,SC2048
for stage in ${*:-$stages}; do
    case " $stages " in *" $stage "*) ;; *) echo "gpu-check: there is no stage $stage"; exit 2 ;; esac
    if [ $# -eq 0 ] && [ "$(cat "$work/done-$stage" 2>/dev/null)" = "$commit" ]; then
        echo "done before  $stage"
        continue
    fi
    rm -f "$work/done-$stage"
    begin=$(date +%s)
    {
        printf '%s, %s, driver %s\n%s\n' "$commit" "$gpu" \
            "$(nvidia-smi --query-gpu=driver_version --format=csv,noheader -i 0)" "sh scripts/gpu-check.sh $stage"
        "stage_$stage"
        echo "exit status $?"
    } >"$work/$stage.log" 2>&1 </dev/null
    status=$(sed -n 's/^exit status //p' "$work/$stage.log" | tail -n 1)
    cp "$work/$stage.log" "$out/$stage.txt"
    took="$(($(date +%s) - begin)) s"
    case $status in
        0) echo "passed       $stage ($took): $out/$stage.txt"; echo "$commit" >"$work/done-$stage" ;;
        77) echo "skipped      $stage: $(tail -n 2 "$work/$stage.log" | head -n 1)" ;;
        *) tail -n 30 "$work/$stage.log"; echo "FAILED       $stage ($took): $out/$stage.txt"; failed=1 ;;
    esac
done
exit "$failed"
