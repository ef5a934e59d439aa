"""The page about retained policies says what the code does."""

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "retained-policy.md"


def test_the_examples_on_the_page_run_as_shown() -> None:
    failures, tried = doctest.testfile(str(PAGE), module_relative=False)

    assert tried > 10
    assert failures == 0
