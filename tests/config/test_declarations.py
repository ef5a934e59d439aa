"""A setting is declared once; schema, example file, reload list and reference page follow."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from nearcast.config import Configuration, LimitsSection, Section, Setting, all_settings, example
from nearcast.config.declaration import inner_section, sections_of, setting

ROOT = Path(__file__).parents[2]
SETTINGS = {one.path: one for one in all_settings(Configuration)}
KEYS = {path: one for path, one in SETTINGS.items() if inner_section(one.field)[0] is None}


def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def block_of(path: str, text: str) -> str:
    """Return the part of an example file from the header of a key's section to the next one."""
    table = path.rpartition(".")[0]
    header = f"[[{table[:-2]}]]" if table.endswith("[]") else f"[{table}]"
    block = rf"^(?:# )?{re.escape(header)}$(.*?)(?=^\S*\[|^# \[|\Z)"
    found = re.search(block, text, re.MULTILINE | re.DOTALL)
    assert found is not None, header
    return found[1]


def is_in_example(one: Setting, text: str) -> bool:
    """Return whether an example file has the key in its section, with its help text."""
    if ".NAME." in one.path:  # keys of a table that the user names stand in the text above it
        return f"{one.key} ({one.help})" in text.replace("\n# ", " ")
    help_text = re.escape(one.help.replace("`", ""))
    line = rf"^(?:# )?{one.key} = \S.*# {help_text}$"
    return re.search(line, block_of(one.path, text), re.MULTILINE) is not None


def test_every_key_of_every_section_is_declared_with_a_help_text():
    declared = set(SETTINGS)
    bare = [
        f"{prefix}{name}"
        for prefix, section in sections_of(Configuration)
        for name in section.model_fields
        if prefix and f"{prefix}{name}" not in declared
    ]
    assert bare == []
    assert len(KEYS) > 90
    for one in SETTINGS.values():
        assert 3 < len(one.help) < 100, one.path
        assert not one.help.endswith("."), one.path


@pytest.mark.parametrize("path", KEYS)
def test_every_key_stands_in_the_example_file_with_its_help_text(path: str):
    assert is_in_example(KEYS[path], example())


def test_a_key_without_a_default_value_has_an_example():
    silent = [
        path
        for path, one in KEYS.items()
        if one.field.get_default() is None and not one.example and ".NAME." not in path
    ]
    assert silent == []


def test_the_reference_pages_are_what_the_declarations_say():
    module = reference()
    for name in module.PAGES:
        kept = (module.DOCS / name).read_text(encoding="utf-8")
        assert kept == module.page(name), f"{name} is not current: python scripts/reference.py"


class LimitsWithOneMore(LimitsSection):
    """What somebody who adds a setting writes: one declaration."""

    colour: int = setting(
        3, "colours of one client", ge=1, reload=True, fills="max_colours", example="7"
    )


class ConfigurationWithOneMore(Configuration):
    """A configuration in which `[limits]` has a key more."""

    limits: LimitsWithOneMore = LimitsWithOneMore()


def test_one_declaration_is_enough_for_schema_example_reload_and_reference():
    whole: type[Section] = ConfigurationWithOneMore
    one = {each.path: each for each in all_settings(whole)}["limits.colour"]

    assert ConfigurationWithOneMore.model_validate({"limits": {"colour": 5}}).limits.colour == 5
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        ConfigurationWithOneMore.model_validate({"limits": {"colour": 0}})
    assert is_in_example(one, example(whole))
    assert (one.reload, one.fills) == (True, ("max_colours",))
    row = "| `colour` | whole number, at least 1 | `3` | at once | colours of one client |"
    assert row in reference().settings_reference(whole)


def test_the_checks_above_find_what_is_missing():
    class Bare(LimitsSection):
        """A key without a declaration."""

        colour: int = 3

    assert "colour" not in {one.key for one in all_settings(Bare)}
    assert not is_in_example(KEYS["limits.queue"], example().replace("\nqueue = ", "\nqeue = "))
    assert not is_in_example(KEYS["limits.queue"], example().replace("for one session", "for it"))
