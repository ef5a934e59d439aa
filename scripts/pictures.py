"""Makes the pictures of the page for README and docs: a small city on four nodes, and a browser.

    make pictures

Needs Chromium, playwright and Pillow (make setup) and nats-server. Takes about a minute.
"""

from __future__ import annotations

import asyncio
import io
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image
from playwright.async_api import async_playwright

from nearcast.demo.city import BOUNDS, EAST, NORTH, SOUTH, WEST, DemoCity
from nearcast.demo.history import STEP_S, tracks_before
from nearcast.demo.inhabitants import Inhabitants
from nearcast.demo.nodes import Brokers
from nearcast.demo.quadrants import quadrant_plan
from nearcast.locality import Rect

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

TARGET = Path("docs/pictures")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
LARGEST = 1_000_000
LEAVES = 28  # so many that each of the four nodes has some
WIDE, PHONE, MOVING = (1400, 860), (390, 844), (960, 600)
FRAMES, FRAME_MS = 36, 140
CITY = {"west": WEST, "south": SOUTH, "east": EAST, "north": NORTH}
MARKET = DemoCity(1).districts[0]
AROUND_DEGREES = 0.006
_FRAME = """async (bounds) => {
  const { testing } = await import('/assets/js/main.js');
  (await testing.map()).frame(bounds, true);
}"""
_PIXEL = """async ([lon, lat]) => {
  const { testing } = await import('/assets/js/main.js');
  const { map } = await testing.map();
  const box = map.element.getBoundingClientRect();
  const [x, y] = map.camera.toScreen(lon, lat);
  return [x + box.left, y + box.top];
}"""
_CLIENT = """async () => {
  const { testing } = await import('/assets/js/main.js');
  const { map } = await testing.map();
  const { width, height } = map.camera;
  const box = map.element.getBoundingClientRect();
  const inside = map.inView.filter(([, x, y]) =>
    x > 300 && x < width - 460 && y > 150 && y < height - 150);
  const [, x, y] = inside.find(([one]) => one.id.startsWith('car')) ?? inside[0];
  return [x + box.left, y + box.top];
}"""


async def main() -> None:
    if CHROMIUM is None:
        sys.exit("Chromium is missing. Debian/Ubuntu: apt install chromium")
    with tempfile.TemporaryDirectory() as directory:
        async with Brokers(Path(directory)) as brokers:
            people = Inhabitants(160, brokers.ports)
            await people.begin()
            await people.live(4, lambda *_: None)
            tracks = tracks_before(160, 1)
            plan = quadrant_plan(Rect(*BOUNDS), tracks.values(), LEAVES, len(brokers.names), STEP_S)
            while len(set(await brokers.share(plan))) < len(brokers.names):  # noqa: ASYNC110
                await asyncio.sleep(1)  # a busy node may just not have been in the list
            life = asyncio.create_task(live_on(people))
            await take_all(brokers.address.replace("#demo&", "#"))
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)
            await people.go()


async def live_on(people: Inhabitants) -> None:
    while True:
        await people.live(30, lambda *_: None)


async def take_all(address: str) -> None:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for theme in ("light", "dark"):
            wide = await opened(browser, address, WIDE, theme)
            await shot(wide, f"page-map-{theme}")
            x, y = await wide.evaluate(_CLIENT)
            await wide.mouse.click(x, y)
            await wide.wait_for_timeout(1500)
            await shot(wide, f"page-client-{theme}")
            if theme == "light":
                await try_it(wide)
                await shot(wide, "page-try")
            await go(wide, "overview", 9_000)
            await shot(wide, f"page-overview-{theme}")
            await wide.context.close()
            phone = await opened(browser, address, PHONE, theme)
            await shot(phone, f"page-phone-{theme}")
            await phone.context.close()
        moving = await opened(browser, address, MOVING, "dark")
        await animation(moving, "page")
        await browser.close()


async def opened(browser: Browser, address: str, size: tuple[int, int], theme: Any) -> Page:
    """Open the page and let it watch for a while, so that there are trails."""
    viewport: Any = {"width": size[0], "height": size[1]}
    context = await browser.new_context(viewport=viewport, color_scheme=theme)
    page = await context.new_page()
    await page.goto(address)
    await page.locator(".live", has_text="Live").wait_for()
    await page.locator(".fact", has_text="160 clients").wait_for()
    await page.evaluate(_FRAME, CITY)
    await page.wait_for_timeout(6_000)
    return page


async def go(page: Page, route: str, wait_ms: int) -> None:
    await page.evaluate("(route) => { location.hash = `#/${route}`; }", route)
    await page.wait_for_timeout(wait_ms)


async def try_it(page: Page) -> None:
    """Draw a circle around the market square and write a condition."""
    await go(page, "try", 500)
    lon, lat = MARKET
    await page.evaluate(_FRAME, around(lon, lat))
    await page.wait_for_timeout(3_000)  # trails begin anew
    await page.get_by_role("button", name="Circle").click()
    x, y = await page.evaluate(_PIXEL, [lon, lat])
    edge, _ = await page.evaluate(_PIXEL, [lon + 0.003, lat])
    await page.mouse.move(x, y)
    await page.mouse.down()
    await page.mouse.move(edge, y, steps=5)
    await page.mouse.up()
    await page.get_by_label("Condition").fill("price < 12")
    await page.wait_for_timeout(5_000)


def around(lon: float, lat: float) -> dict[str, float]:
    """Return the bounds of a neighbourhood."""
    return {
        "west": lon - AROUND_DEGREES,
        "south": lat - AROUND_DEGREES,
        "east": lon + AROUND_DEGREES,
        "north": lat + AROUND_DEGREES,
    }


async def shot(page: Page, name: str) -> None:
    image = Image.open(io.BytesIO(await page.screenshot())).convert("RGB")
    path = TARGET / f"{name}.webp"
    image.save(path, quality=88, method=6)
    told(path)


async def animation(page: Page, name: str) -> None:
    """Take frames as fast as they are shown, and write them as an animated WebP."""
    loop = asyncio.get_running_loop()
    frames = []
    for _ in range(FRAMES):
        due_s = loop.time() + FRAME_MS / 1000
        raw = await page.screenshot(type="jpeg", quality=90)
        frames.append(Image.open(io.BytesIO(raw)).convert("RGB"))
        await asyncio.sleep(max(0, due_s - loop.time()))
    path = TARGET / f"{name}.webp"
    options: dict[str, Any] = {"duration": FRAME_MS, "loop": 0, "quality": 55, "method": 5}
    frames[0].save(path, save_all=True, append_images=frames[1:], **options)
    told(path)


def told(path: Path) -> None:
    size = path.stat().st_size
    print(f"{path}  {size // 1000} kB")
    if size > LARGEST:
        sys.exit(f"{path} has {size:,} bytes; at most {LARGEST:,} are wanted")


if __name__ == "__main__":
    asyncio.run(main())
