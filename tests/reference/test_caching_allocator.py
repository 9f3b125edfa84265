"""The simulated allocator: torch's rules, its options and messages, its snapshots, its recordings."""

import importlib.util
import itertools
import random
import re
from collections import Counter

import pytest
import torch
from torch import nn
from torch.cuda import _memory_viz as viz

from course_utils.reference.caching_allocator import (
    GIB,
    KIB,
    MIB,
    Agreement,
    AllocatorConfig,
    CachingAllocator,
    CudaAllocator,
    agreement,
    format_size,
    recorded_requests,
    replay,
)

CONFS = (
    "",
    "max_split_size_mb:20",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:2,4:8,>:1]",
    "large_segment_size_mb:32",
    "per_process_memory_fraction:0.8,garbage_collection_threshold:0.6",
    "per_process_memory_fraction:0.7,max_split_size_mb:25",
    "expandable_segments:True",
    "expandable_segments:True,large_segment_size_mb:32",
)


def traffic(seed: int, count: int = 1500, alive: int = 40, streams: int = 1):
    """Requests of all sizes from 1 byte to 50 MiB, frees in any order, a few empty_cache."""
    draw = random.Random(seed)
    keys = []
    for key in range(count):
        if keys and (len(keys) > alive or draw.random() < 0.45):
            yield "free", keys.pop(draw.randrange(len(keys)))
        elif draw.random() < 0.01:
            yield ("empty_cache",)
        else:
            yield "alloc", key, int(2 ** draw.uniform(0, 25.6)), draw.randrange(streams)
            keys.append(key)


def check(allocator: CudaAllocator) -> dict:
    """Whatever was asked: blocks tile their segments, and all the counts agree."""
    snapshot = allocator.snapshot()
    for segment in snapshot["segments"]:
        address = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == address
            assert block["size"] % 512 == 0 and block["size"] > 0
            address += block["size"]
        assert address == segment["address"] + segment["total_size"]
        states = [block["state"] for block in segment["blocks"]]
        assert ("inactive", "inactive") not in itertools.pairwise(states)
    total = Counter()
    for segment in snapshot["segments"]:
        total.update({k: v for k, v in segment.items() if k.endswith("_size")})
    assert total["total_size"] == allocator.memory_reserved() <= allocator.capacity
    assert total["allocated_size"] == allocator.memory_allocated()
    assert total["active_size"] == allocator.memory_active()
    assert total["requested_size"] == allocator.memory_requested()
    sizes = Counter()
    for event in allocator.trace:
        sizes[event["action"]] += event["size"]
    taken = sizes["segment_alloc"] + sizes["segment_map"]
    given = sizes["segment_free"] + sizes["segment_unmap"]
    assert taken - given == allocator.memory_reserved()
    return snapshot


# ------------------------------------------------------------------------------ the page


@pytest.mark.parametrize("seed", range(5))
def test_the_whole_without_options_is_the_page(seed):
    page, whole = CachingAllocator(600 * MIB), CudaAllocator(600 * MIB)
    requests = list(traffic(seed, streams=3))
    alike = [replay(requests, allocator) for allocator in (page, whole)]
    assert alike[0] == alike[1]
    assert page.segments() == whole.segments()
    assert max(allocated for allocated, _ in alike[0]) == whole.max_memory_allocated()
    assert max(reserved for _, reserved in alike[0]) == whole.max_memory_reserved() > 0
    check(whole)


