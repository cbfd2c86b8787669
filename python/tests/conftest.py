"""What the tests of the Python package share. Run them with `make python-test`, or with pytest and PYTHONPATH=build/python."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> Iterator[random.Random]:
    """Random numbers from a seed that is printed when the test fails; STAGECRAFT_SEED repeats a run."""
    seed = int(os.environ.get("STAGECRAFT_SEED") or random.SystemRandom().randrange(2**32))
    print(f"STAGECRAFT_SEED={seed}")
    yield random.Random(seed)
