# Sees to it that there is Java 17 or newer, which Spark needs.
set -eu
. scripts/steps.sh
java_major() { java -version 2>&1 | sed -n '1s/.*version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p'; }
major=$(java_major)
[ "${major:-0}" -ge 17 ] && exit 0
if is_root_with_apt; then
    step "Installing Java for Spark (default-jre-headless, 200 MB)" apt_install default-jre-headless
    major=$(java_major)
    [ "${major:-0}" -ge 17 ] && exit 0
fi
echo "Spark needs Java 17 or newer (found: ${major:-none}). Debian/Ubuntu: sudo apt-get install default-jre-headless" >&2
exit 1
