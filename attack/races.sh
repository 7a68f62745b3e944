#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# The native library under ThreadSanitizer: clang, its OpenMP runtime, and archer, which tells the
# sanitizer what OpenMP's barriers order (Debian: apt install clang-14 libomp-14-dev llvm-14). GCC's
# runtime has no such tool, and each of its barriers would be a false alarm. The sanitizer must be part of
# the program, so Python's library gets a main of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(realpath -s "${PYTHON:-.venv/bin/python}")
archer=$(ls /usr/lib/llvm-*/lib/libarcher.so 2> /dev/null | sort -V | tail -1 || true)
clang=$(ls /usr/bin/clang++* 2> /dev/null | sort -V | tail -1 || true)
if [ -z "$clang" ] || [ -z "$archer" ]; then
    echo "not run: clang or libarcher is missing (apt install clang-14 libomp-14-dev llvm-14)"
    exit 2
fi
ask() { "$python" -c "import sysconfig as s; print($1)"; }
lib=$(ask 's.get_config_var("LIBDIR")')
name=python$(ask 's.get_config_var("LDVERSION")')
mkdir -p build/races
printf '#include <Python.h>\nint main(int n, char** words) { return Py_BytesMain(n, words); }\n' > build/races/main.cpp
"$clang" -fsanitize=thread -rdynamic "-I$(ask 's.get_path("include")')" build/races/main.cpp \
    -o build/races/python "-L$lib" "-Wl,-rpath,$lib" "-l$name" -ldl -lm
bin=$(dirname "$python")
# AVX2's files compile sooner than AVX-512's; the threads are the same.
PATH="$bin:$PATH" cmake -S . -B build/races -G Ninja -DPython_EXECUTABLE="$python" -DCMAKE_CXX_COMPILER="$clang" \
    -DCMAKE_BUILD_TYPE=RelWithDebInfo -DBLOCKSCALE_ISAS="${ISAS:-avx2}" -DCMAKE_CXX_FLAGS="-fsanitize=thread -g" \
    -DCMAKE_MODULE_LINKER_FLAGS=-fsanitize=thread --log-level=WARNING
PATH="$bin:$PATH" cmake --build build/races -j1
PYTHONPATH="$(ask 's.get_path("purelib")'):." OMP_TOOL_LIBRARIES="$archer" \
    BLOCKSCALE_NATIVE="$(echo "$PWD"/build/races/_native.*)" OMP_NUM_THREADS=4 \
    TSAN_OPTIONS="ignore_noninstrumented_modules=1 exitcode=66 report_thread_leaks=0" \
    build/races/python -W ignore -m attack.races
