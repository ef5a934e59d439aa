"""The page in a real browser: first paint, frames per second, size of its files, broker CPU.

    .venv/bin/python -m benchmarks.page_frames 2000 10000

The browser is headless Chromium, which draws on the CPU and shares it with the broker and with this
program, which is all of the clients.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import resource
import shutil
import sys
from pathlib import Path
from typing import Any

from benchmarks.dashboard import Crowd, ManagedProcess

import nearcast

WINDOW_S = 10.0
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
        alone = await _share(broker)
        async with async_playwright() as playwright:
            program = shutil.which("chromium")
            browser = await playwright.chromium.launch(executable_path=program, args=FLAGS)
            page = await browser.new_page(viewport={"width": 1400, "height": 900})
            await page.goto(f"http://127.0.0.1:{broker.http_port}/#token={broker.token}")
            await page.locator(".live", has_text="Live").wait_for()
            await page.wait_for_timeout(8_000)
            paint_ms = await page.evaluate(_PAINT)
            frames, watched = await asyncio.gather(
                page.evaluate(_FRAMES, WINDOW_S * 1000), _share(broker)
            )
            draw_ms, known, in_view = await page.evaluate(_DRAWN)
            await browser.close()
        walking.cancel()
    finally:
        broker.end()
    return {
        "clients": clients,
        "known": known,
        "in view": in_view,
        "first paint, ms": round(paint_ms),
        "frames/s": round(frames, 1),
        "ms to draw a frame": round(draw_ms, 2),
        "broker CPU without page": f"{alone:.1%}",
        "broker CPU with page": f"{watched:.1%}",
    }


async def _share(broker: ManagedProcess) -> float:
    before = broker.cpu_s()
    await asyncio.sleep(WINDOW_S)
    return (broker.cpu_s() - before) / WINDOW_S


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(f"all files, compressed: {compressed_bytes():,} bytes; load {os.getloadavg()[0]:.1f}")
    for clients in map(int, sys.argv[1:] or ("2000", "10000")):
        print(asyncio.run(measure(clients)), f"load {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
