"""`nearcast.toml`: what an operator may set, read and checked.

- `schema.py` is the reference: every section and key with its meaning and default.
- `reading.py` turns text and environment into a `Configuration`, or into answers that name
  file, key and line.
- `lines.py` finds the line of a key; `example.toml` is what `nearcast init` writes.

It opens no port and creates no directory: whether a certificate can be read, the server says.
"""

from nearcast.config.reading import EXAMPLE, Reading, load, read, read_file
from nearcast.config.schema import (
    AuthSection,
    Configuration,
    DurabilitySection,
    LimitsSection,
    ListenerSection,
    LogSection,
    NetworkSection,
    NodeSection,
    PositionSection,
    RetainedSection,
    RuleSection,
    SpaceSection,
)

__all__ = [
    "EXAMPLE",
    "AuthSection",
    "Configuration",
    "DurabilitySection",
    "LimitsSection",
    "ListenerSection",
    "LogSection",
    "NetworkSection",
    "NodeSection",
    "PositionSection",
    "Reading",
    "RetainedSection",
    "RuleSection",
    "SpaceSection",
    "load",
    "read",
    "read_file",
]
