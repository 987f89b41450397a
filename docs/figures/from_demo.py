"""Take the figure of the README out of a demo's report: python docs/figures/from_demo.py demo-out/report.html"""

import base64
import re
import sys
from pathlib import Path

FIGURES = {"accuracy against labels per class": "demo-labels.svg"}

report = Path(sys.argv[1]).read_text(encoding="utf-8")
for name, file in FIGURES.items():
    found = re.search(rf'alt="{re.escape(name)}" src="data:image/svg\+xml;base64,([^"]+)"', report)
    if found is None:
        sys.exit(f"{sys.argv[1]} has no figure {name!r}; is it the report of vitlab demo?")
    Path(__file__).with_name(file).write_bytes(base64.b64decode(found[1]))
