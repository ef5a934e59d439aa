# Shell functions for the other scripts: a step that says what it does, and how packages are installed.
# Whoever sources this has set VENV and PYTHON.

# step WORDS COMMAND ...: says what it does, a dot for each second, and at the end how long it took.
# What the command prints is kept in $VENV/setup.log, and shown only if it fails.
step() {
    words=$1
    shift
    log=$(mktemp "$VENV/step.XXXXXX")
    printf '%s ' "$words"
    begun=$(date +%s)
    work=
    trap 'kill "${work:-$!}" 2>/dev/null; wait "${work:-$!}"; exit 130' INT TERM  # before there is work to end
    "$@" >"$log" 2>&1 </dev/null &
    work=$!
    ticks=0
    while kill -0 "$work" 2>/dev/null; do
        sleep 0.1
        ticks=$((ticks + 1))
        [ $((ticks % 10)) -ne 0 ] || printf '.'
    done
    result=0
    wait "$work" || result=$?
    trap - INT TERM
    if [ "$result" = 0 ]; then
        printf ' %s s\n' "$(($(date +%s) - begun))"
    else
        printf ' failed:\n'
        tail -n 20 "$log" >&2
    fi
    cat "$log" >>"$VENV/setup.log"
    rm -f "$log"
    return "$result"
}

is_root_with_apt() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

apt_install() { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"; }

# Prints where uv is: on PATH, or where `get_uv` put it; nothing if there is none.
uv_path() { command -v uv || ls "$VENV/uv/bin/uv" 2>/dev/null || true; }

# Gets uv with pip into a folder of its own, so that the environment itself needs no pip.
get_uv() { "$PYTHON" -m pip install --quiet --disable-pip-version-check --target "$VENV/uv" -c constraints.txt uv; }

has_pip() { "$PYTHON" -c 'import pip' 2>/dev/null; }

# Makes the environment, with a pip in it only where there is no uv.
make_environment() {
    if [ -n "$(uv_path)" ]; then
        "$PYTHON" -m venv --without-pip "$VENV"
    else
        "$PYTHON" -m venv "$VENV"
    fi
}

# Installs packages with the pinned versions: by uv, or by pip where uv is missing or fails (a package
# index that only pip has been told of).
install() {
    uv=$(uv_path)
    pins=${CONSTRAINTS:-constraints.txt}
    if [ -n "$uv" ] && "$uv" pip install --python "$VENV/bin/python" -c "$pins" "$@"; then
        return 0
    fi
    "$VENV/bin/python" -c 'import pip' 2>/dev/null || "$VENV/bin/python" -m ensurepip --default-pip
    "$VENV/bin/python" -m pip install --disable-pip-version-check -c "$pins" "$@"
}

# What compiling the broker's core needs and is not there; nothing if all is, or if it is compiled.
core_lacks() { "$VENV/bin/python" -m nearcast.compiling --missing; }

# Gets a C compiler, and Python's headers, for the broker's core: from Debian or Ubuntu as root, or as a wheel.
get_compiler() {
    case $(core_lacks) in
    *compiler*)
        if is_root_with_apt; then step "Installing a C compiler (gcc)" apt_install gcc libc6-dev || true; fi
        case $(core_lacks) in
        *compiler*) step "Installing a C compiler (ziglang, 90 MB)" install ziglang || true ;;
        esac
        ;;
    esac
    case $(core_lacks) in
    *headers*) if is_root_with_apt; then step "Installing Python's headers" apt_install python3-dev || true; fi ;;
    esac
}

# Compiles the broker's core in the background: a start of the broker does not wait for it, and the next one uses it.
begin_core() {
    "$VENV/bin/python" -c 'from nearcast.compiling import is_compiled; raise SystemExit(not is_compiled())' && return
    PYTHON="$PYTHON" VENV="$VENV" nohup nice -n 10 sh scripts/setup.sh core >"$VENV/core.log" 2>&1 </dev/null &
    echo "The broker's core is compiled in the background, for starts in some minutes ($VENV/core.log)."
}
