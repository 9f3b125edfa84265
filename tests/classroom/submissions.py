"""Submissions as students hand them in, made for the tests: notebooks, folders, zips."""

import json
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def code(source: str, **more: Any) -> dict[str, Any]:
    cell = {"cell_type": "code", "metadata": {}, "source": source, "outputs": []}
    return cell | {"execution_count": None} | more


def notebook(*cells: Any, **more: Any) -> bytes:
    """The bytes of a notebook; a text is a code cell."""
    made = [code(cell) if isinstance(cell, str) else cell for cell in cells]
    whole = {"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole | more, ensure_ascii=False).encode()


def folder_of(place: Path, files: Mapping[str, bytes | str]) -> Path:
    for name, data in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
    place.mkdir(exist_ok=True)
    return place


def zip_of(
    place: Path, files: Mapping[str, bytes | str] | Iterable[tuple[Any, bytes | str]]
) -> Path:
    """A zip with these entries; a name may be a ZipInfo."""
    pairs = files.items() if isinstance(files, Mapping) else files
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in pairs:
            archive.writestr(name, data, zipfile.ZIP_DEFLATED)
    return place
