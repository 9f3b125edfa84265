"""The course's settings, read once from ``course.toml`` beside this file; and where a student's files are."""

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parent


@dataclass(frozen=True)
class Settings:
    """What the course calls itself and where it lives.

    repository: the public address, or an empty string while there is none.
    """

    title: str
    subtitle: str
    edition: str
    repository: str


settings = Settings(**tomllib.loads((PACKAGE / "course.toml").read_text(encoding="utf-8")))


def home() -> Path:
    """The folder of the progress file: $COURSE_HOME, or ~/.strides-to-shards."""
    return Path(os.environ.get("COURSE_HOME") or Path.home() / ".strides-to-shards")
