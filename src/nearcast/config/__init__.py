"""The configuration `nearcast.toml`: what an operator may set, read and checked.

- `schema.py`, `node_sections.py`, `security_sections.py`, `http_section.py` and `peer_section.py`
  declare every section and key, once: type, bounds, default, help text, whether a reload applies
  it. `declaration.py` says how.
- `reading.py` turns text and environment into a `Configuration`, or into errors that name
  file, key and line; `lines.py` finds the line of a key.
- `example_file.py` makes the file that `nearcast init` writes.

It opens no port and creates no directory: the server checks whether a certificate is readable.
"""

from nearcast.config.declaration import Section, Setting, all_settings, settings_of
from nearcast.config.example_file import example
from nearcast.config.http_section import HttpSection
from nearcast.config.node_sections import (
    AuthSection,
    DurabilitySection,
    LimitsSection,
    ListenerSection,
    LogSection,
    NodeSection,
    RuleSection,
)
from nearcast.config.peer_section import PeerSection
from nearcast.config.reading import Reading, load, read, read_file
from nearcast.config.schema import (
    Configuration,
    NetworkSection,
    RetainedSection,
    SpaceSection,
)
from nearcast.config.security_sections import (
    AuditSection,
    CertificateSection,
    EdgeSettings,
    HttpHookSection,
    JwtSection,
    RatesSection,
)
from nearcast.config.values import is_loopback_host, parse_rate

__all__ = [
    "AuditSection",
    "AuthSection",
    "CertificateSection",
    "Configuration",
    "DurabilitySection",
    "EdgeSettings",
    "HttpHookSection",
    "HttpSection",
    "JwtSection",
    "LimitsSection",
    "ListenerSection",
    "LogSection",
    "NetworkSection",
    "NodeSection",
    "PeerSection",
    "RatesSection",
    "Reading",
    "RetainedSection",
    "RuleSection",
    "Section",
    "Setting",
    "SpaceSection",
    "all_settings",
    "example",
    "is_loopback_host",
    "load",
    "parse_rate",
    "read",
    "read_file",
    "settings_of",
]