def test_unit_facts():
    def one(size, conf=""):
        allocator = CudaAllocator(GIB, conf)
        allocator.malloc(size)
        return allocator.memory_allocated(), allocator.memory_reserved()

    assert one(1) == (512, 2 * MIB)
    assert one(513) == (1024, 2 * MIB)
    assert one(MIB) == (MIB, 2 * MIB)
    assert one(MIB + 1) == (MIB + 512, 20 * MIB)
    assert one(10 * MIB - 1) == (
        10 * MIB,
        10 * MIB,
    )  # rounded first, and then 10 MiB is not below 10
    assert one(10 * MIB - 512) == (10 * MIB - 512, 20 * MIB)
    assert one(11_000_000) == (11_000_320, 12 * MIB)
    assert one(11 * MIB) == (12 * MIB, 12 * MIB)  # what remains is no more than 1 MiB: not split
    assert one(5 * MIB, "large_segment_size_mb:32") == (5 * MIB, 32 * MIB)
    assert one(5 * MIB, "expandable_segments:True") == (5 * MIB, 20 * MIB)
    assert one(21 * MIB, "expandable_segments:True") == (21 * MIB, 40 * MIB)
    assert one(1, "expandable_segments:True") == (512, 2 * MIB)
    assert one(MIB + MIB // 4 + 1, "roundup_power2_divisions:4")[0] == MIB + MIB // 2


# ------------------------------------------------------------------------------ the whole of it


@pytest.mark.parametrize("conf", CONFS)
@pytest.mark.parametrize("seed", range(2))
def test_every_option_keeps_the_books(conf, seed):
    allocator = CudaAllocator(500 * MIB, conf)
    keys = {}
    ooms = 0
    for action, *given in traffic(seed, streams=2):
        if action == "alloc":
            key, size, stream = given
            try:
                keys[key] = allocator.malloc(size, stream)
            except torch.OutOfMemoryError:
                ooms += 1
                continue
            if key % 7 == 0:
                allocator.record_stream(keys[key], 1 - stream)
        elif action == "free":
            if given[0] in keys:
                allocator.free(keys.pop(given[0]))
        else:
            allocator.empty_cache()
        if len(keys) % 5 == 0:
            allocator.synchronize(len(keys) % 2)
    snapshot = check(allocator)
    assert ooms == sum(event["action"] == "oom" for event in allocator.trace)
    for address in keys.values():
        allocator.free(address)
    allocator.empty_cache()
    assert allocator.memory_reserved() == 0 and check(allocator)["segments"] == []
    assert viz.segsum(snapshot).count("allocated") > 2
    assert viz.trace(snapshot)
    assert "Active Memory Timeline" in viz.trace_plot(snapshot)
    assert "Active Cached Memory Timeline" in viz.trace_plot(snapshot, plot_segments=True)
    assert "Allocator State History" in viz.segment_plot(snapshot)


def test_torch_s_own_report_of_the_segments():
    allocator = CudaAllocator(GIB)
    first = allocator.malloc(3 * MIB)
    allocator.malloc(4 * MIB)
    allocator.free(first)
    report = viz.segsum(allocator.snapshot())
    assert "segments: 1" in report and "total_reserved: 20.0MiB" in report
    assert "total_allocated: 4.0MiB" in report


def test_the_trace_tells_what_happened_in_torch_s_words():
    allocator = CudaAllocator(24 * MIB)
    a = allocator.malloc(600)
    b = allocator.malloc(3 * MIB)
    allocator.free(a)
    with pytest.raises(torch.OutOfMemoryError):
        allocator.malloc(30 * MIB)
    allocator.free(b)
    allocator.empty_cache()
    got = [(e["action"], e.get("addr"), e["size"]) for e in allocator.trace]
    assert got == [
        ("segment_alloc", 0, 2 * MIB),
        ("alloc", 0, 600),
        ("segment_alloc", 2 * MIB, 20 * MIB),
        ("alloc", 2 * MIB, 3 * MIB),
        ("free_requested", 0, 600),
        ("free_completed", 0, 600),
        ("segment_free", 0, 2 * MIB),
        ("oom", None, 30 * MIB),
        ("free_requested", 2 * MIB, 3 * MIB),
        ("free_completed", 2 * MIB, 3 * MIB),
        ("segment_free", 2 * MIB, 20 * MIB),
    ]
    assert [e["device_free"] for e in allocator.trace if e["action"] == "oom"] == [4 * MIB]


def test_the_error_reads_like_torch_s():
    """Wording: malloc in CUDACachingAllocator.cpp; an error of a real device, its numbers aside:

    CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 10.56 GiB of which
    3.49 GiB is free. Including non-PyTorch memory, this process has 7.06 GiB memory in use. Of the
    allocated memory 6.78 GiB is allocated by PyTorch, and 97.98 MiB is reserved by PyTorch but
    unallocated. If reserved but unallocated memory is large try setting
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation. …
    """
    allocator = CudaAllocator(8 * GIB)
    allocator.malloc(7 * GIB)
    allocator.malloc(3 * MIB)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        allocator.malloc(2 * GIB + 1)
    assert str(caught.value).startswith(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB of "
        "which 1004.00 MiB is free. Of the allocated memory 7.00 GiB is allocated by PyTorch, and "
        "17.00 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is "
        "large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  "
        "See documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/"
    )
    limited = CudaAllocator(8 * GIB, "per_process_memory_fraction:0.5")
    with pytest.raises(
        torch.OutOfMemoryError, match=re.escape("8.00 GiB is free. 4.00 GiB allowed; ")
    ):
        limited.malloc(5 * GIB)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1024, "1024 bytes"),
        (1025, "1.00 KiB"),
        (MIB, "1024.00 KiB"),
        (3 * MIB // 2, "1.50 MiB"),
        (GIB, "1024.00 MiB"),
        (GIB + 1, "1.00 GiB"),
        (20 * KIB, "20.00 KiB"),
    ],
)
def test_sizes_in_words(size, text):
    assert format_size(size) == text


