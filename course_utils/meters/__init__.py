"""Meters: what a piece of torch code cost, counted and not timed.

>>> with measure() as cost:
...     y = x @ w
>>> cost.flops, cost.bytes_allocated
"""

from course_utils.meters.cost import Cost, format_bytes
from course_utils.meters.meter import measure, shares_storage, storage_bytes

__all__ = ["Cost", "format_bytes", "measure", "shares_storage", "storage_bytes"]
