"""Where the code departs from the paper, as a list: the comments that begin with `Differs from the paper:`.

python docs/departures.py writes it into docs/paper.md; tests/test_departures.py fails where the two disagree.
"""

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "paper.md"
MARK = "Differs from the paper:"
BEGIN, END = "<!-- written by docs/departures.py -->\n", "<!-- end -->\n"


def departures() -> list[tuple[str, str]]:
    """(file below src/vitlab, what it says) of every comment, in the order of the files."""
    package = ROOT / "src" / "vitlab"
    files = sorted(package.rglob("*.py"))
    return [(file.relative_to(package).as_posix(), said) for file in files for said in _said(file.read_text("utf-8"))]


def _said(code: str) -> list[str]:
    """The text behind each mark, up to the end of its comment or of its paragraph in a docstring."""
    found = []
    lines = code.splitlines()
    for number, line in enumerate(lines):
        before, mark, first = line.partition(MARK)
        if not mark:
            continue
        is_comment = before.strip() == "#"
        assert is_comment or not before.strip(), f"{line.strip()!r} is not the beginning of a comment or a paragraph"
        text = [first]
        for later in lines[number + 1 :]:
            plain = later.strip()
            if not (plain.startswith("# ") if is_comment else plain and plain != '"""'):
                break
            text.append(plain.removeprefix("# "))
        found.append(" ".join(" ".join(text).split()))
    return found


def as_markdown() -> str:
    """The list, one entry a departure."""
    entries = (f"{said[0].upper()}{said[1:].rstrip('.')} (`{file}`)." for file, said in departures())
    return "".join(textwrap.fill(entry, 120, initial_indent="- ", subsequent_indent="  ") + "\n" for entry in entries)


def with_list(page: str) -> str:
    """The page with the list between its two marks."""
    return re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}{as_markdown()}{END}", page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(with_list(PAGE.read_text("utf-8")), "utf-8")
