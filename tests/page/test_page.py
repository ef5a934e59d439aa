"""The page in a real browser: who may see what, the map, Try it, what clients might plant in it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image
from tests.page.conftest import BAKERY, PageTown
from tests.support.tile_files import MVT, vector_tile, write_tiles
from tests.support.waiting import wait_for

from nearcast.demo.city import BOUNDS
from nearcast.demo.quadrants import quadrant_plan
from nearcast.locality import Rect
from nearcast.locality.layout.planfile import save_plan

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.server
OpenPage = Callable[..., "Page"]
EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"


@pytest.fixture(scope="module", autouse=True)
def _people(town: PageTown) -> None:
    town.come("ana", (-122.4080, 37.7870), "$near/300m/shops/#", label="Ana's circle")
    town.come("ben", (-122.4030, 37.7920), "$near/300m/shops/#")
    town.come("cleo", (-122.4060, 37.7885), "$area/-122.41,37.786,-122.405,37.79/shops/#")


def on_screen(page: Page, lon: float, lat: float) -> tuple[float, float]:
    """Return the pixel of a place, by the page's own view."""
    found: Any = page.evaluate(
        """async ([lon, lat]) => {
             const { testing } = await import('/assets/js/main.js');
             const view = await testing.map();
             const box = view.map.element.getBoundingClientRect();
             const [x, y] = view.map.camera.toScreen(lon, lat);
             return [x + box.left, y + box.top];
           }""",
        [lon, lat],
    )
    return found[0], found[1]


def test_who_is_not_logged_in_sees_the_login_only(open_page: OpenPage):
    page = open_page(None, quiet=False)
    page.get_by_role("heading", name="Log in").wait_for()
    assert page.locator(".tabs").is_hidden()
    page.get_by_label("Name", exact=True).fill("ann")
    page.get_by_label("Password").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    page.get_by_text("The name or the password is wrong.").wait_for()


def test_a_click_on_a_client_says_what_it_is_and_why_it_got_a_message_or_not(
    open_page: OpenPage, town: PageTown
):
    page = open_page()
    page.locator(".fact", has_text="3 clients").wait_for()
    town.publish("shops/bread")
    page.mouse.click(*on_screen(page, -122.4080, 37.7870))
    panel = page.locator(".panel")
    panel.get_by_role("heading", name="ana").wait_for()
    panel.get_by_text("near 300 m").wait_for()
    panel.get_by_text("It is delivered.").wait_for()
    page.mouse.click(*on_screen(page, -122.4030, 37.7920))
    panel.get_by_role("heading", name="ben").wait_for()
    panel.get_by_text("It is not delivered.").wait_for()
    page.keyboard.press("Escape")


def test_an_event_on_the_map_says_whom_it_reached(open_page: OpenPage, town: PageTown):
    page = open_page()
    page.locator(".fact", has_text="3 clients").wait_for()
    reached = """async () => {
      const { testing } = await import('/assets/js/main.js');
      const { scene } = await testing.map();
      const rolls = scene.happenings.all.filter(({ topic }) => topic === 'shops/rolls');
      return rolls.some(({ to }) => to.length === 2);
    }"""
    x, y = on_screen(page, *BAKERY)

    def is_told() -> bool:
        town.publish("shops/rolls")  # it can be clicked for two seconds
        page.wait_for_function(reached)
        page.mouse.click(x, y)
        return page.locator(".panel").get_by_role("heading", name="shops/rolls").count() == 1

    wait_for(is_told)
    assert page.locator(".panel .chips").inner_text().split() == ["ana", "cleo"]


