"""All endpoints, by what they are about; importing a module declares its endpoints."""

from importlib import import_module

_MODULES = (
    "session",
    "overview",
    "clients",
    "topics",
    "spaces",
    "places",
    "tiles",
    "asking",
    "groups",
    "learned",
    "log",
)


def load() -> None:
    """Declare all endpoints, in the order of the OpenAPI document."""
    for name in _MODULES:
        import_module(f"{__name__}.{name}")
