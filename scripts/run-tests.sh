#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of a finished build and counts them.
#
#   sh scripts/run-tests.sh BUILD quick|all
#
# quick: ctest, and verify --quick on the highest ISA. all: also verify --quick under every ISA of this machine, the mutants, the
# Python package's tests, and the model's own tests with its file. What cannot run here is skipped and named. The last line reads
# `N passed, N failed, N skipped`; exit status 0 only if none failed.
set -u
build=${1:-build}
mode=${2:-quick}
keyfold=$build/keyfold
logs=$build/test-logs
passed=0 failed=0 skipped=0
mkdir -p "$logs"

pass() { passed=$((passed + 1)); echo "passed   $*"; }
fail() { failed=$((failed + 1)); echo "FAILED   $*"; }
skip() { skipped=$((skipped + 1)); echo "skipped  $*"; }
now() { date +%s; }

# step NAME COMMAND...: one test; status 77 means skipped. Its output is shown where it fails.
step() {
    name=$1; shift
    log=$logs/$(echo "$name" | tr ' /' '__').log
    begin=$(now)
    "$@" >"$log" 2>&1 </dev/null
    status=$?
    took="$(($(now) - begin)) s"
    case $status in
        0) pass "$name ($took)" ;;
        77) skip "$name: $(tail -n 1 "$log")" ;;
        *) tail -n 60 "$log"; fail "$name ($took; all of it in $log)" ;;
    esac
}

# ctest's tests count one by one.
run_ctest() {
    log=$logs/ctest.log
    ctest --test-dir "$build" --output-on-failure -j "$(nproc 2>/dev/null || echo 2)" >"$log" 2>&1 </dev/null
    status=$?
    results=$(sed -n 's/^ *[0-9]*\/[0-9]* Test *#[0-9]*: \([^ ]*\) .*\(Passed\|Skipped\|Failed\|Timeout\|Not Run\|Exception\).*/\1 \2/p' "$log")
    [ "$status" -eq 0 ] || cat "$log"
    while read -r name result; do
        case $result in
            Passed) pass "$name" ;;
            Skipped) skip "$name: $(reason_of "$name")" ;;
            *) fail "$name ($result)" ;;
        esac
    done <<RESULTS
$results
RESULTS
    if [ "$status" -ne 0 ] && [ "$failed" -eq 0 ]; then fail "ctest (status $status)"; fi
}

# A skipped test's last line says why.
reason_of() { ctest --test-dir "$build" -R "^$1\$" -V 2>/dev/null </dev/null | sed -n 's/^[0-9]*: \(skip: .*\)/\1/p' | tail -n 1; }

isas() {
    highest=$("$keyfold" info --json | sed -n 's/.*"isa_highest": "\([a-z0-9]*\)".*/\1/p')
    for isa in scalar avx2 avx512 avx512bf16; do
        echo "$isa"
        [ "$isa" = "$highest" ] && break
    done
}

verify() { KEYFOLD_ISA=$1 "$keyfold" verify --quick; }

python_tests() {
    [ -d python/tests ] || { echo "there is no Python package in this tree"; return 77; }
    in_venv python/tests
}

# What needs torch, Triton or a GPU is skipped with its name.
studies_tests() {
    [ -d studies ] || { echo "there are no studies in this tree"; return 77; }
    in_venv studies -rs
}

# in_venv ARGUMENTS...: pytest in a venv of the build's own.
in_venv() {
    venv=$build/venv
    if ! [ -x "$venv/bin/pytest" ]; then
        python3 -m venv "$venv" && "$venv/bin/pip" install --quiet --disable-pip-version-check --retries 1 --timeout 20 numpy pytest gguf ||
            { echo "numpy and pytest could not be installed"; return 77; }
    fi
    KEYFOLD_LIBRARY=$(cd "$build" && pwd)/libkeyfold.so PYTHONPATH=python "$venv/bin/python" -m pytest -q "$@"
}

# pytest's own skips: each reason counts as one.
named_skips() {
    reasons=$(sed -n 's/^SKIPPED \[\([0-9]*\)\] [^:]*:[0-9]*: \(.*\)/\1 \2/p' "$2" |
        awk '{n = $1; sub(/^[0-9]* /, ""); count[$0] += n} END {for (reason in count) print reason " (" count[reason] ")"}')
    [ -n "$reasons" ] || return 0
    while read -r reason; do skip "$1: $reason"; done <<REASONS
$reasons
REASONS
}

has_command() { "$keyfold" --help | grep -q "^  $1 "; }

if [ "$mode" = all ] && has_command generate; then
    if KEYFOLD_MODEL=$(sh scripts/fetch-model.sh); then
        export KEYFOLD_MODEL
    else
        unset KEYFOLD_MODEL
        skip "tests with the model's file: it could not be fetched"
    fi
fi

run_ctest
if has_command verify; then
    if [ "$mode" = all ]; then
        for isa in $(isas); do step "verify --quick, $isa" verify "$isa"; done
    else
        step "verify --quick" "$keyfold" verify --quick
    fi
fi
if [ "$mode" = all ]; then
    [ -f tests/mutants.sh ] && step "mutants" sh tests/mutants.sh --quick
    # In a configuration whose Python has numpy and pytest they are among ctest's.
    ctest --test-dir "$build" -N | grep -q ': python$' || step "Python package" python_tests
    step "studies" studies_tests
    named_skips "studies" "$logs/studies.log"
fi

echo
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