def test_a_click_on_the_ground_says_who_listens_there(open_page: OpenPage):
    page = open_page()
    page.locator(".fact", has_text="3 clients").wait_for()
    known = (
        "async () => (await (await import('/assets/js/main.js')).testing.map()).scene.ranges.length"
    )
    wait_for(lambda: page.evaluate(known) == 2)
    panel = page.locator(".panel")
    page.mouse.click(*on_screen(page, -122.4084, 37.7875))  # 66 m from ana, in cleo's area
    panel.get_by_role("heading", name="Who listens here · 2").wait_for()
    assert panel.locator(".subs li button").all_inner_texts() == ["cleo", "ana"]
    page.mouse.click(*on_screen(page, -122.4045, 37.7915))  # near ben
    panel.get_by_role("heading", name="Who listens here · 1").wait_for()
    panel.get_by_role("button", name="ben").click()
    panel.get_by_role("heading", name="ben").wait_for()
    page.mouse.click(*on_screen(page, -122.4084, 37.7875))
    panel.wait_for(state="hidden")


def test_a_client_of_the_list_is_found_on_the_map(open_page: OpenPage):
    page = open_page(route="clients")
    page.get_by_role("button", name="ben").click()
    page.get_by_role("link", name="Show on the map").click()
    page.locator(".panel").get_by_role("heading", name="ben").wait_for()
    x, y = on_screen(page, -122.4030, 37.7920)
    box = page.locator(".map-canvas").bounding_box()
    assert box is not None
    assert x == pytest.approx(box["x"] + box["width"] / 2, abs=2)
    assert y == pytest.approx(box["y"] + box["height"] / 2, abs=2)


def test_the_learning_view_has_the_plan_before(
    other_town: Callable[..., PageTown], open_page: OpenPage, tmp_path: Path
):
    track = [(-122.41 + step * 1e-4, 37.785 + step * 1e-4) for step in range(60)]
    for name, leaves in (("plan-before.json", 4), ("plan.json", 10)):
        save_plan(quadrant_plan(Rect(*BOUNDS), [track, track[::-1]], leaves, 2), tmp_path / name)
    page = open_page(route="learning", of=other_town())
    page.get_by_role("heading", name="The plan before, and now").wait_for()
    captions = page.locator("figcaption").all_inner_texts()
    assert [one.partition(":")[0] for one in captions] == [
        "The plan before",
        "The plan of the last run",
    ]
    assert captions[0].partition(":")[2] != captions[1].partition(":")[2]


def test_the_slider_goes_back_in_time_and_a_button_to_now(open_page: OpenPage, town: PageTown):
    page = open_page()
    page.locator(".fact", has_text="3 clients").wait_for()
    town.come("passer-by", (-122.4065, 37.7880))
    page.locator(".fact", has_text="4 clients").first.wait_for()
    town.leave("passer-by")
    page.locator(".fact", has_text="3 clients").first.wait_for()
    names = """async (seconds) => {
      const { testing } = await import('/assets/js/main.js');
      const view = await testing.map();
      view.travel(seconds);
      return view.scene.past.spots.map(([one]) => one.id).sort();
    }"""
    assert page.evaluate(names, -0.001) == ["ana", "ben", "cleo"]
    seen = [page.evaluate(names, -0.5 * step) for step in range(1, 30)]
    assert ["ana", "ben", "cleo", "passer-by"] in seen
    page.locator(".now.past").click()
    page.locator(".now", has_text="Live").wait_for()


