#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, on Debian and Ubuntu.
#
#   sh scripts/install-deps.sh build|demo|test|ci
#
# Each needs what the one before it needs. Says what it installs; asks nothing as root; uses sudo where that asks no password; else prints
# the line to run and exits with 1. What is only wished for (the model's tokeniser, pip, the tests' second opinions) may stay missing.
set -u
goal=${1:-build}
needed= # packages without which nothing works
wished= # packages without which something is left out

have() { command -v "$1" >/dev/null 2>&1; }
have_header() { [ -e "/usr/include/$1" ] || [ -e "/usr/local/include/$1" ]; }
need() { needed="$needed $*"; }
wish() { wished="$wished $*"; }

have cc || have gcc || need gcc
[ -e /usr/include/stdio.h ] || need libc6-dev
have make || need make
have cmake || need cmake
have_header pcre2.h || wish libpcre2-dev

if [ "$goal" != build ]; then
    have python3 || wish python3
    { have python3 && python3 -m pip --version >/dev/null 2>&1; } || wish python3-pip
    [ -e /etc/ssl/certs/ca-certificates.crt ] || wish ca-certificates
fi
if [ "$goal" = test ] || [ "$goal" = ci ]; then
    have c++ || have g++ || wish g++
    have pkg-config || wish pkg-config
    have nm || wish binutils
    have_header cmocka.h || wish libcmocka-dev
    have_header dlpack/dlpack.h || wish libdlpack-dev
    { have python3 && python3 -c 'import ensurepip, venv' >/dev/null 2>&1; } || wish python3-venv
fi
if [ "$goal" = ci ]; then
    have git || need git
    have clang || need clang
    have clang-format || need clang-format
    have clang-tidy || need clang-tidy
    # The sanitizers' and the fuzzer's run-time libraries
    ls /usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer* >/dev/null 2>&1 || wish "$(apt-cache search --names-only '^libclang-rt-[0-9]+-dev$' 2>/dev/null | sort -t- -k3 -n | sed -n '1s/ .*//p')"
fi

set -- $needed $wished
[ $# -gt 0 ] || exit 0
if ! have apt-get; then
    echo "keyfold: missing here, under Debian's names: $*. Install them, then run this again." >&2
    [ -z "$needed" ] && exit 0
    exit 1
fi

as_root=
if [ "$(id -u)" -ne 0 ]; then
    if have sudo && sudo -n true >/dev/null 2>&1; then
        as_root="sudo -n"
    elif [ -n "$needed" ]; then
        echo "keyfold: missing: $*. As root, run:" >&2
        echo "  apt-get update && apt-get install -y --no-install-recommends $*" >&2
        exit 1
    else
        echo "keyfold: going on without: $* (as root: apt-get install -y --no-install-recommends $*)" >&2
        exit 0
    fi
fi

log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
retries=1
apt() { $as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 -o Acquire::Retries=$retries "$@" </dev/null >"$log" 2>&1; }
reason() { grep -m 1 '^E:' "$log" || grep -m 1 '^W:' "$log" || tail -n 1 "$log"; }
known() { LC_ALL=C apt-cache policy "$1" 2>/dev/null | grep -q '^  Candidate: [^(]'; }

echo "keyfold: installing $*"
if ! apt -o APT::Update::Error-Mode=any update; then
    echo "keyfold: the package lists could not be fetched ($(reason)); trying with those that are here" >&2
    retries=0 # without a network every package would wait for its own
fi
# One that does not exist here must not keep the others out.
there=
for package in "$@"; do
    if known "$package"; then there="$there $package"; else echo "keyfold: apt knows no package $package" >&2; fi
done
if [ -n "$there" ] && ! apt install -y --no-install-recommends $there; then
    echo "keyfold: apt-get failed: $(reason)" >&2
    [ -z "$needed" ] || apt install -y --no-install-recommends $needed
fi

missing=
have cc || have gcc || missing="$missing gcc"
[ -e /usr/include/stdio.h ] || missing="$missing libc6-dev"
have make || missing="$missing make"
have cmake || missing="$missing cmake"
[ -z "$missing" ] && exit 0
echo "keyfold: cannot build without:$missing. With a network, as root, run:" >&2
echo "  apt-get update && apt-get install -y --no-install-recommends$missing" >&2
exit 1
