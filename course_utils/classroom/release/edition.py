"""An edition in memory: every file that students get, and what stays with the instructor."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from course_utils.classroom.marks.plan import Plan


class CannotRelease(Exception):
    """Why an edition is not made. problems: a sentence each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True)
class Edition:
    """What is handed out, and what is not.

    files: students', by path with slashes. instructor: files that stay with the instructor.
    removed: of an edition without answers, the names taken out, by module ("reference.strides").
    notes: what the instructor should know of it, a sentence each.
    """

    plan: Plan
    files: Mapping[str, bytes]
    instructor: Mapping[str, bytes] = field(default_factory=dict)
    removed: Mapping[str, frozenset[str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def notebooks(self) -> dict[str, bytes]:
        return {path: data for path, data in self.files.items() if path.endswith(".ipynb")}

    def with_files(self, **groups: Mapping[str, bytes]) -> "Edition":
        """The edition with files added or replaced, among `files` or `instructor`."""
        added = {name: {**getattr(self, name), **files} for name, files in groups.items()}
        return replace(self, **added)  # type: ignore[arg-type]