def test_try_it_takes_a_drawn_circle_and_a_condition_and_shows_what_arrives(
    open_page: OpenPage, town: PageTown
):
    page = open_page(route="try")
    page.locator(".fact", has_text="3 clients").wait_for()
    page.get_by_role("button", name="Circle").click()
    x, y = on_screen(page, *BAKERY)
    edge, _ = on_screen(page, BAKERY[0] + 0.0012, BAKERY[1])
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(edge, y, steps=4)
    page.mouse.up()
    condition = page.get_by_label("Condition")
    condition.fill("pri")
    page.get_by_role("option", name="price").wait_for()
    condition.press("Enter")  # takes the completion
    condition.press_sequentially("< 10 and kind = f")
    page.get_by_role("option", name="food").wait_for()
    condition.press("Tab")
    assert condition.input_value() == "price < 10 and kind = food "
    page.locator(".snippet pre", has_text="price").wait_for()
    snippet = page.locator(".snippet pre").inner_text()
    assert "mosquitto_sub" in snippet
    assert "$where/price<10;kind=food/" in snippet
    assert "$area/" in snippet
    page.get_by_role("button", name="Python").click()
    assert "paho" in page.locator(".snippet pre").inner_text()
    page.get_by_text("1 of 3 clients").wait_for()
    found = page.locator(".messages li code.wrap")

    def is_subscribed() -> bool:
        town.publish("shops/cheap", price=5)
        return found.count() > 0

    wait_for(is_subscribed)
    town.publish("shops/dear", price=50)
    town.publish("shops/far", (-122.39, 37.79))
    town.publish("shops/last", price=5)
    page.locator(".messages li", has_text="shops/last").wait_for()
    assert set(found.all_inner_texts()) == {"shops/cheap", "shops/last"}


def test_a_box_a_polygon_and_the_own_circle_become_what_was_drawn(open_page: OpenPage):
    page = open_page(route="try")
    page.locator(".fact", has_text="3 clients").wait_for()
    page.evaluate(_LOOK, [-122.412, 37.784, -122.400, 37.794])
    request = """async () => {
      const { testing } = await import('/assets/js/main.js');
      return (await testing.map()).tryIt.request();
    }"""
    around_cleo = [(-122.4085, 37.7880), (-122.4050, 37.7930)]  # ana is south, ben east of it

    def press(*places: tuple[float, float]) -> None:
        (x, y), *others = [on_screen(page, *place) for place in places]
        page.mouse.move(x, y)
        page.mouse.down()
        for at in others:
            page.mouse.move(*at, steps=4)
        page.mouse.up()

    page.get_by_role("button", name="Box").click()
    press(*reversed(around_cleo))  # from the north-east
    page.get_by_text("1 of 3 clients").wait_for()
    area: str = page.evaluate(request)["area"]
    west, south, east, north = area.removeprefix("bbox(").removesuffix(")").split(",")
    near = 2e-5  # degrees: a pixel
    assert float(west) == pytest.approx(around_cleo[0][0], abs=near)
    assert float(south) == pytest.approx(around_cleo[0][1], abs=near)
    assert float(east) == pytest.approx(around_cleo[1][0], abs=near)
    assert float(north) == pytest.approx(around_cleo[1][1], abs=near)

    page.get_by_role("button", name="Polygon").click()
    corners = [(-122.4090, 37.7860), (-122.4050, 37.7890), (-122.4090, 37.7890)]
    for corner in corners[:2]:
        press(corner)
    page.mouse.dblclick(*on_screen(page, *corners[2]))
    page.get_by_text("A polygon of 3 corners.").wait_for()
    page.get_by_text("2 of 3 clients").wait_for()
    area = page.evaluate(request)["area"]
    [ring] = json.loads(area.removeprefix("geojson(").removesuffix(")"))["coordinates"]
    assert ring[0] == ring[-1]
    assert [tuple(place) for place in ring[:3]] == [pytest.approx(one, abs=near) for one in corners]

    page.get_by_role("button", name="Near me").click()
    page.get_by_label("Radius in metres").fill("150")
    press((-122.4030, 37.7920))
    page.locator(".snippet pre", has_text="$near/150m/").wait_for()
    asked = page.evaluate(request)
    assert (asked["near"], asked["area"]) == (150, None)
    page.get_by_text("1 of 3 clients").wait_for()  # ben


def test_a_wrong_condition_is_explained(open_page: OpenPage):
    page = open_page(route="try")
    page.get_by_label("Condition").fill("prize < 10")
    page.get_by_text("Did you mean price?").wait_for()