def test_a_block_that_another_stream_uses_waits_for_it():
    allocator = CudaAllocator(GIB)
    a = allocator.malloc(3 * MIB)
    allocator.record_stream(a, 1)
    allocator.free(a)
    assert allocator.memory_allocated() == 0 and allocator.memory_active() == 3 * MIB
    assert [b["state"] for b in allocator.snapshot()["segments"][0]["blocks"]] == [
        "active_awaiting_free",
        "inactive",
    ]
    b = allocator.malloc(3 * MIB)
    assert b != a
    allocator.synchronize(1)
    assert allocator.malloc(3 * MIB) == a  # the next malloc asks for the event
    waits = CudaAllocator(40 * MIB)
    first = waits.malloc(30 * MIB)
    waits.record_stream(first, 1)
    waits.record_stream(first, 0)  # its own stream: no event
    waits.free(first)
    assert waits.malloc(40 * MIB) == 30 * MIB  # for lack of memory torch waits for all events


def test_expandable_segments_grow_where_segments_pile_up():
    """A request a little larger each time: the old segments are too small, one that grows is not."""
    reserved = {}
    for conf in ("", "expandable_segments:True"):
        allocator = CudaAllocator(2 * GIB, conf)
        for size in range(20, 60, 4):
            allocator.free(allocator.malloc(size * MIB))
        reserved[conf] = allocator.memory_reserved()
        check(allocator)
    assert reserved[""] == sum(range(20, 60, 4)) * MIB
    assert reserved["expandable_segments:True"] == 60 * MIB


def test_expandable_segments_give_single_pages_back():
    allocator = CudaAllocator(GIB, "expandable_segments:True")
    addresses = [allocator.malloc(20 * MIB) for _ in range(5)]
    for i in (1, 2, 3):
        allocator.free(addresses[i])
    allocator.empty_cache()
    assert allocator.memory_reserved() == 40 * MIB
    assert [s["address"] for s in allocator.snapshot()["segments"]] == [0, 80 * MIB]
    assert allocator.malloc(20 * MIB) == 20 * MIB  # the lowest addresses without memory come first
    check(allocator)


def test_oversize_blocks_are_kept_whole():
    allocator = CudaAllocator(GIB, "max_split_size_mb:20")
    big = allocator.malloc(100 * MIB)
    allocator.free(big)
    assert allocator.malloc(5 * MIB) == 100 * MIB  # a small request leaves it alone
    assert allocator.malloc(79 * MIB) != big  # nor does one take it that is 20 MiB smaller or more
    assert allocator.malloc(81 * MIB) == big
    assert allocator.memory_allocated() == (5 + 80 + 100) * MIB  # 79 of 80: not worth a split


