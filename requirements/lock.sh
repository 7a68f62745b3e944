#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Writes requirements/pip.txt, demo.txt, test.txt, bench.txt and dev.txt: today's pip, and what
# pyproject.toml's extras install, by exact version. Versions given as arguments are kept:
#
#     bash requirements/lock.sh torch==2.13.0
set -euo pipefail
export LC_ALL=C PIP_DISABLE_PIP_VERSION_CHECK=1
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf '%s\n' "$@" > "$work/kept.txt"
export PIP_CONSTRAINT="$work/kept.txt"
python3 -m venv "$work/venv"
python="$work/venv/bin/python"

# Left out: ourselves, pip (in a file of its own), and what a CUDA build of torch brings along (torch pins that itself, and
# other builds do without). A build's local name (2.13.0+cpu) is no part of the version.
installed() {
    "$python" -m pip freeze --all --exclude-editable |
        grep -vE '^(blockscale|pip|nvidia-.*|cuda-.*|triton)( @|==)' | sed -E 's/^(torch==[^+]*)\+.*/\1/' | sort -f
}

# write NAME BEFORE DESCRIPTION < installed: what is new since BEFORE
write() {
    {
        echo "# $3"
        echo "# Exact versions of everything, written by requirements/lock.sh; do not edit. To regenerate:"
        echo "#     bash requirements/lock.sh torch==2.13.0      (any version to keep, as arguments)"
        if [ -n "$2" ]; then echo "-r $2.txt"; fi
        if [ -n "$2" ]; then grep -vxFf "$work/$2.txt" "$work/$1.txt"; else cat "$work/$1.txt"; fi
    } > "requirements/$1.txt"
}

"$python" -m pip install -qq --upgrade pip
{
    echo "# pip itself, written by requirements/lock.sh; do not edit. That of Python 3.11 compares each file of an"
    echo "# index with each tag of the machine, half of the time that 'make demo' takes to install."
    "$python" -m pip freeze --all | grep '^pip=='
} > requirements/pip.txt

before=
for extra in demo test bench dev; do
    echo "resolving the extra '$extra'"
    "$python" -m pip install -qq ".[build,$extra]" # the Makefile installs without isolation
    installed > "$work/$extra.txt"
    case $extra in
        demo) why="What 'make demo' needs: blockscale's dependencies, its command line, a model, what builds it." ;;
        test) why="What 'make test' needs on top: pytest and the oracles." ;;
        bench) why="What 'make bench' needs on top of the tests: the peers that it measures." ;;
        dev) why="What 'make check' needs on top: the linter and the type checker." ;;
    esac
    write "$extra" "$before" "$why"
    if [ "$extra" = bench ]; then # dev.txt goes on from test.txt: it must name all that it needs
        grep -vxFf "$work/$before.txt" "$work/$extra.txt" > "$work/only_bench.txt"
        "$python" -m pip uninstall -qq -y -r "$work/only_bench.txt"
    else
        before=$extra
    fi
done
