"""City alerts: each alert to those whose area it touches, and to nobody else.

    nearcast serve --config examples/city_alerts.toml
    python examples/city_alerts.py

Four people of San Francisco, each with an area: a bounding box, a circle, a polygon. Alerts are
points, but for the fog, which has an extent of its own. Somebody who arrives later gets the
retained alerts of her area only.
"""

from __future__ import annotations

import json

from nearcast.client import Offer, Selection
from people import Person, arguments, check_space

MISSION = {
    "type": "Polygon",
    "coordinates": [
        [
            [-122.4268, 37.7695],
            [-122.4070, 37.7695],
            [-122.4035, 37.7484],
            [-122.4250, 37.7481],
            [-122.4268, 37.7695],
        ]
    ],
}
AREAS = {
    "Ana (Mission)": f"geojson({json.dumps(MISSION)})",
    "Ben (SoMa)": "bbox(-122.4180, 37.7690, -122.3890, 37.7860)",
    "Chiara (Golden Gate Park)": "circle(-122.4862, 37.7694, 2km)",
    "Dev (all of the city)": "bbox(-122.52, 37.70, -122.35, 37.84)",
}
WISHES = {name: Selection(area=area) for name, area in AREAS.items()}
WISHES["Dev (all of the city)"] = Selection(
    area=AREAS["Dev (all of the city)"], where="severity >= 4"
)

ALERTS = [
    ("alerts/water", "water main burst at 16th and Valencia", 3, (-122.4217, 37.7650)),
    ("alerts/fire", "fire at 5th and Howard", 5, (-122.4046, 37.7815)),
    ("alerts/tree", "fallen tree on Lincoln Way", 2, (-122.4770, 37.7659)),
    ("alerts/road", "13th Street closed", 2, (-122.4130, 37.7694)),
]
FOG = "bbox(-122.515, 37.735, -122.470, 37.800)"


def run(host: str, port: int) -> dict[str, list[str]]:
    """Return who got each alert."""
    check_space(host, port, "alerts/#")
    city_hall = Person("city hall", host, port)
    people = {name: Person(name, host, port) for name in WISHES}
    for name, wish in WISHES.items():
        people[name].subscribe("alerts/#", wish)

    told: dict[str, list[str]] = {}

    def tell(text: str) -> None:
        told[text] = [name for name, person in people.items() if person.letters()]
        print(f"{text}\n    -> {', '.join(told[text]) or 'nobody'}")

    for topic, text, severity, (lon, lat) in ALERTS:
        body = {"text": text, "severity": severity, "lon": lon, "lat": lat}
        city_hall.publish(topic, body, retain=True)
        tell(text)
    text = "fog comes in from the ocean"
    city_hall.publish("alerts/fog", {"text": text, "severity": 4}, Offer(area=FOG))
    tell(text)

    late = Person("Eve", host, port)
    late.subscribe("alerts/#", WISHES["Ben (SoMa)"])
    waiting = sorted(letter.body["text"] for letter in late.letters())
    print(f"Eve arrives in SoMa and is told what still holds there: {'; '.join(waiting)}")
    told["Eve"] = waiting

    for topic, *_ in ALERTS:
        city_hall.publish(topic, None, retain=True)
    for person in (city_hall, late, *people.values()):
        person.leave()
    return told


if __name__ == "__main__":
    given = arguments(__doc__)
    run(given.host, given.port)