def test_garbage_collection_takes_the_old_and_needs_a_fraction():
    """Above half of what is allowed, 100 MiB, cached segments go that are older than the average."""
    conf = "garbage_collection_threshold:0.5"
    freed = {}
    for more in ("", ",per_process_memory_fraction:0.5"):
        allocator = CudaAllocator(400 * MIB, conf + more)
        old = allocator.malloc(40 * MIB)
        young = allocator.malloc(50 * MIB)
        allocator.free(old)
        for _ in range(3):
            allocator.free(allocator.malloc(35 * MIB))  # split: 5 MiB remain, and are merged again
        allocator.malloc(39 * MIB)
        allocator.free(young)
        allocator.malloc(60 * MIB)
        allocator.malloc(61 * MIB)
        freed[more] = [e["addr"] for e in allocator.trace if e["action"] == "segment_free"]
        check(allocator)
    assert freed == {"": [], ",per_process_memory_fraction:0.5": [40 * MIB]}


# ------------------------------------------------------------------------------ options


SETTINGS = (
    "max_split_size_mb:10",
    "max_split_size_mb:20",
    "max_split_size_mb:25,large_segment_size_mb:32",
    "large_segment_size_mb:32,max_split_size_mb:40",
    "large_segment_size_mb:10",
    "large_segment_size_mb:11",
    "max_non_split_rounding_mb:10",
    "max_non_split_rounding_mb:30",
    "garbage_collection_threshold:0.8",
    "garbage_collection_threshold:1.0",
    "garbage_collection_threshold:0",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:3",
    "roundup_power2_divisions:0",
    "roundup_power2_divisions:[256:1, 512:2, 1024:4, >:8]",
    "roundup_power2_divisions:[64:8,256:3]",
    "roundup_power2_divisions:[3:8]",
    "roundup_power2_divisions:[>:4]",
    "expandable_segments:True",
    "expandable_segments:true",
    "max_split_size_mb",
    "max_split_size_mb:x",
    "max_split_size_mb:40,",
    "max_split_size_mb:40 garbage_collection_threshold:0.5",
    "pinned_use_background_threads:True",
    "",
)


@pytest.mark.skipif(
    torch.__version__ < (2, 13), reason="not compared: the options are those of torch 2.13"
)
@pytest.mark.parametrize("text", SETTINGS)
def test_settings_are_accepted_where_torch_accepts_them(text):
    try:
        torch._C._accelerator_setAllocatorSettings("large_segment_size_mb:20")
        torch._C._accelerator_setAllocatorSettings(text)
        accepted = True
    except (ValueError, RuntimeError):  # torch reports some of them as an internal error
        accepted = False
    finally:
        torch._C._accelerator_setAllocatorSettings("large_segment_size_mb:20")
        torch._C._accelerator_setAllocatorSettings("")
    if accepted:
        AllocatorConfig.parse(text)
    else:
        with pytest.raises(ValueError):
            AllocatorConfig.parse(text)


def test_what_the_options_say():
    config = AllocatorConfig.parse("max_split_size_mb:200,per_process_memory_fraction:0.25")
    assert (config.max_split_size, config.memory_fraction) == (200 * MIB, 0.25)
    config = AllocatorConfig.parse("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]")
    assert config.roundup_power2 == (1,) * 9 + (2, 4) + (8,) * 5
    with pytest.raises(ValueError, match="Unrecognized CachingAllocator option: max_split"):
        AllocatorConfig.parse("max_split:200")


def test_rounding_to_parts_of_a_power_of_two():
    """roundup_power2_next_division's own example: 1200 of 4 parts between 1024 and 2048 is 1280."""
    allocator = CudaAllocator(GIB, "roundup_power2_divisions:4")
    assert allocator._rounded(1200 * KIB) == 1280 * KIB
    assert allocator._rounded(1024 * KIB) == 1024 * KIB
    assert allocator._rounded(1793 * KIB) == 2048 * KIB
    assert allocator._rounded(2048) == 2048
    assert allocator._rounded(2049) == 2560
    assert allocator._rounded(1) == 512


