"""What runs the steps of a schedule object: batch in, results out."""

from __future__ import annotations
