# Runs the demonstration. Where PySpark and Java are missing they are installed meanwhile, so that the
# city lives from the first seconds on; the demonstration waits for them when it has to learn.
set -eu
. scripts/steps.sh
if [ -e "$VENV/.learn" ]; then
    "$VENV/bin/nearcast" demo
    begin_core # once nobody looks: it takes two minutes of processor time
    exit
fi
arriving="$VENV/learn-arriving.log" # exists as long as the installation runs
install_meanwhile() {
    sh scripts/setup.sh learn >"$arriving" 2>&1 </dev/null &
    work=$!
    trap 'kill "$work" 2>/dev/null || true' TERM
    if wait "$work"; then touch "$VENV/.learn"; fi
    mv -f "$arriving" "$VENV/learn.log"
}
: >"$arriving"
install_meanwhile &
installer=$!
trap 'kill "$installer" 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM
"$VENV/bin/nearcast" demo --wait-for "$arriving"
begin_core
