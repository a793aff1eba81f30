#!/bin/sh
# Finds a Python that the pins allow and hands over to setup.py. Says nothing when .venv is ready.
# PYTHON=/path/to/python3.11 names one by hand.
cd "$(dirname "$0")/.." || exit 1

if .venv/bin/python -I -S scripts/setup.py --ready 2>/dev/null; then exit 0; fi

fits='import sys; sys.exit(sys.implementation.name != "cpython" or not (3, 11) <= sys.version_info[:2] < (3, 14))'
incomplete=
try() {
    "$1" -c "$fits" >/dev/null 2>&1 || return 1
    # Debian ships `venv` without the part that puts pip into one.
    if "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; then exec "$1" -I scripts/setup.py; fi
    incomplete=$1
}

if [ -n "$PYTHON" ]; then
    try "$PYTHON"
else
    for name in python3.11 python3.12 python3.13 python3 python; do try "$name"; done
fi

if [ -n "$incomplete" ]; then
    echo "set-up: $incomplete cannot make virtual environments: its modules venv and ensurepip are missing." >&2
    echo "        On Debian and Ubuntu: apt-get install python3-venv python3-dev build-essential" >&2
else
    echo "set-up: no Python 3.11 found${PYTHON:+ (PYTHON=$PYTHON does not run, or is another version)}." >&2
    echo "        Tested is 3.11; 3.12 and 3.13 may do. Install one, or name it: make setup PYTHON=/path/to/python3.11" >&2
fi
exit 2