def test_an_operator_disconnects_a_client(open_page: OpenPage, town: PageTown):
    town.come("victim")
    page = open_page(route="clients")
    page.get_by_label("Search clients").fill("victim")
    page.get_by_role("button", name="victim").click()
    page.get_by_role("button", name="Disconnect").click()
    page.get_by_role("button", name="Press again").click()
    page.get_by_text("No client has a name like this").wait_for()
    wait_for(lambda: "victim" in town.ended)
    town.leave("victim")


def test_a_viewer_sees_no_place_and_can_change_nothing(open_page: OpenPage, town: PageTown):
    page = open_page("vic", quiet=False)  # what is refused stands on the browser's console
    town.publish("shops/bread")
    page.locator(".fact", has_text="events/s").wait_for()
    assert page.locator(".fact", has_text="clients").count() == 0
    assert page.evaluate("fetch('/api/positions').then((answer) => answer.status)") == 403
    page.goto(f"{town.address}#/clients")
    page.get_by_role("button", name="ana").click()
    page.get_by_text("near 300 m").wait_for()
    assert page.get_by_role("button", name="Disconnect").count() == 0
    assert "37.787" not in page.inner_text("main")
    page.goto(f"{town.address}#/log")
    page.get_by_text("Only operators may read the log.").wait_for()


def test_nothing_that_a_client_writes_becomes_markup(open_page: OpenPage, town: PageTown):
    town.come(EVIL, (-122.4070, 37.7880), f"shops/{EVIL}", label=EVIL)
    town.clients[EVIL].publish(f"shops/{EVIL}", EVIL, qos=1, retain=True).wait_for_publish(10)
    page = open_page()
    town.publish(f"shops/{EVIL}", note=EVIL)
    for route, marked in (
        ("clients", ".table-wrap"),
        ("topics", ".table-wrap"),
        ("try", ".messages"),
        ("log", ".log"),
    ):
        page.goto(f"{town.address}#/{route}")
        town.publish(f"shops/{EVIL}", note=EVIL)
        page.locator(marked, has_text="onerror" if route != "log" else "").first.wait_for()
    page.goto(f"{town.address}#/clients")
    page.get_by_role("button", name=EVIL).click()
    page.locator(".detail .subs", has_text="onerror").wait_for()
    page.goto(f"{town.address}#/map")
    page.mouse.click(*on_screen(page, -122.4070, 37.7880))
    page.locator(".panel", has_text="onerror").wait_for()
    assert page.locator("main img, main script").count() == 0
    town.leave(EVIL)


def test_the_page_can_be_used_with_the_keyboard(open_page: OpenPage):
    page = open_page()
    page.reload()
    page.locator(".live", has_text="Live").wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.locator(".map-canvas").focus()
    before = on_screen(page, *BAKERY)
    page.keyboard.press("ArrowRight")
    x, y = on_screen(page, *BAKERY)
    assert x < before[0]
    assert y == pytest.approx(before[1])
    page.keyboard.press("ArrowDown")
    assert on_screen(page, *BAKERY)[0] == pytest.approx(x)
    assert on_screen(page, *BAKERY)[1] < y
    away = on_screen(page, BAKERY[0] + 0.001, BAKERY[1])[0] - x
    page.keyboard.press("+")
    nearer = on_screen(page, BAKERY[0] + 0.001, BAKERY[1])[0] - on_screen(page, *BAKERY)[0]
    assert nearer > 1.2 * away
    page.get_by_role("link", name="Overview").focus()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Overview").wait_for()
    page.get_by_role("button", name="Dark colours").press("Enter")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_on_a_phone_nothing_stands_out_of_the_screen(open_page: OpenPage):
    page = open_page(width=390)
    for route in ("map", "try", "overview", "clients", "topics", "nodes", "learning", "log"):
        page.evaluate("(route) => { location.hash = `#/${route}`; }", route)
        page.wait_for_function("(route) => document.title !== 'Nearcast'", arg=route)
        page.wait_for_timeout(200)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 390, route
    page.get_by_role("button", name="More views").click()
    page.get_by_role("link", name="Log").click()
    page.get_by_role("heading", name="Log").wait_for()


