#!/bin/sh
# requirements.in -> requirements.txt: every package, pinned, for Python 3.11-3.13 on Linux, macOS and Windows.
# Keeps the versions that are there already; `sh tools/lock.sh --upgrade` takes the newest.
set -eu
cd "$(dirname "$0")/.."
uv="$PWD/.venv/bin/uv"
[ -x "$uv" ] || uv=uv
unset UV_INDEX UV_INDEX_URL UV_DEFAULT_INDEX UV_EXTRA_INDEX_URL UV_FIND_LINKS || true

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sed 's/ *#.*//' requirements.in >"$work/requirements.in"
cp tools/no-cuda.txt "$work"
[ ! -f requirements.txt ] || cp requirements.txt "$work/locked.txt"
(
    cd "$work"
    "$uv" pip compile --no-config --quiet --universal --python-version 3.11 --no-header \
        --excludes no-cuda.txt --output-file locked.txt "$@" requirements.in
)
{
    echo "# Made by \`make lock\` from requirements.in, which says why each direct dependency is here. Do not edit."
    echo "# torch is installed before the rest, as the build that you choose (README): CPU, or CUDA."
    sed 's/-r requirements\.in/requirements.in/' "$work/locked.txt"
} >"$work/requirements.txt"
cp "$work/requirements.txt" requirements.txt
echo "requirements.txt: $(grep -c '^[a-z]' requirements.txt) pinned lines"
