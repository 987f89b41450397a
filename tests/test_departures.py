"""The list "Where we differ from the paper" is what the comments in the code say."""

import importlib.util
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def script():
    found = importlib.util.spec_from_file_location("departures", ROOT / "docs" / "departures.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_list_of_departures_is_that_of_the_code(script):
    page = script.PAGE.read_text("utf-8")
    assert script.BEGIN in page
    assert script.END in page
    assert page == script.with_list(page), "run: python docs/departures.py"


def test_every_comment_is_found(script):
    lines = subprocess.run(
        ["grep", "-rn", "--include=*.py", "Differs from the paper", ROOT / "src"], capture_output=True, text=True
    ).stdout.splitlines()
    assert len(script.departures()) == len(lines) >= 7
    listed = script.as_markdown()
    assert listed.count("\n- ") + 1 == len(lines)
    assert "the five transfer sets have the Inception crop of the released code" in " ".join(listed.split())


def test_a_comment_is_read_to_its_end_and_a_paragraph_to_its_own(script):
    code = '''
def one():
    """What it does.

    Differs from the paper: it rounds
    twice.

    More.
    """
    # Differs from the paper: it is
    # longer.
    # And more.
    return 1  # nothing of this
'''
    assert script._said(code) == ["it rounds twice.", "it is longer. And more."]
