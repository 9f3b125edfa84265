"""Modules made importable from their sources, where the book's own are missing."""

import linecache
import sys
from collections.abc import Mapping
from types import ModuleType


def install(modules: Mapping[str, str]) -> None:
    """Make modules importable by their sources, where no others of these names are."""
    for name, source in modules.items():
        package = name.rpartition(".")[0]
        if package not in sys.modules:
            sys.modules[package] = ModuleType(package)
            sys.modules[package].__path__ = []
        filename = f"<{name}, as given>"
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        module = sys.modules[name] = ModuleType(name)
        exec(compile(source, filename, "exec"), vars(module))
