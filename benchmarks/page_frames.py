"""The page in a real browser: first paint, frames per second, size of its files, broker CPU.

    .venv/bin/python -m benchmarks.page_frames 2000 10000

The browser is headless Chromium, which draws on the CPU and shares it with the broker and with
this program, which is all of the clients. So the broker's CPU is taken in three states, by turns:
no page; the page; and the page without its connection, which draws as before. What the page costs
the broker is the second by the third; the third by the first is what a busy neighbour costs it.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import resource
import shutil
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.dashboard import Crowd, ManagedProcess

import nearcast

if TYPE_CHECKING:
    from playwright.async_api import Page

WINDOW_S = 10.0
ROUNDS = 5
STATES = ("none", "drawing", "page")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
PAGE = Path(nearcast.__file__).parent / "server" / "http" / "page"
_DRAWN = """async () => {
  const { testing } = await import('/assets/js/main.js');
  const { map, scene } = await testing.map();
  const begun = performance.now();
  for (let i = 0; i < 30; i++) map.drawFrame(Date.now());
  return [(performance.now() - begun) / 30, scene.crowd.size, map.inView.length];
}"""
_FRAMES = """(ms) => new Promise((done) => {
  let frames = 0;
  const begun = performance.now();
  const next = () => {
    frames++;
    if (performance.now() - begun < ms) requestAnimationFrame(next);
    else done((frames * 1000) / (performance.now() - begun));
  };
  requestAnimationFrame(next);
})"""
_DETACH = """async () => {
  const { testing } = await import('/assets/js/main.js');
  const live = await import('/assets/js/live.js');
  (await testing.map()).feed.stop();
  live.disconnect();
}"""
_PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"


def compressed_bytes() -> int:
    """Return the size of all files of the page, each compressed."""
    return sum(len(gzip.compress(path.read_bytes(), 9)) for path in PAGE.rglob("*.*"))


async def measure(clients: int) -> dict[str, Any]:
    """Return the figures with so many clients that move."""
    from playwright.async_api import async_playwright

    broker = ManagedProcess(clients)
    try:
        crowd = Crowd(broker.port, clients)
        await crowd.connect()
        walking = asyncio.create_task(crowd.walk())
        await asyncio.sleep(6)
        async with async_playwright() as playwright:
            program = shutil.which("chromium")
            browser = await playwright.chromium.launch(executable_path=program, args=FLAGS)
            page = await browser.new_page(viewport={"width": 1400, "height": 900})
            await page.goto(f"http://127.0.0.1:{broker.http_port}/#token={broker.token}")
            await page.locator(".live", has_text="Live").wait_for()
            await page.wait_for_timeout(8_000)
            paint_ms = await page.evaluate(_PAINT)
            frames = await page.evaluate(_FRAMES, WINDOW_S * 1000)
            drawn = await page.locator(".map-facts").get_attribute("data-fps")
            draw_ms, known, in_view = await page.evaluate(_DRAWN)
            shares = await _shares(broker, page)
            await browser.close()
        walking.cancel()
    finally:
        broker.end()
    return {
        "clients": clients,
        "known": known,
        "in view": in_view,
        "first paint, ms": round(paint_ms),
        "frames/s of the browser": round(frames, 1),
        "frames/s that are drawn": drawn,
        "ms to draw a frame": round(draw_ms, 2),
        **{f"broker CPU, {name}": f"{median(some):.2%}" for name, some in shares.items()},
        "page by drawing": _ratio(shares, "page", "drawing"),
        "page by none": _ratio(shares, "page", "none"),
    }


def _ratio(shares: dict[str, list[float]], one: str, other: str) -> str:
    found = sorted(a / b for a, b in zip(shares[one], shares[other], strict=True))
    return f"{median(found):.3f} ({found[0]:.3f} to {found[-1]:.3f})"


async def _shares(broker: ManagedProcess, page: Page) -> dict[str, list[float]]:
    """Return the broker's share of a core in each state, by turns; the order alternates."""
    found: dict[str, list[float]] = {name: [] for name in STATES}
    address = page.url
    for number in range(ROUNDS):
        for name in STATES if number % 2 else STATES[::-1]:
            await page.goto("about:blank")
            if name != "none":
                await page.goto(address)
                await page.locator(".live", has_text="Live").wait_for()
                await asyncio.sleep(2)
            if name == "drawing":
                await page.evaluate(_DETACH)
            await asyncio.sleep(2)
            before = broker.cpu_s()
            await asyncio.sleep(WINDOW_S)
            found[name].append((broker.cpu_s() - before) / WINDOW_S)
    return found


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(f"all files, compressed: {compressed_bytes():,} bytes; load {os.getloadavg()[0]:.1f}")
    for clients in map(int, sys.argv[1:] or ("2000", "10000")):
        print(asyncio.run(measure(clients)), f"load {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