def test_every_file_comes_from_this_broker_and_is_small(open_page: OpenPage, town: PageTown):
    page = open_page(None, quiet=False)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.reload()
    page.get_by_role("heading", name="Log in").wait_for()
    assert asked
    assert all(url.startswith(town.address) for url in asked)


@pytest.fixture
def other_town(tmp_path: Path) -> Iterator[Callable[..., PageTown]]:
    """Return what starts a town with other settings of [http]."""
    started: list[PageTown] = []

    def start(**http: Any) -> PageTown:
        started.append(PageTown(tmp_path, **http))
        return started[-1]

    yield start
    for one in started:
        one.end()


_GROUND = """async ([lon, lat]) => {
  const { testing } = await import('/assets/js/main.js');
  const { map } = await testing.map();
  const [x, y] = map.camera.toScreen(lon, lat);
  const dot = map.ground.getImageData(x * map.ratio, y * map.ratio, 1, 1).data;
  return [...dot].slice(0, 3);
}"""
_LOOK = """async ([west, south, east, north]) => {
  const { testing } = await import('/assets/js/main.js');
  const view = await testing.map();
  while (view.map.camera.width <= 1) await new Promise(requestAnimationFrame);
  view.frame({ west, south, east, north }, true);
}"""
_COLOUR = "(name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim()"


def ground_at(page: Page, lon: float, lat: float) -> tuple[int, ...]:
    return tuple(page.evaluate(_GROUND, [lon, lat]))


def wait_for_ground(page: Page, lon: float, lat: float, wanted: tuple[int, ...]) -> None:
    wait_for(lambda: ground_at(page, lon, lat) == wanted)


def colour(page: Page, name: str) -> tuple[int, ...]:
    text: str = page.evaluate(_COLOUR, name)
    return tuple(bytes.fromhex(text[1:]))


def test_images_out_of_a_file_are_the_ground(
    other_town: Callable[..., PageTown], open_page: OpenPage, tmp_path: Path
):
    def plain(*rgb: int) -> bytes:
        file = io.BytesIO()
        Image.new("RGB", (64, 64), rgb).save(file, "png")
        return file.getvalue()

    west, east = plain(200, 30, 30), plain(30, 30, 200)
    tiles = {(0, 0, 0): plain(9, 9, 9), (1, 0, 0): west, (1, 0, 1): west, (1, 1, 0): east}
    path = write_tiles(tmp_path / "a.pmtiles", tiles, metadata={"attribution": "© <b>us</b>"})
    page = open_page(of=other_town(tiles=str(path)))
    page.evaluate(_LOOK, [-120, -60, 120, 60])
    wait_for(lambda: ground_at(page, -63.1, 33.3) == (200, 30, 30))
    wait_for(lambda: ground_at(page, 63.1, 33.3) == (30, 30, 200))
    wait_for(lambda: ground_at(page, 63.1, -33.3) == (9, 9, 9))  # a hole: the tile above has it
    page.evaluate(_LOOK, [10, 50, 10.2, 50.1])  # nearer than any tile
    wait_for(lambda: ground_at(page, 10.101, 50.053) == (30, 30, 200))
    assert page.locator(".map-source").inner_text() == "© us"


