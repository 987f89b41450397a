"""Arrays of numbers in .mat files of MATLAB; needs the extra `vtab` (scipy)."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from vitlab.files.user_files import check_regular
from vitlab.require import require

LARGEST_ARRAY = 4 * 2**30  # bytes; the largest, SVHN's extra images, has 1.6 GB
NUMBERS = {"uint8", "int8", "uint16", "int16", "uint32", "int32", "double", "single"}  # MATLAB's classes


def require_scipy() -> Any:
    """Import scipy.io, or raise an error that names the extra."""
    try:
        import scipy.io
    except ImportError:
        raise ModuleNotFoundError(".mat files need scipy: pip install 'vitlab[vtab]'") from None
    return scipy.io


def read_mat(file: Path, name: str) -> np.ndarray:
    """Read one array of numbers; its size is checked before it is read. Nothing else in the file is looked at."""
    reader = require_scipy()
    check_regular(file)
    found: Any = None
    try:
        listed = {called: (shape, kind) for called, shape, kind in reader.whosmat(str(file))}
        shape, kind = listed.get(name, ((), ""))
        size = int(np.prod(shape, dtype=object)) if shape else 0
        if kind in NUMBERS and 0 < size <= LARGEST_ARRAY:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = reader.loadmat(str(file), variable_names=[name]).get(name)
    except Exception as error:  # hostile bytes make the reader raise nearly anything
        said = f"{type(error).__name__}: {str(error)!r:.100}"
        raise ValueError(f"{file.name} is not a valid .mat file ({said}); download it again") from None
    is_array = isinstance(found, np.ndarray) and found.dtype.kind in "uif"
    require(is_array, f"{file.name} has no array of numbers {name!r}; it has {sorted(listed)!r:.200}")
    return found
