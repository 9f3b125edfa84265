#!/bin/sh
# nbgrader and otter-grader in .peers: an environment of their own that sees the packages of .venv and
# changes none of them. `make test` grades with nbgrader what we write for it; `make bench` times both.
# Runs again only if what it would install has changed.
#   VENV    the course's own environment, if not .venv
#   --lock  write the pins in tools/peers.txt again
set -eu
cd "$(dirname "$0")/.."

venv=${VENV:-.venv}
peers=.peers
list=tools/peers.txt
stamp=$peers/.set-up

say() { printf '%s\n' "$*" >&2; }
[ -x "$venv/bin/python" ] || { say "There is no $venv: sh tools/setup.sh makes it."; exit 1; }

lock() {
    uv=$venv/bin/uv
    unset UV_INDEX UV_INDEX_URL UV_DEFAULT_INDEX UV_EXTRA_INDEX_URL UV_FIND_LINKS || true
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    sed -n 's/ *# wanted$//p' "$list" >"$work/wanted.in"
    "$uv" pip compile --no-config --quiet --universal --python-version 3.11 --no-header --no-annotate \
        --constraints requirements.txt --excludes tools/no-cuda.txt \
        --output-file "$work/all.txt" "$work/wanted.in"
    sed -n 's/^\([a-zA-Z0-9_.-]*\)==.*/\1/p' requirements.txt >"$work/have"
    {
        sed -n '/^#/p; / # wanted$/p' "$list"
        while read -r line; do
            grep -qxF "${line%%[=[]*}" "$work/have" "$work/names" 2>/dev/null ||
                grep -qxF "$line" "$work/wanted.in" || echo "$line"
        done <"$work/all.txt"
    } >"$work/peers.txt"
    cp "$work/peers.txt" "$list"
}
if [ "${1:-}" = --lock ]; then
    lock
    exit
fi

state() {
    echo "on $(cd "$venv" && pwd) $("$venv/bin/python" --version)"
    echo "at $PWD"
    cat requirements.txt "$list" tools/peers.sh | cksum
}
if [ -x "$peers/bin/python" ] && [ "$(state)" = "$(cat "$stamp" 2>/dev/null)" ]; then
    exit 0
fi

say "Making $peers: $(sed -n 's/ *# wanted$//p' "$list" | tr '\n' ' ')"
"$venv/bin/python" -m venv --clear --without-pip "$peers"
sites=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
own=$("$peers/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
printf "import site; site.addsitedir('%s')\n" "$sites" >"$own/course.pth"
"$venv/bin/python" -m pip --disable-pip-version-check --no-input --python "$peers/bin/python" \
    install -qq --no-deps --requirement "$list"
state >"$stamp"
