#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which kernels spill, from a build's log; fails on those that are not in a stated list.

    cmake -B build -DKEYFOLD_CUDA=ON -DCMAKE_CUDA_FLAGS=-Xptxas=-v && MAKEFLAGS=--output-sync cmake --build build -j 2 >log 2>&1
    python3 scripts/check-ptxas.py log tests/ptxas.txt

Looked for, kernel by kernel and architecture by architecture: bytes that ptxas stores and loads because registers did not
suffice, and lines of the numbers C75xx, by which it says that it made wgmma wait or ignored setmaxnreg. A line of the list
allows one of them:

    sm_90a  STORES LOADS  kernel<arguments>  : reason
    sm_90a  C7510         kernel<arguments>  : reason

What is in the list and not in the log fails as well, so that the list stays true. Fewer bytes than listed are allowed. With
--list REASON what would fail is printed as lines of the list.
"""
import re
import subprocess
import sys

PROPERTIES = re.compile(r"\d+ bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
ALLOWED = re.compile(r"(sm_\w+)\s+(?:(C75\d\d)|(\d+)\s+(\d+))\s+(.+?)\s+:\s+(\S.*)")


def readable(names):
    """{mangled: kernel<arguments>}, without the parameters."""
    names = sorted(names)
    out = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout.splitlines()
    return {name: re.sub(r"^void ", "", long).split("(", 1)[0] if "anonymous" not in long else long for name, long in zip(names, out)}


def read_log(path):
    """{(architecture, kernel): (stores, loads)} of every kernel compiled, and {(architecture, kernel, code)}."""
    used, codes, kernel, expected = {}, set(), None, False
    with open(path, encoding="utf-8", errors="replace") as log:
        for line in log:
            if compiled := re.search(r"Compiling entry function '(\w+)' for '(sm_\w+)'", line):
                kernel = (compiled[2], compiled[1])
            elif "Function properties for" in line:
                expected = kernel is not None  # also of a function that the kernel calls: it counts as the kernel's
            elif code := re.search(r"\((C75\d\d)\)", line):
                named = re.search(r"'(_Z\w+)'", line)
                codes.add((kernel[0] if kernel else "sm_?", named[1] if named else "?", code[1]))
            elif numbers := PROPERTIES.search(line):
                if not expected:
                    sys.exit("check-ptxas: the lines of several compilers are mixed: build with MAKEFLAGS=--output-sync")
                before = used.get(kernel, (0, 0))
                used[kernel] = tuple(max(int(n), most) for n, most in zip(numbers.groups(), before))
                expected = False
    if not used:
        sys.exit(f"check-ptxas: {path} tells of no kernel: build with -Xptxas=-v")
    names = readable({name for _, name in used} | {name for _, name, _ in codes if name != "?"})
    return ({(arch, names[name]): n for (arch, name), n in used.items()},
            {(arch, names.get(name, name), code) for arch, name, code in codes})


def read_list(path):
    """The allowed: {(architecture, kernel): bytes} and {(architecture, kernel, code)}."""
    allowed, codes = {}, set()
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if not line.strip() or line.startswith("#"):
                continue
            entry = ALLOWED.fullmatch(line.strip())
            if not entry:
                sys.exit(f"check-ptxas: {path}: not understood: {line.strip()}")
            arch, code, stores, loads, kernel, _ = entry.groups()
            if code:
                codes.add((arch, kernel, code))
            else:
                allowed[arch, kernel] = (int(stores), int(loads))
    return allowed, codes


def main():
    if len(sys.argv) not in (3, 5) or (len(sys.argv) == 5 and sys.argv[3] != "--list"):
        sys.exit("usage: check-ptxas.py LOG LIST [--list REASON]")
    used, codes = read_log(sys.argv[1])
    allowed, allowed_codes = read_list(sys.argv[2])
    worse = [key for key in sorted(used) if any(n > most for n, most in zip(used[key], allowed.get(key, (0, 0))))]
    if len(sys.argv) == 5:
        for arch, kernel in worse:
            print(f"{arch}  {used[arch, kernel][0]} {used[arch, kernel][1]}  {kernel}  : {sys.argv[4]}")
        return
    wrong = [f"spills, stores and loads: {arch}  {used[arch, kernel][0]} {used[arch, kernel][1]}  {kernel}" for arch, kernel in worse]
    wrong += [f"listed, but was not compiled: {arch}  {kernel}" for arch, kernel in sorted(allowed) if (arch, kernel) not in used]
    wrong += [f"listed, but does not spill: {arch}  {kernel}" for arch, kernel in sorted(allowed) if used.get((arch, kernel)) == (0, 0)]
    wrong += [f"ptxas: {arch}  {code}  {kernel}" for arch, kernel, code in sorted(codes - allowed_codes)]
    wrong += [f"listed, but ptxas does not say it: {arch}  {code}  {kernel}" for arch, kernel, code in sorted(allowed_codes - codes)]
    for line in wrong:
        print(line)
    spilling = sum(any(n) for n in used.values())
    print(f"check-ptxas: {len(used)} kernels, {spilling} spill, {len(codes)} lines C75xx; {len(wrong)} not as listed")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
