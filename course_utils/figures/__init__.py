"""The drawings of the book: matplotlib ones by chapter, and interactive ones."""

from course_utils.figures.interactive import Interactive, stride_explorer

__all__ = ["Interactive", "stride_explorer"]
