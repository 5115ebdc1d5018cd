#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The command line: help and version, errors as one sentence with status 2, bench and info as a user reads them and as JSON.
. "$(dirname "$0")/command.sh"

# works ARGUMENTS...: status 0 and some output
works() {
    "$keyfold" "$@" >"$work/out" 2>"$work/err" </dev/null || complain "keyfold $*: status $?: $(cat "$work/err")"
    [ -s "$work/out" ] || complain "keyfold $*: no output"
}

json() {
    works "$@"
    command -v python3 >/dev/null 2>&1 || return 0
    python3 -m json.tool "$work/out" >/dev/null 2>"$work/err" || complain "keyfold $*: not JSON: $(cat "$work/err")"
}

works --help
works --version
grep -q '^keyfold [0-9]*\.[0-9]*\.[0-9]*$' "$work/out" || complain "--version says $(cat "$work/out")"
"$keyfold" >"$work/out" 2>&1 </dev/null
[ $? -eq 2 ] || complain "keyfold without a command: not status 2"
refused 2 'unknown command "nonsense"' nonsense

works info --help
works info
json info --json
refused 2 'info: unknown option' info --nonsense
refused 2 'info: --threads' info --threads 0

works verify --help
works verify --op rope --list
refused 2 'verify: --op nonsense' verify --op nonsense
refused 2 'verify: --isa mmx is none of scalar' verify --isa mmx
refused 2 'verify: --isa avx2 is none of 80' verify --backend cuda --isa avx2
refused 2 'verify: --device goes with --backend cuda' verify --device 1
refused 2 'verify: --kernels goes with --backend cuda' verify --kernels
# What a context says of the environment must end the run, not shrink it to the scalar kernels.
KEYFOLD_ISA=mmx
export KEYFOLD_ISA
refused 1 'KEYFOLD_ISA is "mmx"' verify --quick --case softmax
refused 1 'KEYFOLD_ISA is "mmx"' info
refused 1 'KEYFOLD_ISA is "mmx"' bench softmax --shape 16,64 --seconds 0
unset KEYFOLD_ISA

works bench --help
refused 2 'bench: "nonsense" is none of' bench nonsense
if "$keyfold" --help | grep -q generate; then # built with the model library
    works bench model --backend cuda --help
    refused 2 'bench: model --backend cuda needs' bench model --backend cuda
    refused 2 'bench: --shape nonsense' bench model --backend cuda --shape nonsense
    refused 2 'bench: --rows int8' bench model --backend=cuda --shape smollm2-135m --rows int8
fi
refused 2 'bench: unknown option' bench attention --nonsense
refused 2 'bench: --shape 1,2' bench attention --shape 1,2
refused 2 'bench: --shape 1,2,3' bench softmax --shape 1,2,3
refused 2 'bench: --shape 0,4' bench softmax --shape 0,4
refused 2 'bench: --shape 8,x' bench softmax --shape 8,x
refused 2 'bench: softmax has no dtype "q4_1"' bench softmax --dtype q4_1
refused 2 'bench: --threads' bench softmax --threads -1
refused 2 'bench: --isa mmx' bench softmax --isa mmx
refused 2 'bench: --causal goes with attention' bench softmax --causal
refused 2 'bench: --rope goes with attention' bench softmax --rope

# Results: one row of each operation, small, in every format.
small() {
    case $1 in
        attention) echo 1,4,2,64,64,64 ;;
        rope | kv_append) echo 1,4,16,64 ;;
        embedding) echo 1024,100,256 ;;
        linear) echo 2,64,256 ;;
        merge) echo 2,16,64 ;;
        *) echo 16,64 ;;
    esac
}
for op in attention softmax rmsnorm swiglu rope kv_append embedding linear merge; do
    json bench $op --shape "$(small $op)" --seconds 0 --json
    command -v python3 >/dev/null 2>&1 && python3 - "$work/out" $op <<'PYTHON' || complain "bench $op --json lacks a field"
import json, sys
rows = json.load(open(sys.argv[1]))
assert len(rows) == 1
row = rows[0]
for field in "op backend isa dtype shape causal threads time_us time_us_min time_us_max gflops gbps ceiling_name ceiling share".split():
    assert field in row, field
assert row["op"] == sys.argv[2] and isinstance(row["shape"], dict)
assert 0 < row["time_us_min"] <= row["time_us"] <= row["time_us_max"]
assert row["share"] > 0 and row["ceiling"] > 0
PYTHON
done
works bench softmax --shape 16,64 --seconds 0 --csv
[ "$(wc -l <"$work/out")" -eq 2 ] || complain "bench --csv has not two lines"
works bench attention --shape 1,4,2,64,64,64 --shape 1,4,2,1,64,64 --dtype fp32,bf16 --causal --seconds 0 --threads 1 --isa scalar
[ "$(wc -l <"$work/out")" -eq 5 ] || complain "bench of two shapes and two dtypes has not five lines"
works bench softmax --shape 16,64 --seconds 0 --isa all --csv
"$keyfold" info --json >"$work/info" 2>/dev/null
grep -q "\"isa_highest\": \"$(tail -n 1 "$work/out" | tr ',' '\n' | grep -E '^(scalar|avx.*)$')\"" "$work/info" || complain "bench --isa all does not end with the highest"
refused 1 'H = 5' bench attention --shape 1,5,2,64,64,64 --seconds 0 # 5 query heads, 2 KV heads

# A full disk is a failure.
if [ -w /dev/full ]; then
    "$keyfold" info >/dev/full 2>"$work/err" && complain "keyfold info to a full disk: status 0"
fi

[ "$failures" -eq 0 ] || { echo "$failures failures"; exit 1; }
