"""The configuration `nearcast.toml`: what an operator may set, read and checked.

- `schema.py` is the reference: every section and key with its meaning and default.
- `reading.py` turns text and environment into a `Configuration`, or into errors that name
  file, key and line.
- `lines.py` finds the line of a key; `example.toml` is the file that `nearcast init` writes.

It opens no port and creates no directory: the server checks whether a certificate is readable.
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
