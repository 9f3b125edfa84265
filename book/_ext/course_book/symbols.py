"""Exercises as objects of the search index: a name with an underscore or a dot finds its exercise.

Where an exercise writes something that torch has by the same name, torch's name finds it too.
"""

from collections.abc import Iterator
from importlib import import_module
from typing import ClassVar

from sphinx.application import Sphinx
from sphinx.domains import Domain, ObjType
from sphinx.locale import _

NAMESPACES = ("torch", "torch.nn", "torch.nn.functional", "torch.nn.parallel", "torch.optim")


def names_in_torch(key: str) -> list[str]:
    """Torch's own names for what an exercise writes: modules.LayerNorm is torch.nn.LayerNorm."""
    name = key.rpartition(".")[2]
    return [f"{space}.{name}" for space in NAMESPACES if hasattr(import_module(space), name)]


class CourseDomain(Domain):
    """Holds no directive: it only lists the exercises that pages announce."""

    name = "course"
    label = "Course"
    object_types: ClassVar = {"exercise": ObjType(_("exercise"))}
    initial_data: ClassVar = {"exercises": {}}

    def note(self, key: str, docname: str) -> None:
        """Remember where the exercise is."""
        self.data["exercises"][key] = docname

    def clear_doc(self, docname: str) -> None:
        """Forget a page that is read again."""
        kept = {key: page for key, page in self.data["exercises"].items() if page != docname}
        self.data["exercises"] = kept

    def merge_domaindata(self, docnames: list[str], otherdata: dict) -> None:
        """Take over what another process has read."""
        found = otherdata["exercises"].items()
        self.data["exercises"] |= {key: page for key, page in found if page in docnames}

    def get_objects(self) -> Iterator[tuple[str, str, str, str, str, int]]:
        """The exercises, as the search index wants them."""
        for key, docname in self.data["exercises"].items():
            for name in (key, *names_in_torch(key)):
                # 0: before other objects of the name
                yield name, name, "exercise", docname, f"exercise-{key}", 0


def setup(app: Sphinx) -> None:
    """Register the domain."""
    app.add_domain(CourseDomain)
