"""The page's modules, each by itself in the browser: against models, definitions and examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from tests.page.conftest import PageTown
from tests.support.tile_files import Feature, vector_tile

from nearcast.model.sphere import distance_m

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.server
Run = Callable[..., Any]
SEEDS = range(8)


@pytest.fixture(scope="module")
def run(town: PageTown, browser: Browser) -> Iterator[Run]:
    """Return what runs code in the page; it has `given`, and `load`, which imports a module."""
    page = browser.new_page()
    page.goto(town.address)
    head = "const load = (name) => import(`/assets/js/${name}.js`);"

    def run_(code: str, *given: Any) -> Any:
        return page.evaluate(f"async (given) => {{ {head} {code} }}", list(given))

    yield run_
    page.close()


# --- camera ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_a_place_is_found_again_at_its_pixel_and_stays_below_the_finger(run: Run, seed: int):
    random = Random(seed)
    place = [random.uniform(-170, 170), random.uniform(-80, 80)]
    pixel = [random.uniform(0, 800), random.uniform(0, 600)]
    factor, shift = random.uniform(0.5, 4), [random.uniform(-90, 90), random.uniform(-90, 90)]
    found = run(
        """const { Camera, project } = await load('map/camera');
        const [place, pixel, factor, shift] = given;
        const camera = new Camera();
        camera.resize(800, 600);
        const [x, y] = project(...place);
        camera.jump({ x, y, scale: 2e6 });
        const at = camera.toScreen(...place);
        const again = camera.toPlace(...at);
        const before = camera.toPlace(...pixel);
        camera.zoom(factor, ...pixel);
        const after = camera.toPlace(...pixel);
        const [was, scale] = [camera.toScreen(...place), camera.scale];
        camera.pan(...shift);
        return { at, again, before, after, was, now: camera.toScreen(...place), scale };""",
        place, pixel, factor, shift,
    )  # fmt: skip
    assert found["at"] == pytest.approx([400, 300])
    assert found["again"] == pytest.approx(place)
    assert found["after"] == pytest.approx(found["before"])
    assert found["scale"] == pytest.approx(2e6 * factor)
    moved = [now - was for now, was in zip(found["now"], found["was"], strict=True)]
    assert moved == pytest.approx(shift, abs=1e-4)


@pytest.mark.parametrize("seed", SEEDS)
def test_metres_are_those_of_the_broker_and_of_the_screen(run: Run, seed: int):
    random = Random(seed)
    one = (random.uniform(-170, 170), random.uniform(-70, 70))
    other = (one[0] + random.uniform(-2, 2), one[1] + random.uniform(-2, 2))
    found, pixels = run(
        """const { Camera, distanceM } = await load('map/camera');
        const [one, other] = given;
        const camera = new Camera();
        camera.resize(800, 600);
        const east = [one[0] + 1e-3, one[1]];
        const wide = camera.toScreen(...east)[0] - camera.toScreen(...one)[0];
        return [distanceM(one, other), wide / distanceM(one, east) / camera.perMetre(one[1])];""",
        one, other,
    )  # fmt: skip
    assert found == pytest.approx(distance_m(*one, *other), rel=1e-6)
    assert pixels == pytest.approx(1, rel=2e-3)  # of a sphere and of an ellipsoid


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_framed_fills_the_view_between_the_margins(run: Run, seed: int):
    random = Random(seed)
    west, south = random.uniform(-170, 100), random.uniform(-70, 40)
    bounds = {
        "west": west,
        "south": south,
        "east": west + random.uniform(0.1, 30),
        "north": south + random.uniform(0.1, 20),
    }
    margin = {side: random.uniform(5, 150) for side in ("left", "right", "top", "bottom")}
    left, top, right, bottom = run(
        """const { Camera } = await load('map/camera');
        const [bounds, margin] = given;
        const camera = new Camera();
        camera.resize(900, 700);
        camera.jump(camera.framing(bounds, margin));
        const { west, south, east, north } = bounds;
        return [...camera.toScreen(west, north), ...camera.toScreen(east, south)];""",
        bounds, margin,
    )  # fmt: skip
    spare = [
        left - margin["left"],
        900 - margin["right"] - right,
        top - margin["top"],
        700 - margin["bottom"] - bottom,
    ]
    assert spare[0] == pytest.approx(spare[1], abs=0.01)
    assert spare[2] == pytest.approx(spare[3], abs=0.01)
    assert min(spare) == pytest.approx(0, abs=0.01)


# --- clients --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_clients_are_where_their_nodes_said_now_and_in_the_past(run: Run, seed: int):
    random = Random(seed)
    names = "abcdef"
    history: list[list[Any]] = []
    model: dict[str, tuple[str, float]] = {}
    states: list[tuple[int, set[str], dict[str, float]]] = []
    at = 1_000_000
    for _ in range(40):
        at += random.choice([200, 900, 2_500])
        node = random.choice(["east", "west"])
        moved = [(name, random.uniform(-9, 9), 0.0) for name in names if random.random() < 0.3]
        gone = [name for name in names if random.random() < 0.1]
        full = random.random() < 0.15
        history.append([{"moved": moved, "gone": gone, "full": full}, node, at])
        if full:
            there = {name for name, *_ in moved}
            model = {k: v for k, v in model.items() if v[0] != node or k in there}
        model |= {name: (node, lon) for name, lon, _ in moved}
        model = {k: v for k, v in model.items() if k not in gone or v[0] != node}
        said = {name: model[name][1] for name, *_ in moved if name in model}
        states.append((at, set(model), said))
    now, past, first = run(
        """const { Crowd } = await load('map/crowd');
        const { unproject } = await load('map/camera');
        const [history, instants] = given;
        const crowd = new Crowd();
        for (const [frame, node, at] of history) crowd.take(frame, node, at);
        const then = crowd.past();
        const shown = (spots) =>
          Object.fromEntries(spots.map(([one, x, y]) => [one.id, unproject(x, y)[0]]));
        const last = history.at(-1)[2] + 10_000;
        const at = (one) => unproject(...crowd.at(one, last))[0];
        const now = [...crowd.clients.values()].map((one) => [one.id, [one.node, at(one)]]);
        const past = instants.map((at) => shown(then(at)));
        return [Object.fromEntries(now), past, crowd.oldest(last)];""",
        history, [at for at, *_ in states],
    )  # fmt: skip
    assert now.keys() == model.keys()
    for name, (node, lon) in model.items():
        assert now[name][0] == node
        assert now[name][1] == pytest.approx(lon)
    for found, (_, those, told) in zip(past, states, strict=True):
        assert found.keys() == those
        assert {name: found[name] for name in told} == pytest.approx(told)
    assert first == next(at for frame, _, at in history if frame["moved"])


def test_a_client_moves_smoothly_from_where_it_is_drawn(run: Run):
    drawn: list[float] = run(
        """const { Crowd } = await load('map/crowd');
        const { unproject } = await load('map/camera');
        const crowd = new Crowd();
        const lines = [];
        crowd.onFix = (...line) => lines.push(line);
        const lon = (at) => unproject(...crowd.at(crowd.clients.get('a'), at))[0];
        const found = [];
        crowd.move('a', 0, 0, 0, 'n');
        crowd.move('a', 8, 0, 1000, 'n');
        found.push(lon(1000), lon(1550), lon(1700));
        crowd.move('a', 4, 0, 1700, 'n');
        found.push(lon(1700), lon(9000), lines.length);
        return found;"""
    )
    # 0.5 of the second that was expected and 0.6 of the second that passed
    assert drawn[:3] == pytest.approx([0, 4, 8 * 7 / 11])
    assert drawn[3:] == pytest.approx([8 * 7 / 11, 4, 2])


# --- shapes, tiles --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_a_place_is_in_a_shape_by_the_even_odd_rule(run: Run, seed: int):
    random = Random(seed)

    def ring(x: float, y: float, half: float) -> list[list[float]]:
        corners = [(-1, -1), (1, -1), (1, 1), (-1, 1), (-1, -1)]
        return [[x + half * i, y + half * j] for i, j in corners]

    def inside(place: tuple[float, float], x: float, y: float, half: float) -> bool:
        return abs(place[0] - x) < half and abs(place[1] - y) < half

    shapes = [(0, 0, 3, 1), (10, 2, 2, 1.5)]  # middle, half width, half width of the hole
    geometry = {
        "type": "GeometryCollection",
        "geometries": [
            {"type": "Polygon", "coordinates": [ring(0, 0, 3), ring(0, 0, 1)]},
            {"type": "MultiPolygon", "coordinates": [[ring(10, 2, 2), ring(10, 2, 1.5)]]},
        ],
    }
    places = [(random.uniform(-4, 13), random.uniform(-4, 5)) for _ in range(60)]
    found, bounds = run(
        """const { boundsOf, contains } = await load('map/ground');
        const [geometry, places] = given;
        return [places.map((place) => contains(geometry, ...place)), boundsOf([{ geometry }])];""",
        geometry, places,
    )  # fmt: skip
    assert found == [
        any(inside(one, x, y, half) and not inside(one, x, y, hole) for x, y, half, hole in shapes)
        for one in places
    ]
    assert bounds == {"west": -3, "south": -3, "east": 12, "north": 4}


def test_a_vector_tile_is_read_as_it_was_written(run: Run):
    layers: dict[str, list[Feature]] = {
        "water": [
            (3, [[(10, 20), (4000, 20), (400, 900)], [(5, 6), (7, 6), (7, 9)]], {"kind": "lake"}),
            (3, [[(-80, -80), (5000, -80), (5000, 300)]], {"kind": "sea", "name": "Ä"}),
        ],
        "roads": [(2, [[(0, 0), (7, 4096)]], {})],
        "places": [(1, [[(300, 3800)]], {"name": "Here"})],
    }  # fmt: skip
    found = run(
        "return (await load('map/mvt')).readTile(new Uint8Array(given[0]));",
        list(vector_tile(layers)),
    )
    assert {one["name"] for one in found} == set(layers)
    for layer in found:
        assert layer["extent"] == 4096
        wanted = layers[layer["name"]]
        read = [(one["type"], one["parts"], one["properties"]) for one in layer["features"]]
        assert read == [
            (kind, [[number for place in part for number in place] for part in parts], values)
            for kind, parts, values in wanted
        ]


def test_the_part_of_a_larger_tile_that_stands_in_for_a_missing_one(run: Run):
    found = run(
        """const { Tiles } = await load('map/tiles');
        const tiles = new Tiles({ tiles: '', min_zoom: 2, max_zoom: 9, vector: false }, () => {});
        tiles.known.set('3/5/2', { content: 'three', isMissing: false, failedAt: 0 });
        for (const name of ['4/11/5', '5/22/11', '6/45/23', '6/44/20', '5/22/10'])
          tiles.known.set(name, { content: null, isMissing: true, failedAt: Date.now() });
        const { known } = tiles;
        const asked = [[3, 5, 2], [4, 11, 5], [6, 45, 23], [6, 44, 20]];
        const found = asked.map((name) => tiles.best(...name));
        return [found, known.has('4/11/5'), known.size];"""
    )
    # the numbers of columns and rows begin in the north-west; 45 = 5 · 8 + 5, 23 = 2 · 8 + 7
    assert found[0] == [
        {"content": "three", "parts": 1, "column": 0, "row": 0},
        {"content": "three", "parts": 2, "column": 1, "row": 1},
        {"content": "three", "parts": 8, "column": 5, "row": 7},
        {"content": "three", "parts": 8, "column": 4, "row": 4},
    ]
    assert found[1:] == [True, 6]  # nothing was asked for that is known


# --- events ---------------------------------------------------------------------------------------


def test_reports_of_one_event_are_joined_and_those_of_others_are_not(run: Run):
    found = run(
        """const { Happenings } = await load('map/happenings');
        const all = new Happenings();
        const bread = { topic: 'shops/bread', lon: 1, lat: 2, payload: '{"price":3}' };
        all.take(bread, 1000);
        all.take({ ...bread, to: ['ana', 'page-1'], matched: 1, publisher: 'baker' }, 1500);
        all.take({ ...bread, to: ['ben'], matched: 1, chosen: 2 }, 1600);
        const one = all.all[0];
        const joined = [all.total, one.to, one.matched, one.chosen, one.publisher, one.isTold];
        all.take({ ...bread, to: ['ana'] }, 1700); // ana has it: it happened once more
        all.take({ ...bread, lon: 1.1 }, 1700);
        all.take({ ...bread, topic: 'shops/rolls' }, 1700);
        all.take({ ...bread, payload: '{"price":4}' }, 1700);
        const apart = all.total;
        all.take(bread, 4800);
        const seen = (at) => all.seen(at).map((one) => one.at);
        return { joined, apart, later: all.total, seen: [999, 1000, 3599, 3600, 4800].map(seen),
          last: [all.lastFor('ben').at, all.lastFor('ana').at, all.lastFor('page-1')] };"""
    )
    assert found["joined"] == [1, ["ana", "ben"], 2, 2, "baker", True]
    assert (found["apart"], found["later"]) == (5, 6)
    assert found["seen"] == [[], [1000], [1700] * 4 + [1000], [1700] * 4, [4800]]
    assert found["last"] == [1000, 1700, None]


def test_the_place_of_an_event_is_read_as_its_space_says(run: Run):
    found = run(
        """const { Feed } = await load('map/feed');
        const { Happenings } = await load('map/happenings');
        const scene = { happenings: new Happenings() };
        const feed = new Feed({ scene }, {});
        const space = { longitude: 'x', latitude: 'y', values: 'json',
          attributes: [{ name: 'x', path: 'at.lon' }, { name: 'y', path: 'at.lat' }] };
        const text = JSON.stringify({ at: { lon: 7, lat: 8 }, x: 1, y: 2 });
        feed.event(space, { topic: 'a', text, packet: {} });
        feed.event(space, { topic: 'b', text, packet: { retain: true } });
        feed.event(space, { topic: 'c', text: '{"at":{"lon":7}}', packet: {} });
        feed.event(space, { topic: 'd', text: 'no JSON', packet: {} });
        const properties = { userProperties: { x: '3', y: '4' } };
        const other = { ...space, values: 'properties' };
        feed.event(other, { topic: 'e', text: '', packet: { properties } });
        const area = { type: 'Polygon', coordinates: [[[0, 0], [4, 0], [4, 2], [0, 2], [0, 0]]] };
        const told = [{ topic: 'f', area, lon: null }, { topic: 'g', lon: 5, lat: 6, to: ['ana'] }];
        feed.deliveries(JSON.stringify({ events: told }));
        return scene.happenings.all.map(({ topic, lon, lat, to }) => [topic, lon, lat, to]);"""
    )
    assert found == [["a", 7, 8, []], ["e", 3, 4, []], ["f", 2, 1, []], ["g", 5, 6, ["ana"]]]


def test_what_is_nearest_to_a_click_is_hit(run: Run):
    hit = run(
        """const { MapCanvas } = await load('map/canvas');
        const { Happenings } = await load('map/happenings');
        const { Camera } = await load('map/camera');
        const square = (west, side) => ({ geometry: { type: 'Polygon', coordinates:
          [[[west, 0], [west + side, 0], [west + side, side], [west, side], [west, 0]]] } });
        const camera = new Camera();
        camera.resize(800, 600);
        const scene = { past: null, happenings: new Happenings(),
          layers: { regions: true, plan: true },
          regions: [square(0, 5)], plan: [square(-20, 30), square(5, 10)] };
        scene.happenings.take({ topic: 't', lon: 60, lat: 0 }, Date.now());
        const inView = [['a', 100, 100], ['b', 108, 100], ['c', 300, 300]];
        const at = (px, py) => MapCanvas.prototype.hit.call({ camera, scene, inView }, px, py);
        const on = (lon, lat) => at(...camera.toScreen(lon, lat));
        const leaf = (found) => (found.leaf ? `leaf ${scene.plan.indexOf(found.leaf)}` : null);
        return [at(103, 100), at(105, 100), at(108, 111), at(108, 113), at(290, 300),
          on(60, 0), on(2, 2), on(6, 6), on(-10, 6), on(-50, 6)].map((found) =>
            found.client ?? found.event?.topic ?? (found.region ? 'region' : leaf(found)));"""
    )
    assert hit == ["a", "b", "b", None, "c", "t", "region", "leaf 1", "leaf 0", None]


def test_a_view_that_rests_is_drawn_some_thirty_times_a_second_however_fast_frames_come(run: Run):
    drawn = run(
        """const { isDue } = await load('map/canvas');
        return given[0].map((every) => {
          let [last, count] = [0, 0];
          for (let now = every; now <= 6000; now += every)
            if (isDue(now - last, every)) [last, count] = [now, count + 1];
          return count / 6;
        });""",
        [1000 / 144, 1000 / 60, 1000 / 40, 1000 / 37, 1000 / 30, 1000 / 20],
    )
    assert drawn == pytest.approx([29, 30, 40, 37, 30, 20], abs=1.5)


# --- words ----------------------------------------------------------------------------------------


def test_squares_are_drawn_again_once_one_of_them_is_a_pixel_away(run: Run):
    found = run(
        """const { Dots } = await load('map/paint');
        const canvas = document.createElement('canvas');
        [canvas.width, canvas.height] = [100, 80];
        const dots = new Dots(canvas);
        const { paint } = dots;
        let painted = 0;
        dots.paint = function (...given) { painted++; paint.apply(this, given); };
        const at = (fill, ...places) => {
          dots.draw(places.map(([x, y]) => [{}, x, y]), fill);
          const { data } = dots.context.getImageData(0, 0, 100, 80);
          const blue = [];
          for (let i = 0; i < 8000; i++)
            if (data[4 * i + 2] === 255) blue.push([i % 100, Math.floor(i / 100)]);
          return [painted, blue.length && blue[0], blue.length];
        };
        const seen = [at('#0000ff', [10, 10], [50, 50]), at('#0000ff', [10.9, 10], [50, 49.1]),
          at('#0000ff', [10.9, 9.1], [50, 50]), at('#0000ff', [11, 10], [50, 50]),
          at('#0000ff', [11, 10]), at('#00ff00', [11, 10]), at('#0000ff', [11, 10])];
        dots.hide();
        seen.push(at('#0000ff', [11, 10]));
        canvas.width = 99;
        dots.ratio = 2;
        seen.push(at('#0000ff', [11, 10]).slice(0, 1), at('#0000ff', [11.5, 10]).slice(0, 1));
        return seen;"""
    )
    one, both = [[9, 8], 16], [[8, 8], 32]
    assert found == [
        [1, *both], [1, *both], [1, *both], [2, [9, 8], 32],
        [3, *one], [4, 0, 0], [5, *one], [6, *one], [7], [8],
    ]  # fmt: skip


def test_numbers_are_written_as_people_read_them(run: Run):
    examples = [
        ("count", 12345.4, "12,345"), ("count", 1_250_000, "1.3 M"), ("count", None, "–"),
        ("count", 999_999, "999,999"), ("rate", 2.34, "2.3"), ("rate", 0, "0"),
        ("rate", 23.4, "23"),
        ("bytes", 999, "999 B"), ("bytes", 1_500, "1.5 kB"), ("bytes", 2e9, "2 GB"),
        ("metres", 999.4, "999 m"), ("metres", 1_500, "1.5 km"), ("duration", 59.9, "59 s"),
        ("duration", 61, "1 min 1 s"), ("duration", 3_661, "1 h 1 min"),
        ("duration", 90_000, "1 d 1 h"), ("duration", -3, "0 s"), ("milliseconds", 1.25, "1.3 ms"),
        ("milliseconds", 12.4, "12 ms"), ("place", [-122.4, 37.78], "37.78000, -122.40000"),
    ]  # fmt: skip
    calls = [[name, value] for name, value, _ in examples]
    written = run(
        """const format = await load('format');
        return given[0].map(([name, value]) => format[name](value));""",
        calls,
    )
    assert written == [text for *_, text in examples]


def test_a_condition_is_completed_by_what_may_follow(run: Run):
    attributes = [{"name": "price"}, {"name": "kind", "categories": ["food", "tools"]}]
    numbers, categories = ["<", "<=", ">", ">=", "=", "!="], ["=", "!=", "in ("]
    examples = {
        "": ["price", "kind"], "price": numbers, "kind": categories, "kind =": ["food", "tools"],
        "price =": ["and", "or"], "price < 5": ["and", "or"], "price < 5 and": ["price", "kind"],
        "kind in (": ["food", "tools"], "kind in (food,": ["food", "tools"],
        "kind = food or not": ["price", "kind"], "price < 5 and kind =": ["food", "tools"],
        "kind = food and price <": ["and", "or"],
    }  # fmt: skip
    found = run(
        """const { Completion } = await load('views/completion');
        const [attributes, texts] = given;
        return texts.map((text) => Completion.prototype.possible.call({ attributes }, text));""",
        attributes,
        list(examples),
    )
    assert dict(zip(examples, found, strict=True)) == examples


def test_a_subscription_is_copied_with_its_quotes(run: Run):
    request = {"filter": "it's/#", "where": "a = 'b'", "area": None, "near": 300}
    shell, python, script = run(
        """const { SNIPPETS } = await load('views/snippets');
        const one = { text: given[0], request: given[1], place: [1.5, 2.25] };
        return ['mosquitto_sub', 'Python', 'JavaScript'].map((name) => SNIPPETS[name](one));""",
        "$near/300m/it's/#", request,
    )  # fmt: skip
    assert r"-t '$near/300m/it'\''s/#'" in shell
    assert "user-property lon 1.500000 -D connect user-property lat 2.250000" in shell
    compile(python, "snippet", "exec")
    assert """wanted.UserProperty = ("$where", "a = 'b'")""" in python
    assert 'wanted.UserProperty = ("$near", "300m")' in python
    assert "$area" not in python + script
    assert 'client.subscribe("it\'s/#"' in script
    assert r"{\"lon\":1.5,\"lat\":2.25}" in script


def test_figures_of_nodes_are_per_second_and_begin_anew_after_a_restart(run: Run):
    found = run(
        """const { NodeFigures, perSecond } = await load('views/nodefigures');
        const nodes = new NodeFigures();
        const tell = (name, uptime_s, t, sent) =>
          nodes.take(JSON.stringify({ node: {}, figures: { name, uptime_s, t, sent } }));
        const rate = (one) => perSecond(one, (figures) => figures.sent);
        const sent = () => nodes.all().map((one) => [one.figures.name, rate(one)]);
        tell('west', 10, 10_000, 100);
        tell('east', 5, 10_000, 7);
        const first = sent();
        tell('west', 14, 14_000, 180);
        const second = sent();
        tell('west', 1, 16_000, 3);
        nodes.take('{"figures": {}}');
        nodes.take('no JSON');
        const third = sent();
        nodes.known.get('east').at -= 8000;
        return [first, second, third, sent()];"""
    )
    assert found[0] == [["east", None], ["west", None]]
    assert found[1] == [["east", None], ["west", 20]]
    assert found[2] == [["east", None], ["west", None]]
    assert found[3] == [["west", None]]
