#!/bin/sh
# Everything that the course needs, in .venv: Python's own environment, torch, the locked requirements, the course.
# Runs again only if what it would install has changed. Called by every target of the Makefile.
#   TORCH   the build of torch: cpu (default), or a CUDA build as named by pytorch.org: cu126, cu130, ...
#   PYTHON  the Python to use, if not the first suitable one on the PATH
#   WITH    triton: chapter 15's Triton kernels as well (tools/triton.txt); none: without it again
set -eu
cd "$(dirname "$0")/.."

venv=.venv
stamp=$venv/.set-up
index=https://download.pytorch.org/whl

say() { printf '%s\n' "$*" >&2; }
stop() { say "$@"; exit 1; }

suitable() { "$1" -c 'import sys; sys.exit(not sys.version_info >= (3, 11))' >/dev/null 2>&1; }

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        suitable "$PYTHON" || stop "PYTHON=$PYTHON is not a Python 3.11 or newer."
        echo "$PYTHON"
        return
    fi
    for name in python3 python3.13 python3.12 python3.11 python; do
        if suitable "$name"; then echo "$name"; return; fi
    done
    found=$(python3 --version 2>/dev/null || python --version 2>/dev/null || echo "no Python")
    stop "The course needs Python 3.11, 3.12 or 3.13; on the PATH there is: $found." \
        "Install one (python.org, your package manager, or 'uv python install 3.12'), then run this again;" \
        "if it is somewhere else: make lab PYTHON=/path/to/python3.12"
}

# What was chosen once stays chosen: `make test` after `make lab TORCH=cu130` keeps CUDA.
chosen() { sed -n "s/^$1 //p" "$stamp" 2>/dev/null || true; }
TORCH=${TORCH:-$(chosen torch)}
TORCH=${TORCH:-cpu}
PYTHON=${PYTHON:-$(chosen python)}
WITH=${WITH:-$(chosen with)}
WITH=${WITH:-none}
case $TORCH in
    cpu | cu[0-9]*) ;;
    *) stop "TORCH=$TORCH: say cpu, or a CUDA build such as cu130." ;;
esac
case $WITH-$(uname -s) in
    triton-Linux | none-*) ;;
    triton-*) stop "There is no Triton for $(uname -s), only for Linux: leave WITH out, and its cells are skipped." ;;
    *) stop "WITH=$WITH: say triton, or none." ;;
esac

state() {
    echo "torch $TORCH"
    echo "python $PYTHON"
    echo "with $WITH"
    echo "at $PWD"
    cat requirements.txt pyproject.toml tools/setup.sh tools/triton.txt | cksum
}
if [ -x "$venv/bin/python" ] && [ "$(state)" = "$(cat "$stamp" 2>/dev/null)" ]; then
    exit 0
fi

if ! suitable "$venv/bin/python" || [ "$PYTHON" != "$(chosen python)" ]; then
    python=$(find_python)
    say "Making $venv with $("$python" --version). The first set-up takes some minutes; later ones are instant."
    "$python" -m venv --clear "$venv" || stop \
        "Python could not make an environment. On Debian and Ubuntu: sudo apt-get install python3-venv; then run this again."
fi
before=$(chosen with)
rm -f "$stamp"
python=$venv/bin/python
pip() { "$python" -m pip --disable-pip-version-check --no-input "$@"; }

torch=$(sed -n 's/^torch==\([^ ]*\).*/\1/p' requirements.txt)
has_torch() {
    "$python" - "$torch" "$TORCH" <<'PY'
import sys
from importlib.metadata import PackageNotFoundError, version
try:
    have, _, build = version("torch").partition("+")
except PackageNotFoundError:
    sys.exit(1)
want, choice = sys.argv[1:]
sys.exit(not (have == want and (build or "cpu") == choice))
PY
}
if ! has_torch; then
    say "Installing torch $torch ($TORCH)"
    case $(uname -s)-$TORCH in
        Darwin-cpu) pip install --no-deps "torch==$torch" ;;
        Darwin-*) stop "There is no CUDA on a Mac: leave TORCH out." ;;
        *)
            # The CPU build's own requirements are among the locked ones; a CUDA build brings NVIDIA's libraries.
            [ "$TORCH" = cpu ] && deps=--no-deps || deps=
            # First from where pip looks anyway (a mirror, a folder of wheels), then from PyTorch's own index.
            pip install --quiet $deps "torch==$torch+$TORCH" 2>/dev/null ||
                pip install $deps "torch==$torch+$TORCH" --index-url "$index/$TORCH"
            ;;
    esac
fi
say "Installing the locked requirements"
pip install -qq -r requirements.txt
if [ "$WITH" = triton ]; then
    say "Installing Triton"
    pip install -qq --no-deps -r tools/triton.txt
elif [ "$before" = triton ] && [ "$TORCH" = cpu ]; then
    pip uninstall -qq --yes triton
fi
pip install -qq --no-deps --no-build-isolation --editable .
"$python" -m course_utils.lab
state >"$stamp"
say "Ready: $("$python" -c 'import sys, torch; print("Python", sys.version.split()[0] + ", torch", torch.__version__)')"
