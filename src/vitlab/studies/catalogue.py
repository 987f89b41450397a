"""The studies by name, in the order of the paper's sections."""

import difflib
from typing import Final

from vitlab.errors import did_you_mean
from vitlab.studies.architecture import ARCHITECTURE
from vitlab.studies.pretraining import FIGURE4, RESOLUTION, SELFSUP, TABLE5
from vitlab.studies.study import Study
from vitlab.studies.transfer import FIGURE2, TABLE2, TABLE6, TABLE7

_LISTED: Final = (TABLE2, FIGURE2, TABLE5, FIGURE4, TABLE6, TABLE7, SELFSUP, RESOLUTION, *ARCHITECTURE)
STUDIES: Final[dict[str, Study]] = {study.name: study for study in _LISTED}
NAMES: Final[dict[str, str]] = {name: study.name for study in STUDIES.values() for name in (study.name, *study.aliases)}


def find_study(name: str) -> Study:
    """The study of a name such as table8 or figure5; a ValueError for unknown ones."""
    plain = name.lower().replace(" ", "").replace("_", "")
    if plain not in NAMES:
        near = difflib.get_close_matches(plain, NAMES, n=2)
        raise ValueError(f"no study is named {name!r:.60}; {did_you_mean(near)}known are {', '.join(NAMES)}")
    return STUDIES[NAMES[plain]]
