"""Write the golden files anew: only where a format, a name or a digest is meant to change.

    python tests/golden/make.py              all of them; the tables of jobs need Java
    python tests/golden/make.py frames/ figures/counters.txt       those whose names begin so
    python tests/golden/make.py --check      say which would change, write nothing

Look at the difference (`git diff tests/golden/files`) before you commit it, and say in the commit
message why it had to change: a node of the version before, or an older file, meets it.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

if __name__ == "__main__":  # the environment may have a package `tests`, too: ours goes first
    ROOT = Path(__file__).resolve().parents[2]
    sys.modules["tests"] = here = types.ModuleType("tests")
    here.__path__ = [str(ROOT / "tests")]
    sys.path.insert(0, str(ROOT / "src"))

from tests.golden import (
    commands,
    eventlog,
    figures,
    frames,
    journal,
    peers,
    saved,
    settings,
    store,
    tables,
    wire,
    worlds,
)
from tests.golden.golden import DIRECTORY, Codec, Maker, difference

_AREAS = (
    journal,
    wire,
    frames,
    peers,
    store,
    eventlog,
    saved,
    figures,
    settings,
    commands,
    tables,
    worlds,
)
PLAIN: dict[str, Maker] = {name: make for area in _AREAS for name, make in area.FILES.items()}
"""These need nothing but this process."""
SERVER: dict[str, Maker] = {**eventlog.SERVER_FILES, **figures.SERVER_FILES}
"""These start other processes or a broker."""
SPARK: dict[str, Maker] = tables.SPARK_FILES
CODECS: dict[str, Codec] = {**frames.CODECS, **peers.CODECS, "store/feed.hex": store.FEED}


def main(names: list[str], *, writes: bool) -> int:
    """Write the files whose names begin with one of these; return how many have changed."""
    changed = 0
    for name, make in {**PLAIN, **SERVER, **SPARK}.items():
        if names and not name.startswith(tuple(names)):
            continue
        text = make()
        if not difference(name, text):
            continue
        changed += 1
        sys.stdout.write(f"{name}\n")
        if writes:
            (DIRECTORY / name).parent.mkdir(parents=True, exist_ok=True)
            (DIRECTORY / name).write_text(text, encoding="utf-8")
    return changed


if __name__ == "__main__":
    is_check = "--check" in sys.argv
    found = main([one for one in sys.argv[1:] if one != "--check"], writes=not is_check)
    sys.stdout.write(f"{found} golden files {'differ' if is_check else 'written'}\n")
