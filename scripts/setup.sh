# Makes .venv with the pinned packages. Called by make whenever a pin has changed.
set -eu
"$PYTHON" - <<'PY'
import sys
if sys.version_info < (3, 11):
    sys.exit(f"Nearcast needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}. "
             "Try: make PYTHON=python3.12 ...")
PY
if ! "$PYTHON" -c 'import ensurepip' 2>/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv >/dev/null
    else
        echo "Python's venv module is missing. Debian/Ubuntu: sudo apt-get install python3-venv" >&2
        exit 1
    fi
fi
echo "Setting up $VENV (a few minutes the first time) ..."
[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt \
    -e '.[spark,research,dev,bench]'
# Kernels are compiled here, once, and kept on the disk: never in the middle of serving.
echo "Compiling kernels (about two minutes the first time) ..."
"$VENV/bin/python" -m nearcast.warming
