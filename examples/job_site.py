"""Job site: each candidate to the five most specific vacancies.

    nearcast serve --config examples/job_site.toml
    python examples/job_site.py

A vacancy is a subscription: it says which candidates it wants, and a label that may be shown. "A
baker from 20 to 25" fits a young baker more precisely than "anybody from 18 to 65", and comes
first. The candidate first asks to see the list, without sending anything to anybody; then applies
to the same five.
"""

from __future__ import annotations

from dataclasses import dataclass

from nearcast.client import Offer, Selection
from people import Person, arguments, check_space

VACANCIES = {
    "Anything goes Ltd: helping hands": "age >= 18",
    "Harbour Freight: drivers and welders": "trade in (driver, welder)",
    "Corner Bakery: night shift": "trade = baker and 18 <= age <= 40 and salary <= 38000",
    "Hotel Adler: kitchen, all ranks": "trade in (baker, cook)",
    "Hotel Adler: apprentice pastry chef": (
        "trade = baker and 16 <= age <= 22 and salary <= 24000"
    ),
    "Bread & Sons: baker": "trade = baker",
    "City Hospital: nurse": "trade = nurse and age >= 21",
    "School of Crafts: teacher of baking": "trade in (teacher) and age >= 30",
    "Canteen at the Docks: cook or baker, early": "trade in (baker, cook) and salary <= 45000",
    "Grand Café: baker under 30": "trade = baker and age < 30 and 25000 <= salary <= 50000",
}
CANDIDATES = {
    "Kim": {"age": 24, "salary": 36000, "trade": "baker"},
    "Lou": {"age": 17, "salary": 22000, "trade": "baker"},
    "Max": {"age": 45, "salary": 60000, "trade": "welder"},
    "Noa": {"age": 28, "salary": 52000, "trade": "nurse"},
}
TOP = 5


@dataclass(frozen=True)
class Application:
    shown: list[str]  # the list the candidate saw, best first
    reached: list[str]  # who got the application, best first


def run(host: str, port: int) -> dict[str, Application]:
    check_space(host, port, "jobs/#")
    employers = {label: Person(label, host, port) for label in VACANCIES}
    for label, where in VACANCIES.items():
        wish = Selection(where=where, label=label, explain=True)
        employers[label].subscribe("jobs/+", wish)
    results = {
        name: apply(Person(name, host, port), values, employers)
        for name, values in CANDIDATES.items()
    }
    for person in employers.values():
        person.leave()
    return results


def apply(
    candidate: Person, values: dict[str, object], employers: dict[str, Person]
) -> Application:
    answers = f"answers/{candidate.name}"
    candidate.subscribe(answers)
    ask = Offer(top=TOP, reply="matches", deliver=False, values=values)
    candidate.publish("jobs/candidates", None, ask, answer_to=answers)
    (answer,) = candidate.letters()
    print(f"\n{candidate.name}, {values['trade']}, {values['age']}, wants {values['salary']}:")
    for match in answer.body["matches"]:
        print(f"  {match['rank']}. {match['label']}  (accuracy {match['accuracy']:.1f} bits)")
    assert not any(person.letters() for person in employers.values()), "asking sends nothing"

    candidate.publish("jobs/candidates", {"name": candidate.name}, Offer(top=TOP, values=values))
    reached = [
        (letter.about.rank or 0, label)
        for label, person in employers.items()
        for letter in person.letters()
    ]
    print(f"  applied to {len(reached)} of {len(employers)}")
    candidate.leave()
    shown = [match["label"] for match in answer.body["matches"]]
    return Application(shown, [label for _, label in sorted(reached)])


if __name__ == "__main__":
    given = arguments(__doc__)
    run(given.host, given.port)
