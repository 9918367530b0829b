#!/bin/sh
# Make a virtual environment: make_environment.sh FOLDER. Takes the interpreter from $PYTHON.
# A bare Debian or Ubuntu has Python but not its module venv: that is installed, and nothing else.
set -eu
python=${PYTHON:-python3}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "georesolve needs Python 3.11 or later; $python is $("$python" --version 2>&1)." >&2
    echo "Name another one: make PYTHON=/path/to/python3.12 ..." >&2
    exit 1
fi
if "$1/bin/python" -c 'import pip' 2>/dev/null; then
    exit 0
fi

if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    root=""
    [ "$(id -u)" = 0 ] || root=sudo
    if ! command -v apt-get >/dev/null || { [ -n "$root" ] && ! command -v sudo >/dev/null; }; then
        echo "$python has no module venv: install it (on Debian: apt-get install python3-venv)." >&2
        exit 1
    fi
    package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    echo "Installing $package, which $python lacks."
    $root apt-get update -qq
    $root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package"
fi
"$python" -m venv "$1"
