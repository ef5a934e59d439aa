"""The page in a real browser: first paint, frames per second, size of its files, broker CPU.

    .venv/bin/python -m benchmarks.page_frames 2000 10000

The browser is headless Chromium, which draws on the CPU and shares it with the broker and with
this program, which is all of the clients. So the broker's CPU is taken in four states, by turns:

    none       no page
    viewer     the page's subscriptions and requests, but no browser
    recording  a page without a connection, which shows again what it got in the seconds before
    page       the page

What the page asks of the broker is viewer by none, and page by recording: both have the same
neighbours. Recording by none is what a browser on the same cores costs a broker.
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

from benchmarks.dashboard import Crowd, ManagedProcess, Viewer

import nearcast

if TYPE_CHECKING:
    from playwright.async_api import Page

WINDOW_S = 8.0
ROUNDS = 4
STATES = ("none", "viewer", "recording", "page")
RECORDED_S = 5.0
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
_DETACH = """async (ms) => {
  const { testing } = await import('/assets/js/main.js');
  const live = await import('/assets/js/live.js');
  const { feed } = await testing.map();
  const begun = performance.now();
  const kept = [];
  for (const name of ['positions', 'deliveries', 'event']) {
    const method = feed[name];
    feed[name] = function (...given) {
      kept.push([performance.now() - begun, method, given]);
      return method.apply(this, given);
    };
  }
  await new Promise((done) => setTimeout(done, ms));
  feed.stop();
  live.disconnect();
  const again = () => {
    for (const [at, method, given] of kept) setTimeout(() => method.apply(feed, given), at);
  };
  again();
  setInterval(again, ms);
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
            shares, browsing = await _shares(broker, page)
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
        **{f"browser CPU, {name}": f"{median(some):.0%}" for name, some in browsing.items()},
        "viewer by none": _ratio(shares, "viewer", "none"),
        "page by recording": _ratio(shares, "page", "recording"),
        "recording by none": _ratio(shares, "recording", "none"),
        "page by none": _ratio(shares, "page", "none"),
    }


def _ratio(shares: dict[str, list[float]], one: str, other: str) -> str:
    found = sorted(a / b for a, b in zip(shares[one], shares[other], strict=True))
    return f"{median(found):.3f} ({found[0]:.3f} to {found[-1]:.3f})"


async def _shares(
    broker: ManagedProcess, page: Page
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return the shares of a core of broker and browser in each state, by turns."""
    found: dict[str, list[float]] = {name: [] for name in STATES}
    browsing: dict[str, list[float]] = {"recording": [], "page": []}
    address = page.url
    for number in range(ROUNDS):
        for name in STATES if number % 2 else STATES[::-1]:
            viewer = await _begin(name, broker, page, address)
            await asyncio.sleep(2)
            before, browser_before = broker.cpu_s(), _browser_s()
            await asyncio.sleep(WINDOW_S)
            found[name].append((broker.cpu_s() - before) / WINDOW_S)
            if name in browsing:
                browsing[name].append((_browser_s() - browser_before) / WINDOW_S)
            if viewer is not None:
                await viewer.close()
    return found, browsing


async def _begin(name: str, broker: ManagedProcess, page: Page, address: str) -> Viewer | None:
    """Bring about a state; return the viewer without a browser, if it is that one."""
    await page.goto("about:blank")
    if name in ("recording", "page"):
        await page.goto(address)
        await page.locator(".live", has_text="Live").wait_for()
        await asyncio.sleep(2)
    if name == "recording":
        await page.evaluate(_DETACH, RECORDED_S * 1000)
    viewer = Viewer(broker) if name == "viewer" else None
    if viewer is not None:
        await viewer.open()
    return viewer


def _browser_s() -> float:
    """Return the CPU time so far of the browser's processes: all that descend from this one."""
    parents, times = {}, {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            times[int(path.name)] = sum(
                int(one.read_text().split()[0]) for one in path.glob("task/*/schedstat")
            )
            parents[int(path.name)] = (int(fields[1]), (path / "comm").read_text().strip())
        except (OSError, ValueError):
            continue
    return sum(
        times[one] / 1e9
        for one, (_, name) in parents.items()
        if name.startswith("chrom") and _descends(one, parents)
    )


def _descends(one: int, parents: dict[int, tuple[int, str]]) -> bool:
    while one in parents and one != os.getpid():
        one = parents[one][0]
    return one == os.getpid()


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(f"all files, compressed: {compressed_bytes():,} bytes; load {os.getloadavg()[0]:.1f}")
    for clients in map(int, sys.argv[1:] or ("2000", "10000")):
        print(asyncio.run(measure(clients)), f"load {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
