# Sets up .venv in parts, which make calls when a pin has changed:
#   setup.sh run     what brokers, clients and a local network need: a few seconds
#   setup.sh learn   what the pipeline needs: PySpark (430 MB) and Java
#   setup.sh test    what checks, tests and benchmarks need, and the peers that they run beside ours;
#                    with PYSPARK=VERSION in the environment, that PySpark in place of the pinned one
#   setup.sh core    the broker's core as extension modules (docs/compiled-core.md), with a C compiler if there
#                    is none; the other parts begin it in the background. Without it the broker is plain Python
# Running waits for no kernel to be compiled; tests, which start hundreds of brokers, find all of them.
set -eu
. scripts/steps.sh

check_python() {
    "$PYTHON" - <<'PY'
import sys
if sys.version_info < (3, 11):
    sys.exit(f"Nearcast needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}. "
             "Try: make PYTHON=python3.12 ...")
PY
}

check_venv() {
    "$PYTHON" -c 'import ensurepip' 2>/dev/null && return
    if is_root_with_apt; then
        step "Installing Python's venv module (python3-venv)" apt_install python3-venv
    else
        echo "Python's venv module is missing. Debian/Ubuntu: sudo apt-get install python3-venv" >&2
        exit 1
    fi
}

set_up_run() {
    check_python
    mkdir -p "$VENV"
    if [ -z "$(uv_path)" ] && has_pip; then
        step "Getting the installer (uv)" get_uv || echo "There is no uv here; pip does it, more slowly."
    fi
    [ -n "$(uv_path)" ] || check_venv
    [ -x "$VENV/bin/python" ] || step "Making $VENV" make_environment
    step "Installing Nearcast and nats-server into $VENV (150 MB)" install -e '.[cluster]'
}

set_up_learn() {
    step "Installing PySpark into $VENV (430 MB)" install 'nearcast[spark]'
    sh scripts/java.sh
}

set_up_test() {
    step "Installing what checks and tests need into $VENV" \
        install 'nearcast[spark,connect,kafka,research,dev,bench]'
    [ -z "${PYSPARK:-}" ] || step "Replacing PySpark by $PYSPARK" install_spark "$PYSPARK"
    "$VENV/bin/python" -m nearcast.warming >>"$VENV/setup.log" 2>&1 </dev/null &
    warming=$!
    sh scripts/peers.sh
    step "Compiling all kernels for the tests" ended "$warming"
    get_compiler
    begin_core
    step "Preparing Java's classes for the tests" "$VENV/bin/python" scripts/java_archive.py
    step "Compiling the tests" compile_tests
}

# The pinned version stays what pyproject.toml and constraints.txt say: this one is beside them.
install_spark() {
    grep -v -e '^pyspark==' -e '^py4j==' constraints.txt >"$VENV/constraints.txt"
    CONSTRAINTS="$VENV/constraints.txt" install "pyspark==$1"
}

# Once, and not in every worker of the first run: pytest keeps what it compiles beside the environment.
compile_tests() {
    env -u PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX="$PWD/$VENV/pycache" \
        "$VENV/bin/pytest" --collect-only -q
}

ended() { while kill -0 "$1" 2>/dev/null; do sleep 0.2; done; }

set_up_core() { # in the background: nobody reads its steps
    "$VENV/bin/python" -c 'import mypyc, setuptools' 2>/dev/null || install 'nearcast[compile]'
    get_compiler
    "$VENV/bin/python" -m nearcast.compiling
}

"set_up_$1"
