"""Write docs/findings.md and its figures from the rows of results/studies/.

python docs/findings.py writes them; tests/test_documents.py fails where the page and the rows disagree.
"""

from pathlib import Path

from vitlab.runs.study.findings import findings

ROOT = Path(__file__).resolve().parents[1]
LEDGER = ROOT / "results" / "studies"


def pages() -> dict[Path, bytes]:
    """Every file that is made from the ledger, with its content."""
    return {ROOT / "docs" / name: content for name, content in findings(LEDGER).items()}


if __name__ == "__main__":
    for path, content in pages().items():
        path.write_bytes(content)
