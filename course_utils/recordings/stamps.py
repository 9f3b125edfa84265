"""A recording's stamp: where its data comes from, and whether that still holds."""

import re
from typing import Any

RECORDED, OUTDATED, UNSTAMPED, NEVER = "recorded", "outdated", "without a stamp", "never recorded"
STAMP = ("gpu", "driver", "torch", "cuda", "date", "code")
"""What a stamp says: the device's name, the driver's version, torch's, CUDA's, the day in UTC, the
digest of the code."""


def stamped(entry: dict[str, Any]) -> bool:
    """Does the entry hold a whole stamp?"""
    whole = all(isinstance(entry.get(key), str) and entry[key] for key in STAMP)
    return whole and re.fullmatch(r"\d{4}-\d\d-\d\d", entry["date"]) is not None


def describe(stamp: dict[str, Any], verb: str = "Recorded") -> str:
    """A stamp as a sentence."""
    return (
        f"{verb} on {stamp['gpu']}, driver {stamp['driver']}, "
        f"with torch {stamp['torch']} and CUDA {stamp['cuda']}, {stamp['date']}."
    )
