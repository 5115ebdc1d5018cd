#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs `keyfold verify` in several processes side by side and adds up what they found.
#
#   sh scripts/verify-parts.sh KEYFOLD PROCESSES FOLDER [verify's options]
#
# DEVICES, where it is set, is a list like CUDA_VISIBLE_DEVICES of which each process gets one, in turn. FOLDER gets each process's output. A
# process that a device's fault or a hang ended is followed by another one, which goes on with the next case. Cases for which there was not
# enough memory beside the others run once more at the end, in one process. Cases that --stop-after left out fail it. The last lines are the
# cases not run, by reason, and `verify: N cases, M failed`; exit status 0 only if N > 0 and M = 0.
set -u
[ $# -ge 3 ] || { sed -n '4p' "$0"; exit 2; }
keyfold=$1 parts=$2 folder=$3
shift 3
mkdir -p "$folder"
rm -f "$folder"/part-*

# device NUMBER: of DEVICES
device() {
    echo "$DEVICES" | awk -F, -v n="$1" '{ print $(n % NF + 1) }'
}

# part NUMBER OPTIONS...
part() {
    number=$1 try=0 after=
    shift
    [ -z "${DEVICES:-}" ] || export CUDA_VISIBLE_DEVICES="$(device "$number")"
    while [ "$try" -lt 200 ]; do
        log=$folder/part-$number.$try.txt
        "$keyfold" verify "$@" --names ${after:+--after "$after"} >"$log" 2>&1
        status=$?
        [ "$status" -ge 3 ] || break
        after=$(grep -E '^[a-z_]+/' "$log" | tail -n 1)
        # 3 is verify's own end, with its sums; with any other the process ended and gave no account.
        [ "$status" -eq 3 ] || printf 'FAILED %s\n    the process ended with status %s\nverify: 1 cases, 1 failed\n' "$after" "$status" >>"$log"
        [ -n "$after" ] || break
        try=$((try + 1))
    done
}

# Told to end, it still says what was found up to here, and fails.
late=0
trap 'late=1' TERM INT

number=0
while [ "$number" -lt "$parts" ]; do
    part "$number" "$@" --part "$number/$parts" &
    number=$((number + 1))
done
wait
sed -n 's/^not enough memory: //p' "$folder"/part-*.txt >"$folder/again.list"
if [ "$late" -eq 0 ] && [ -s "$folder/again.list" ]; then
    part again "$@" --cases "$folder/again.list" &
    wait
fi
[ "$late" -eq 0 ] || echo "the time was up: cases are missing"
awk -v late="$late" -v again="$([ ! -e "$folder/part-again.0.txt" ] || echo 1)" '
    /^not run: .*\(not enough memory\)/ && again && FILENAME !~ /part-again/ { next }
    /^FAILED/ { shown = 3 }
    shown > 0 { print; shown--; next }
    /^keyfold: / { print }
    /^not run: / { n = $3; sub(/^not run: [0-9]+ cases /, ""); reasons[$0] += n }
    /^kernel / {
        rank = $2 + ($3 ~ /^sequence\/|\/in-batch\/|\/no-(keys|rows|outputs)/ ? 1e15 : 0) # as each process ranks them
        if (!($4 in least) || rank < least[$4]) { least[$4] = rank; smallest[$4] = $3; threads[$4] = $2 }
    }
    /^verify: [0-9]+ cases, / { cases += $2; failed += $4 }
    END {
        for (kernel in least) printf "kernel %d %s %s\n", threads[kernel], smallest[kernel], kernel
        for (reason in reasons) printf "not run: %d cases %s\n", reasons[reason], reason
        printf "verify: %d cases, %d failed\n", cases, failed
        exit !(cases > 0 && failed == 0 && !late && !("(the time was up)" in reasons))
    }' "$folder"/part-*.txt
