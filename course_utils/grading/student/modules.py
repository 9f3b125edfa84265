"""Modules made importable from their sources, where the book's own are missing."""

import linecache
import sys
from collections.abc import Mapping
from types import ModuleType

from course_utils.processes.by_value import cloudpickle


def install(modules: Mapping[str, str]) -> None:
    """Make modules importable by their sources, where no others of these names are.

    What they define travels to ranks as itself: there, too, no such module is. One that itself imports
    what is not here is left out: an answer that needs it says so, and another goes without.
    """
    for name, source in modules.items():
        package = name.rpartition(".")[0]
        if package not in sys.modules:
            sys.modules[package] = ModuleType(package)
            sys.modules[package].__path__ = []
        filename = f"<{name}, as given>"
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        module = sys.modules[name] = ModuleType(name)
        try:
            exec(compile(source, filename, "exec"), vars(module))
        except ModuleNotFoundError:
            del sys.modules[name]
        else:
            cloudpickle.register_pickle_by_value(module)
