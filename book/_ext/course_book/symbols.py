"""Exercises as objects of the search index: a name with an underscore or a dot finds its exercise."""

from collections.abc import Iterator
from typing import ClassVar

from sphinx.application import Sphinx
from sphinx.domains import Domain, ObjType
from sphinx.locale import _


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
            yield (
                key,
                key,
                "exercise",
                docname,
                f"exercise-{key}",
                0,
            )  # before other objects of the name


def setup(app: Sphinx) -> None:
    """Register the domain."""
    app.add_domain(CourseDomain)
