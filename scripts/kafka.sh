# Gets the jars of Kafka's server and of Spark's connector into folders below $1, with Maven.
# The connector's jars are those of `CONNECTOR` in src/nearcast/pipeline/streaming/kafka.py.
set -eu
folder=$1
mkdir -p "$folder"

# get NAME COORDINATES...: jars of GROUP:ARTIFACT:VERSION; without what they depend on, but for the server
get() {
    name=$1
    shift
    {
        echo '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        echo "<groupId>local</groupId><artifactId>$name</artifactId><version>1</version><dependencies>"
        for one in "$@"; do
            echo "$one" | awk -F: '{print "<dependency><groupId>" $1 "</groupId><artifactId>" $2 "</artifactId><version>" $3 "</version>"}'
            [ "$name" = server ] || echo '<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>'
            echo '</dependency>'
        done
        echo '</dependencies></project>'
    } >"$folder/$name.xml"
    mvn -q -B -f "$folder/$name.xml" dependency:copy-dependencies -DoutputDirectory="$name"
}

get server org.apache.kafka:kafka_2.13:3.9.1
# shellcheck disable=SC2046
get connector $(sed -n '/^CONNECTOR = (/,/^)/s/^ *"\(.*\)",$/\1/p' src/nearcast/pipeline/streaming/kafka.py)
touch "$folder/done"
