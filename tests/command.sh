# SPDX-License-Identifier: Apache-2.0
# For tests of the command, which read this first: where it is, a folder, and what counts failures.
set -u
keyfold=$KEYFOLD_BUILD/keyfold
[ -x "$keyfold" ] || { echo "skip: the command is not built"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
complain() { echo "$*"; failures=$((failures + 1)); }

# refused STATUS PATTERN ARGUMENTS...: that status, nothing on stdout, one line on stderr that matches
refused() {
    want=$1 pattern=$2
    shift 2
    "$keyfold" "$@" >"$work/out" 2>"$work/err" </dev/null
    got=$?
    [ "$got" -eq "$want" ] || complain "keyfold $*: status $got in place of $want"
    [ -s "$work/out" ] && complain "keyfold $*: prints $(head -n 1 "$work/out")"
    [ "$(wc -l <"$work/err")" -eq 1 ] || complain "keyfold $*: not one line on stderr: $(cat "$work/err")"
    grep -q "$pattern" "$work/err" || complain "keyfold $*: \"$(cat "$work/err")\" does not match \"$pattern\""
}
