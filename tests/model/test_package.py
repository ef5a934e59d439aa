"""The package as a whole: its names, its errors, what importing it costs, its documents."""

import itertools
import pickle
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import nearcast.model
from nearcast.model import (
    ConfigurationError,
    ExpressionError,
    MisuseError,
    NearcastError,
    ShapeError,
)
from nearcast.model.wording import did_you_mean, shown

ROOT = Path(__file__).parents[2]


def test_a_sample_of_the_fuzzer_finds_nothing_but_our_own_errors() -> None:
    fuzz = runpy.run_path(str(ROOT / "fuzz" / "where.py"))
    for data in itertools.islice(fuzz["inputs"](seed=7), 1_000):
        fuzz["check"](data)


def test_all_names_are_there_once() -> None:
    names = nearcast.model.__all__
    assert len(set(names)) == len(names)
    assert all(hasattr(nearcast.model, name) for name in names)


def test_importing_the_model_imports_neither_numpy_nor_shapely() -> None:
    heavy = "numpy shapely numba pandas pyarrow asyncio socket threading"
    code = f"import sys, nearcast.model; print([m for m in {heavy.split()} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_circle_and_an_expression_need_neither() -> None:
    code = (
        "import sys; from nearcast.model import *;"
        "Circle(0, 0, 5).boxes(); Circle(0, 0, 5).contains(0, 0); parse_shape('0,0,1,1');"
        "Space(name='s', topic_filter='#', attributes=[Attribute.number('x', 0, 1)]).boxes('x<1');"
        "print('numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_an_error_says_what_where_and_what_to_do() -> None:
    error = MisuseError("5", where="$top", expected="6", todo="Add one.")
    assert str(error) == "$top: found 5; expected 6. Add one."
    assert str(MisuseError("broken")) == "broken"
    assert isinstance(error, ValueError)


@pytest.mark.parametrize(
    "error",
    [
        ExpressionError("x", position=7, expected="y"),
        ShapeError("x", where="here"),
        ConfigurationError("x", line=3, todo="z"),
    ],
)
def test_errors_survive_pickling(error: NearcastError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.__dict__ == error.__dict__


def test_what_was_found_is_shown_short() -> None:
    assert len(shown("x" * 10_000_000)) < 50
    assert len(shown(list(range(1000)))) < 50
    assert "digits" in shown(10**10_000)
    assert did_you_mean("zzzz", ["price"]) == ""
