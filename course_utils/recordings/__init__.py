"""What was measured on a GPU, for machines that have none: data with a stamp of where it comes from.

`find(name)` gives a recording, or None where there is none that may be shown: one never made, one
without its stamp, one whose code has changed since. `missing(name)` says which, for a page that then
reads *not recorded* or *not compared*. `save(name, data)` stores one, in `course record` on a GPU only.

Beside this file: ``index.json`` (for each recording its stamp, its file, the digest of the code that made
it) and ``data/<name>.json`` or ``data/<name>.safetensors``. `recorders` holds the functions that make them.

Layouts
-------
``allocator/training_step``, ``allocator/training_step_expandable`` (JSON): what the caching allocator did
while a fixed training step ran in a new process. The second ran under ``expandable_segments:True``.

    {"conf": "",                     value of PYTORCH_ALLOC_CONF, empty for torch's defaults
     "settings": {...},              the snapshot's ``allocator_settings``, as torch names them
     "streams": 1,                   how many streams appear
     "events": [[action, address, size, stream], ...],
     "phases": [{"name": "model", "events": 14, "allocated": ..., "requested": ..., "active": ...,
                 "reserved": ..., "peak_allocated": ..., "peak_reserved": ...}, ...],
     "segments": [{"address", "total_size", "stream", "segment_type", "is_expandable",
                   "blocks": [[address, size, requested_size, state], ...]}, ...]}

- ``action`` is torch's: ``alloc``, ``free_requested``, ``free_completed``, ``segment_alloc``,
  ``segment_free``, ``segment_map``, ``segment_unmap``, ``oom``. Torch's own ``snapshot`` events are left out.
  In the order in which they happened, from an empty allocator on.
- ``size`` in bytes. Of ``alloc`` and ``free_*`` it is what was *asked for*, before any rounding: that is what
  torch's trace holds. Of ``segment_*`` it is the segment's size. So reserved bytes after each event are the
  running sum of ``segment_alloc`` + ``segment_map`` − ``segment_free`` − ``segment_unmap``, and requested bytes
  that of ``alloc`` − ``free_completed``. Allocated (rounded) bytes are not in the trace: they are known at the
  end of each phase, and after each operation in ``allocator/operations``.
- ``address`` is relative to the lowest address seen, so order and distance are kept; None for ``oom``.
- ``stream`` counts from 0 in order of appearance.
- ``phases``: ``events`` is the number of events up to the phase's end, so phase i is
  ``events[phases[i-1]["events"]:phases[i]["events"]]``; the others are bytes then, from ``memory_stats()``
  (``active`` is allocated plus what waits for another stream; peaks are since the start).
- ``segments``: the final snapshot's, sorted by address; ``state`` as torch says: ``active_allocated``,
  ``active_pending_free``, ``active_awaiting_free`` or ``inactive``.

``allocator/operations``, ``allocator/operations_expandable`` (JSON): a fixed list of allocations, frees and
calls of ``empty_cache`` by hand, with the allocator's own counters after each, for a comparison event by event.

    {"conf": "", "settings": {...},
     "operations": [["alloc", key, bytes] | ["free", key] | ["empty_cache"], ...],
     "after": [[allocated, reserved, requested, active, segments], ...],     one row an operation
     "events": [...], "segments": [...]}                                     as above

``key`` is an int that names the allocation. ``bytes`` is what was asked for. ``segments`` in a row of ``after`` is
the number of segments held.

``mixed_precision/autocast_table`` (JSON): ``{"torch": {"bfloat16": {op: {"float32,float32": "bfloat16", ...}},
"float16": {...}}}``: the dtype of the result of each operation of chapter 13's table under
``torch.autocast("cuda", dtype)``, for each dtype of its inputs, run by real kernels; ``"error: Kind"`` where it raised.

``timings/matmul`` (JSON): ``{"unit": "ms", "rows": [{"n", "dtype", "tf32", "median", "min", "max", "repeats"}, ...]}``:
an (n, n) by (n, n) product, each of ``repeats`` calls timed by CUDA events after a warm-up.
"""
