"""Spaces as sections of a configuration file."""

from __future__ import annotations

Range = tuple[float, float]


def space_section(name: str, *lines: str, **attributes: Range) -> str:
    """Return a section `[[space]]` for the topics below `name`, with these lines and attributes.

    >>> print(space_section("plane", 'missing = "all"', x=(0, 100)))
    <BLANKLINE>
    [[space]]
    name = "plane"
    topics = "plane/#"
    missing = "all"
    [space.attributes]
    x = { low = 0, high = 100 }
    <BLANKLINE>
    """
    ranges = (
        f"{one} = {{ low = {low}, high = {high} }}" for one, (low, high) in attributes.items()
    )
    head = ("[[space]]", f'name = "{name}"', f'topics = "{name}/#"')
    return "\n".join(["", *head, *lines, "[space.attributes]", *ranges, ""])


def placed_section(
    name: str, *lines: str, lon: Range = (-180, 180), lat: Range = (-90, 90), **attributes: Range
) -> str:
    """Return the section of a space with places; without bounds it has the whole world."""
    places = ('longitude = "lon"', 'latitude = "lat"')
    return space_section(name, *places, *lines, **attributes, lon=lon, lat=lat)
