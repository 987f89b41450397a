"""The paper's few-shot accuracy on features of any origin; here the pixels of handwritten digits themselves.

Any model's features do as well: arrays (n, D) with class numbers (n,). `l2="held-out"` chooses the strength of
regularisation without looking at the test samples.
"""

import numpy as np

import vitlab
from vitlab.data.sources.digits import DigitsSource


def features(split: str) -> tuple[np.ndarray, np.ndarray]:
    """(n, 64) and (n,): one number per pixel, and the digit."""
    source = DigitsSource(split)
    return source.scans.reshape(len(source), -1) / 255, source.labels.numbers


train_x, train_y = features("train")
test_x, test_y = features("test")
for shots in (1, 5, 10, 25):
    found = vitlab.fewshot(train_x, train_y, test_x, test_y, shots, l2="held-out" if shots > 1 else 1.0)
    print(f"{shots:2d} per class: accuracy {found.accuracy:.1%} on {found.count} digits, l2 {found.l2:g}")
