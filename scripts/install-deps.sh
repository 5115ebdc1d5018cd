#!/bin/sh
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

apt() { $as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 "$@" </dev/null; }

echo "keyfold: installing $*"
apt update || echo "keyfold: the package lists could not be fetched; trying with those that are here" >&2
if ! apt install -y --no-install-recommends "$@" >/dev/null; then
    # One that does not exist here must not keep the others out.
    for package in "$@"; do
        apt install -y --no-install-recommends "$package" >/dev/null || echo "keyfold: $package could not be installed" >&2
    done
fi
have cc || have gcc || { echo "keyfold: there is no C compiler: run apt-get install gcc" >&2; exit 1; }
have make && have cmake || { echo "keyfold: make or cmake is missing: run apt-get install make cmake" >&2; exit 1; }
exit 0
