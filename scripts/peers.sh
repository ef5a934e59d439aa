# Installs what tests and benchmarks run beside ours: Mosquitto and its clients, mqtt.js; and the
# server that several nodes talk over, nats-server.
# Nothing needs them: a test whose peer is missing is skipped by name.
set -eu
missing=""
for command in mosquitto mosquitto_pub nats-server openssl; do
    command -v "$command" >/dev/null || [ -x "/usr/sbin/$command" ] || missing="$missing $command"
done
if [ -n "$missing" ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "Installing peers (mosquitto, mosquitto-clients, nats-server, openssl) ..."
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            mosquitto mosquitto-clients nats-server openssl >/dev/null
    else
        echo "Missing:$missing. Debian/Ubuntu: sudo apt-get install mosquitto mosquitto-clients nats-server openssl" >&2
    fi
fi
if [ ! -d .venv/peers/node_modules/mqtt ]; then
    if command -v npm >/dev/null; then
        npm install --silent --no-audit --no-fund --prefix .venv/peers mqtt@5.14.1 >/dev/null ||
            echo "mqtt.js could not be installed; its tests are skipped" >&2
    else
        echo "mqtt.js needs npm; its tests are skipped. Debian/Ubuntu: sudo apt-get install npm" >&2
    fi
fi
