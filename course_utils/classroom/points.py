"""The name under which cells of nbgrader's notebooks, once released, import these two: it stays."""

from .run.notebook_points import apart as apart
from .run.notebook_points import points as points