# ------------------------------------------------------------------------------ real streams


def test_the_stream_of_a_training_step_on_this_machine():
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)])
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        loss = model(torch.randn(128, 256)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    requests = recorded_requests(step)
    sizes = {key: size for action, key, *size in requests if action == "alloc"}
    assert len(sizes) > 20 and [128 * 256 * 4] in sizes.values()
    alive = Counter(request[0] for request in requests)
    assert alive["alloc"] == alive["free"]  # a step leaves nothing behind
    for conf in CONFS:
        allocator = CudaAllocator(GIB, conf)
        after = replay(requests, allocator)
        assert after[-1][0] == 0 and max(a for a, _ in after) == allocator.max_memory_allocated()
        check(allocator)


# ------------------------------------------------------------------------------ recordings


NAMES = ("training_step", "training_step_expandable", "operations", "operations_expandable")


@pytest.mark.parametrize("name", NAMES)
def test_recordings_of_a_gpu_are_reproduced_event_by_event(name):
    if importlib.util.find_spec("course_utils.recordings") is None:
        pytest.skip(f"not compared: allocator/{name} cannot be looked up")
    recordings = importlib.import_module("course_utils.recordings")
    recording = recordings.find(f"allocator/{name}")
    if recording is None:
        pytest.skip(f"not compared: {recordings.missing(f'allocator/{name}')}")
    found = agreement(recording.data)
    print(f"{recording.source}\n{found}")
    assert found.complete, found


def as_recording(allocator: CudaAllocator, conf: str) -> dict:
    """A simulated run in the layout of a recording."""
    snapshot = allocator.snapshot()
    keys = ("action", "addr", "size", "stream")
    return {
        "conf": conf,
        "events": [[e[k] for k in keys] for e in snapshot["device_traces"][0]],
        "segments": [
            {
                **segment,
                "blocks": [
                    [b["address"], b["size"], b["requested_size"], b["state"]]
                    for b in segment["blocks"]
                ],
            }
            for segment in snapshot["segments"]
        ],
    }


@pytest.mark.parametrize("conf", ["", "expandable_segments:True", "roundup_power2_divisions:4"])
def test_the_comparison_follows_a_trace_and_notices_a_difference(conf):
    """No evidence about a GPU: that the comparison reads a trace as it was meant."""
    allocator = CudaAllocator(8 * GIB, conf)
    replay(traffic(3, streams=2), allocator)
    a = allocator.malloc(5 * MIB)
    allocator.record_stream(a, 1)
    allocator.free(a)
    allocator.malloc(5 * MIB)
    allocator.synchronize()
    allocator.malloc(5 * MIB)
    recording = as_recording(allocator, conf)
    found = agreement(recording)
    assert found.complete, found
    assert found.counts["address of a block"][1] > 500
    for changed in ("max_split_size_mb:20", "roundup_power2_divisions:2"):
        assert not agreement(recording | {"conf": changed}).complete


def test_counters_after_each_request():
    requests = [["alloc", 1, 600], ["alloc", 2, 3 * MIB], ["free", 1], ["empty_cache"]]
    after = [
        [1024, 2 * MIB, 600, 1024, 1],
        [3 * MIB + 1024, 22 * MIB, 3 * MIB + 600, 3 * MIB + 1024, 2],
        [3 * MIB, 22 * MIB, 3 * MIB, 3 * MIB, 2],
        [3 * MIB, 20 * MIB, 3 * MIB, 3 * MIB, 1],
    ]
    recording = {"conf": "", "operations": requests, "after": after}
    assert agreement(recording).complete
    after[2][1] -= 512
    found = agreement(recording)
    assert str(found).splitlines()[1] == "reserved bytes after a request: 3 of 4 agree"
    assert not found.complete


def test_a_comparison_of_nothing_is_no_success():
    assert not Agreement().complete
    assert str(Agreement()) == "not compared"
