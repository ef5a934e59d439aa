# Sees to it that there is Java 17 or newer, which Spark needs.
java_major() { java -version 2>&1 | sed -n '1s/.*version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p'; }
major=$(java_major)
[ "${major:-0}" -ge 17 ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Installing Java for Spark (default-jre-headless) ..."
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
        --no-install-recommends default-jre-headless >/dev/null
    major=$(java_major)
    [ "${major:-0}" -ge 17 ] && exit 0
fi
echo "Spark needs Java 17 or newer (found: ${major:-none}). Debian/Ubuntu: sudo apt-get install default-jre-headless" >&2
exit 1
