"""Meters: what a piece of torch code cost, counted and not timed.

>>> with measure() as cost:
...     y = x @ w
>>> cost.flops, cost.bytes_allocated
"""

from course_utils.meters.cost import Cost, format_bytes
from course_utils.meters.meter import measure, shares_storage, storage_bytes
from course_utils.meters.pages import PAGE, page_faults, pages_in_memory
from course_utils.meters.simulated_device import Kernel, SimulatedDevice

__all__ = [
    "PAGE",
    "Cost",
    "Kernel",
    "SimulatedDevice",
    "format_bytes",
    "measure",
    "page_faults",
    "pages_in_memory",
    "shares_storage",
    "storage_bytes",
]