def test_an_enlarged_tile_shows_the_part_that_belongs_there(
    other_town: Callable[..., PageTown], open_page: OpenPage, tmp_path: Path
):
    colours = {(x, y): (40 + 50 * x, 40 + 50 * y, 90) for x in range(4) for y in range(4)}
    picture = Image.new("RGB", (64, 64))
    for (x, y), rgb in colours.items():
        picture.paste(rgb, (16 * x, 16 * y, 16 * x + 16, 16 * y + 16))
    file = io.BytesIO()
    picture.save(file, "png")
    plain = io.BytesIO()
    Image.new("RGB", (64, 64), (250, 250, 250)).save(plain, "png")
    tiles = {(0, 0, 0): file.getvalue(), (2, 3, 3): plain.getvalue()}
    page = open_page(of=other_town(tiles=str(write_tiles(tmp_path / "a.pmtiles", tiles))))
    # the middles of the sixteen tiles of zoom 2: Mercator, so rows are not as many degrees
    lons, lats = (-135, -45, 45, 135), (79.171, 40.98, -40.98, -79.171)
    for x, y in ((0, 0), (1, 0), (2, 1), (1, 2), (3, 2), (0, 3)):
        lon, lat = lons[x] + 1.7, lats[y] + 0.7
        page.evaluate(_LOOK, [lon - 40, lat - 5, lon + 40, lat + 5])
        wait_for_ground(page, lon, lat, colours[x, y])
    page.evaluate(_LOOK, [100, -82, 170, -76])
    wait_for(lambda: ground_at(page, 136.7, -78.4) == (250, 250, 250))


def test_an_enlarged_tile_of_shapes_shows_the_part_that_belongs_there(
    other_town: Callable[..., PageTown], open_page: OpenPage, tmp_path: Path
):
    whole = [(0, 0), (4096, 0), (4096, 4096), (0, 4096)]
    lake = [(2048, 1024), (4096, 1024), (4096, 2048), (2048, 2048)]  # in the north-east
    tile = vector_tile({"earth": [(3, [whole], {})], "water": [(3, [lake], {})]})
    tiles = {(0, 0, 0): tile, (3, 7, 7): tile}
    path = write_tiles(tmp_path / "a.pmtiles", tiles, kind=MVT, tiles_packed=True)
    page = open_page(of=other_town(tiles=str(path)))
    sea, land = colour(page, "--sea"), colour(page, "--land")
    for lon, lat, wanted in (
        (41.3, 20.7, sea), (121.3, 20.7, sea), (-41.3, 20.7, land), (41.3, -20.7, land),
        (-121.3, 50.7, land), (121.3, 72.7, land),
    ):  # fmt: skip
        page.evaluate(_LOOK, [lon - 15, lat - 5, lon + 15, lat + 5])
        wait_for_ground(page, lon, lat, wanted)


def test_shapes_out_of_a_file_are_drawn_in_the_colours_of_the_page(
    other_town: Callable[..., PageTown], open_page: OpenPage, tmp_path: Path
):
    square = [(1024, 1024), (3072, 1024), (3072, 3072), (1024, 3072)]
    hole = [(1536, 1536), (1536, 2560), (2560, 2560), (2560, 1536)]
    road = [(0, 512), (4096, 512)]
    tile = vector_tile(
        {
            "earth": [(3, [[(0, 0), (4096, 0), (4096, 4096), (0, 4096)]], {})],
            "water": [(3, [square, hole], {"kind": "lake"})],
            "roads": [(2, [road], {"kind": "highway"})],
            "places": [(1, [[(300, 3800)]], {"name": EVIL})],
        }
    )
    tiles = {(0, 0, 0): tile, (1, 1, 1): b"\x1a\xff damaged"}
    path = write_tiles(tmp_path / "a.pmtiles", tiles, kind=MVT, tiles_packed=True)
    page = open_page(of=other_town(tiles=str(path)))
    page.evaluate(_LOOK, [-179, -80, 179, 80])
    sea, land = colour(page, "--sea"), colour(page, "--land")
    wait_for(lambda: ground_at(page, 61, 3) == sea)
    assert ground_at(page, 3, 3) == land  # in the hole
    assert ground_at(page, 121, 3) == land
    assert ground_at(page, 21, 79.17) not in (sea, land)  # the road
    page.get_by_role("button", name="Dark colours").click()
    wait_for(lambda: ground_at(page, 61, 3) == colour(page, "--sea") != sea)
    page.evaluate(_LOOK, [100, -60, 120, -50])  # the damaged tile: the one above stands in for it
    wait_for(lambda: ground_at(page, 111, -55.3) == colour(page, "--land"))


def test_a_click_on_the_ground_says_which_area_of_the_plan_it_is(
    other_town: Callable[..., PageTown], open_page: OpenPage, tmp_path: Path
):
    track = [(-122.41 + step * 1e-4, 37.785 + step * 1e-4) for step in range(60)]
    plan = quadrant_plan(Rect(*BOUNDS), [track, track[::-1]], 10, 2)
    save_plan(plan, tmp_path / "plan.json")
    town = other_town()
    leaf = plan.leaves[0]
    west, south, east, north = leaf.rect
    lon, lat = west + 0.3 * (east - west), south + 0.3 * (north - south)
    town.come("inside", (lon + 0.1 * (east - west), lat))
    page = open_page(of=town)
    page.locator(".fact", has_text="1 client").first.wait_for()
    page.evaluate(_LOOK, list(leaf.rect))
    page.mouse.click(*on_screen(page, lon, lat))
    panel = page.locator(".panel")
    panel.get_by_role("heading", name=f"broker {plan.broker_of(leaf.number)}").wait_for()
    facts = panel.locator("dl").inner_text().split("\n")
    assert facts[facts.index("Clients now") + 1] == "1"
    assert facts[facts.index("Users, as learned") + 1] == str(leaf.load)
    page.keyboard.press("Escape")
    panel.wait_for(state="hidden")


def test_the_overview_has_a_row_for_each_node_of_a_network(open_page: OpenPage):
    page = open_page(route="overview")
    page.get_by_role("heading", name="Overview").wait_for()
    tell = """async (seconds) => {
      const { testing } = await import('/assets/js/main.js');
      const figures = await (await fetch('/api/overview')).json();
      const [node] = (await (await fetch('/api/nodes')).json()).nodes;
      const told = { name: 'other', uptime_s: seconds, t: 1000 * seconds, sent: 70 * seconds };
      Object.assign(figures, told);
      (await testing.view('overview')).nodes.take(JSON.stringify({ figures, node }));
    }"""
    for seconds in (10, 12):
        page.evaluate(tell, seconds)
    row = page.get_by_role("row", name="other")
    row.wait_for()  # with that of this node, which tells its figures itself
    cells = row.get_by_role("cell").all_inner_texts()
    assert (cells[0], cells[2]) == ("other", "70")
    assert page.get_by_role("row", name="nearcast").count() == 1
    page.evaluate("location.hash = '#/map'")
    live = "fetch('/api/topics?search=figures').then((answer) => answer.json())"
    wait_for(lambda: page.evaluate(live)["items"] == [])


def test_a_page_that_nobody_sees_watches_nothing(open_page: OpenPage, town: PageTown):
    page = open_page()
    page.locator(".fact", has_text="3 clients").wait_for()
    watched = """async (hidden) => {
      const { testing } = await import('/assets/js/main.js');
      const { feed } = await testing.map();
      Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });
      feed.seen(!hidden, 1);
    }"""

    def live() -> list[str]:
        found: Any = page.evaluate("fetch('/api/topics').then((answer) => answer.json())")
        filters = [one["filter"] for one in found["items"]]
        return [one for one in filters if one.startswith("$nearcast/live")]

    assert len(live()) == 2
    page.evaluate(watched, True)
    wait_for(lambda: not live())
    town.come("unseen", (-122.4065, 37.7880))
    page.evaluate(watched, False)
    page.locator(".fact", has_text="4 clients").first.wait_for()
    assert len(live()) == 2
    town.leave("unseen")


def test_a_restarted_broker_is_found_again_without_anybody_s_help(
    open_page: OpenPage, town: PageTown
):
    page = open_page(quiet=False)
    page.locator(".live", has_text="Live").wait_for()
    for name in list(town.clients):
        town.leave(name)
    town.broker.end()
    page.get_by_text("The broker does not answer").wait_for()
    town.broker.start()
    page.locator(".live", has_text="Live").wait_for()
    town.come("dora", (-122.4080, 37.7870))
    page.locator(".fact", has_text="1 client").wait_for()
