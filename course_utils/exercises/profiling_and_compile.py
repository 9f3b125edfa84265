"""Exercises of chapter 15, profiling and compile: traces, times, bytes of fused kernels, guards, tiles, Triton."""
# mypy: ignore-errors

import math
import time
from collections import Counter, defaultdict
from fractions import Fraction
from itertools import pairwise

import torch
from hypothesis import strategies as st

from course_utils.grading import Exercise, call, contracts, draws, probes, replace
from course_utils.grading.probes.chapters import quantization as driving_pairs
from course_utils.reference import profiling_and_compile as book
from course_utils.reference import triton_kernels
from course_utils.reference.triton_kernels import tl

INF = float("inf")
F16, BF16, F64 = torch.float16, torch.bfloat16, torch.float64


def normal(*shape, dtype=torch.float32, seed=0, scale=1.0):
    """Fixed standard normal numbers, times scale, for cases without draws."""
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(shape, generator=generator, dtype=F64)).to(dtype)


def reordered(draw, items):
    return list(draw(st.permutations(items)))


# ------------------------------------------------------------------------------ self_times

self_times = Exercise(
    book.self_times,
    title="Whose time is it?",
    difficulty=1,
    minutes=20,
    points=2,
    hints=(
        "Sort the spans by their start, of equal starts the longer one first. Then every span comes "
        "after the one that it lies in.",
        "Keep the open spans on a stack. Before a span is pushed, pop those that have ended by its start.",
        "The span on top of the stack is the one that it lies right in: take the length off that one's time.",
        ("edge cases", "A span that starts where another ends lies beside it, not inside of it."),
    ),
)


@self_times.by_hand
def _():
    yield call([("f", 0.0, 4.0)]), {"f": 4.0}
    yield call([("f", 0.0, 4.0), ("g", 1.0, 2.0)]), {"f": 3.0, "g": 1.0}
    yield (
        call([("f", 0.0, 8.0), ("g", 1.0, 5.0), ("h", 2.0, 3.0), ("h", 6.0, 8.0)]),
        {"f": 2.0, "g": 3.0, "h": 3.0},
    )
    yield call([("f", 0.0, 2.0), ("g", 2.0, 3.0)]), {"f": 2.0, "g": 1.0}
    yield call([("f", 0.0, 2.0), ("g", 0.0, 2.0)]), {"f": 0.0, "g": 2.0}


def nested_spans(draw, start, end, depth):
    """Spans within (start, end), nested or disjoint; many touch."""
    found, at = [], start
    while at < end and len(found) < 4:
        at += draw(st.integers(0, 2))
        stop = at + draw(st.integers(0, 6))
        if stop > end:
            break
        found.append((draw(st.sampled_from("fgh")), float(at), float(stop)))
        if depth and stop > at:
            found += nested_spans(draw, at, stop, depth - 1)
        at = stop
    return found


@self_times.cases(60)
def _(draw):
    spans = nested_spans(draw, 0, 16, 2)
    if len({span[1:] for span in spans}) == len(spans):  # of equal spans the order decides
        spans = reordered(draw, spans)
    yield call(spans)


@self_times.edge
def _():
    yield call([]), "no span"
    yield call([("f", 1.0, 1.0)]), "a span of no length"
    yield call([("f", 0.0, 4.0), ("f", 1.0, 3.0)]), "a name inside itself"
    yield (
        call([("f", 0.0, 9.0), ("f", 1.0, 8.0), ("f", 2.0, 7.0), ("g", 3.0, 4.0)]),
        "recursion, three deep",
    )
    yield call([("f", 0.0, 4.0), ("g", 0.0, 4.0)]), "the same start and end: the first is outside"
    yield call([("g", 0.0, 4.0), ("f", 0.0, 4.0)]), "the same start and end, whatever the names"
    yield call([("f", 0.0, 4.0), ("g", 0.0, 1.0), ("h", 3.0, 4.0)]), "at both ends of another"
    yield call([("h", 3.0, 4.0), ("g", 0.0, 1.0), ("f", 0.0, 4.0)]), "the outer one comes last"
    yield call([("f", 0.0, 4.0), ("g", 1.0, 2.0), ("g", 2.0, 3.0)]), "children that touch"
    yield call([("f", 0.0, 2.0), ("g", 2.0, 2.0), ("h", 2.0, 5.0)]), "no length, between two"
    yield call([("f", 10.0, 20.0), ("f", 30.0, 40.0), ("g", 32.0, 34.0)]), "two spans of one name"
    yield (
        call([("f", 0.0, 2.0), ("g", 0.0, 2.0), ("h", 0.0, 2.0)]),
        "three of the same start and end",
    )
    yield call([(f"level {i}", float(i), 64.0 - i) for i in range(24)]), "24 levels"


self_times.slips(
    {
        replace(
            """        if around:
            own[around[-1][0]] -= end - start
""",
            "",
        ): "These are total times: what is nested in a span is still counted in it.",
        replace(
            "own[around[-1][0]] -= end - start",
            "for outer, _ in around: own[outer] -= end - start",
        ): "You take a span off all that it lies in. A grandchild is in the child's time already: only the "
        "innermost one loses it.",
        replace(
            "(span[1], -span[2])", "span[1]"
        ): "Of two spans with the same start you may meet the inner one first. Sort the longer one first.",
        replace(
            "sorted(spans, key", "sorted(reversed(spans), key"
        ): "Of two spans with the same start and end you make the later one in the list the outer one. It is the "
        "earlier one.",
        replace(
            "(span[1], -span[2])", "(span[1], -span[2], span[0])"
        ): "Of two spans with the same start and end you make the one whose name comes first in the alphabet the outer "
        "one. It is the earlier in the list: leave the names out of the sort.",
        replace(
            "<= start", "< start"
        ): "A span that starts just where another ends is not inside of it, but you take it off.",
        replace(
            "own[name] += end - start\n", "own[name] = end - start\n"
        ): "You keep the last span of a name. All of them count: add.",
        replace(
            "sorted(spans, key=lambda span: (span[1], -span[2]))", "spans"
        ): "You take the spans in the order in which they came. They may come in any order: sort them.",
        replace(
            "while around and", "if around and"
        ): "You close one span at most before the next. Several may have ended by then: `while`.",
        replace(
            "            around.pop()", "            around.pop(0)"
        ): "You close the outermost open span. The innermost one ends first: it is the last of the stack.",
        replace(
            "own[around[-1][0]] -=", "own[around[0][0]] -="
        ): "You take the span off the outermost one that is open. It lies right in the innermost.",
        replace(
            "    return own", "    return {name: t for name, t in own.items() if t}"
        ): "You leave out names whose own time is 0. The result has every name that occurs.",
        replace(
            "    return own",
            "    return {name: t / max(sum(own.values()), 1e-9) for name, t in own.items()}",
        ): "You return shares of the whole. The times themselves are asked for.",
    }
)


@self_times.mistake(
    "You take off what carries another name only. A function that calls itself is its own child: its inner span "
    "is off the outer one's time, and counted for itself."
)
def _(spans):
    own, around = dict.fromkeys((name for name, _, _ in spans), 0.0), []
    for name, start, end in sorted(spans, key=lambda span: (span[1], -span[2])):
        while around and around[-1][1] <= start:
            around.pop()
        own[name] += end - start
        if around and around[-1][0] != name:
            own[around[-1][0]] -= end - start
        around.append((name, end))
    return own


@self_times.mistake("You sort the caller's list in place. It is somebody's trace: use `sorted`.")
def _(spans):
    found = book.self_times(spans)
    spans.sort(key=lambda span: (span[1], -span[2]))
    return found


@self_times.mistake(
    "You take off all spans that lie within one, at any depth. A grandchild is in the child's time already: take off "
    "the children alone."
)
def _(spans):
    own = dict.fromkeys((name for name, _, _ in spans), 0.0)
    for i, (name, start, end) in enumerate(spans):
        inside = (b - a for j, (_, a, b) in enumerate(spans) if i != j and start <= a and b <= end)
        own[name] += end - start - sum(inside)
    return own


@self_times.alternative("for each span, its parent by looking at all others")
def _(spans):
    own = defaultdict(float)
    for i, (name, start, end) in enumerate(spans):
        own[name] += end - start
        around = [
            (b - a, -j, other)
            for j, (other, a, b) in enumerate(spans)
            if a <= start and end <= b and (b - a > end - start or (b - a == end - start and j < i))
        ]
        around = [one for one in around if start < end]
        if around:
            own[min(around)[2]] -= end - start
    return dict(own)


@self_times.alternative("by recursion")
def _(spans):
    own = dict.fromkeys([span[0] for span in spans], 0.0)
    waiting = sorted(enumerate(spans), key=lambda one: (one[1][1], -one[1][2], one[0]))

    def children(until):
        taken = 0.0
        while waiting and waiting[0][1][1] < until:
            _, (name, start, end) = waiting.pop(0)
            inside = children(end)
            own[name] += end - start - inside
            taken += end - start
        return taken

    children(INF)
    return own


# ------------------------------------------------------------------------------ benchmark

benchmark = Exercise(
    book.benchmark,
    title="Time a call",
    difficulty=2,
    minutes=20,
    points=3,
    probe=probes.timed,
    hints=(
        "Between the two readings of the clock: the call, and waiting until its work is done.",
        "Before the first reading: wait as well, or work that somebody else has queued is counted as yours.",
        "A time for each repeat, in a list; what to do with them is not this function's business.",
        ("edge cases", "With synchronize None there is nothing to wait for, and nothing to call."),
    ),
)


def run_of(work, queued=0.0, waits=True, **options):
    return call(work, queued, waits, options)


@benchmark.by_hand
def _():
    device = [(1.0, [4.0])]
    yield run_of(device, warmup=0, repeats=2), [5.25, 5.25]
    yield run_of([(9.0, [4.0]), (1.0, [4.0])], warmup=1, repeats=2), [5.25, 5.25]
    yield run_of([(2.0, [])], waits=False, warmup=0, repeats=3), [2.0, 2.0, 2.0]


@benchmark.cases(40)
def _(draw):
    waits = draw(st.booleans())
    quarters = st.integers(0, 40).map(lambda n: n / 4)
    work = [
        (
            draw(quarters) + (64.0 if not i else 0.0),
            draw(st.lists(quarters, max_size=3)) if waits else [],
        )
        for i in range(draw(st.integers(1, 6)))
    ]
    queued = draw(st.sampled_from((0.0, 0.0, 100.0)))
    yield run_of(
        work, queued, waits, warmup=draw(st.integers(0, 4)), repeats=draw(st.integers(1, 5))
    )


@benchmark.edge
def _():
    slow = [(64.0, [2.0]), (32.0, [2.0]), (16.0, [2.0]), (0.5, [2.0]), (0.5, [3.0])]
    yield run_of(slow), "the defaults"
    yield run_of(slow, repeats=4), "the default warm-up"
    yield run_of([(1.0, [2.0])], 100.0, warmup=0, repeats=2), "work in the queue, no warm-up"
    yield run_of([(1.0, [2.0])], 100.0, waits=False, warmup=0, repeats=2), "nothing to wait with"
    yield run_of([(0.0, [8.0])], warmup=3, repeats=3), "the device is far behind after the warm-up"
    yield (
        run_of([(0.0, [1.0]), (0.0, [2.0]), (0.0, [4.0])], warmup=0, repeats=3),
        "no two calls alike",
    )
    yield run_of([(0.0, [])], warmup=2, repeats=1), "a call that does nothing"
    yield run_of([(1.0, [])], warmup=0, repeats=0), "no repeat is an error"
    yield run_of([(1.0, [])], warmup=1, repeats=-2), "fewer than none"
    yield run_of([(1.0, [])], warmup=-1, repeats=2), "a negative warm-up is an error"


benchmark.slips(
    {
        replace(
            """        function()
        wait()
        seconds""",
            """        function()
        seconds""",
        ): "You do not wait before you read the clock again. The call has launched its work and returned: you time "
        "launches.",
        replace(
            """        wait()
        start = clock()
""",
            """        start = clock()
""",
        ): "You start the clock while the device may still be busy. What was queued before, by the warm-up too, "
        "is counted for the first call.",
        replace(
            """        wait()
        start = clock()
""",
            """        start = clock()
        wait()
""",
        ): "You wait after you have started the clock: what was queued before is counted for the call.",
        replace(
            """    for _ in range(warmup):
        function()
""",
            "",
        ): "You never warm up. The first calls compile, allocate and fill caches, and you count them.",
        replace(
            "range(warmup)", "range(max(warmup, 1))"
        ): "You warm up once even where warmup is 0.",
        replace(
            "range(warmup)", "range(min(warmup, 1))"
        ): "You warm up once. `warmup` says how often.",
        replace(
            "    return seconds", "    return sum(seconds) / len(seconds)"
        ): "You return the mean. The times of all repeats are asked for, in a list.",
        replace(
            "    return seconds", "    return sorted(seconds)[len(seconds) // 2]"
        ): "You return the median. The times of all repeats are asked for, in a list.",
        replace(
            "    return seconds", "    return sorted(seconds)"
        ): "You sort the times. They are asked for in the "
        "order of the calls, in which a drift can be seen.",
        replace(
            "seconds.append(clock() - start)", "seconds.append(time.perf_counter() - start)"
        ): "You read another clock than the one that you were given.",
        replace("range(repeats)", "range(repeats + 1)"): "You repeat once too often.",
        replace(
            "if repeats < 1 or warmup < 0:", "if warmup < 0:"
        ): "No repeat gives no time. Raise ValueError for fewer than one.",
        replace(
            "if repeats < 1 or warmup < 0:", "if repeats < 1:"
        ): "A negative number of calls of warm-up is a slip of the caller: raise ValueError.",
        replace(
            "if repeats < 1 or warmup < 0:", "if repeats < 1 or warmup < 1:"
        ): "You refuse to measure without a warm-up. 0 is allowed: the first call may be what one wants to time.",
        replace(
            "wait = synchronize or (lambda: None)", "wait = synchronize"
        ): "You call `synchronize` even where it is None: then nothing is to be waited for.",
    }
)


@benchmark.mistake(
    "You time all repeats together and divide. Then one slow call hides in all of them; time each."
)
def _(function, *, warmup=3, repeats=10, synchronize=None, clock=time.perf_counter):
    if repeats < 1 or warmup < 0:
        raise ValueError
    wait = synchronize or (lambda: None)
    for _ in range(warmup):
        function()
    wait()
    start = clock()
    for _ in range(repeats):
        function()
    wait()
    return [(clock() - start) / repeats] * repeats


@benchmark.mistake(
    "You time all repeats together and divide. Then one slow call hides in all of them; time each."
)
def _(function, *, warmup=3, repeats=10, synchronize=None, clock=time.perf_counter):
    spent = book.benchmark(
        function, warmup=warmup, repeats=repeats, synchronize=synchronize, clock=clock
    )
    return [sum(spent) / repeats] * repeats


@benchmark.mistake("You count the warm-up among the repeats: so many calls too few are timed.")
def _(function, *, warmup=3, repeats=10, synchronize=None, clock=time.perf_counter):
    return book.benchmark(
        function, warmup=0, repeats=repeats, synchronize=synchronize, clock=clock
    )[warmup:]


@benchmark.mistake(
    "You wait in the warm-up and after each call, not before the first reading. Without a warm-up what others have "
    "queued is counted for the first call."
)
def _(function, *, warmup=3, repeats=10, synchronize=None, clock=time.perf_counter):
    if repeats < 1 or warmup < 0:
        raise ValueError
    wait = synchronize or (lambda: None)
    for _ in range(warmup):
        function()
        wait()
    seconds = []
    for _ in range(repeats):
        start = clock()
        function()
        wait()
        seconds.append(clock() - start)
    return seconds


@benchmark.alternative("a list of moments, and differences")
def _(function, *, warmup=3, repeats=10, synchronize=None, clock=time.perf_counter):
    if warmup < 0 or repeats <= 0:
        raise ValueError("calls")
    seconds = []
    for call_number in range(-warmup, repeats):
        if synchronize is not None:
            synchronize()
        begun = clock()
        function()
        if synchronize is not None:
            synchronize()
        ended = clock()
        if call_number >= 0:
            seconds.append(ended - begun)
    return seconds


# ------------------------------------------------------------------------------ median_interval

median_interval = Exercise(
    book.median_interval,
    title="The median, and how sure it is",
    difficulty=2,
    minutes=25,
    points=3,
    hints=(
        "Each time lies below the true median with probability ½, like a coin. If fewer than k of n do, the k-th "
        "smallest is already above it.",
        "P(fewer than k of n coins show heads) is the sum of comb(n, i) / 2ⁿ over i < k. Twice that, for both ends, "
        "may be 1 − confidence at most: raise k while it is.",
        "The k-th smallest of `ordered` is ordered[k − 1], the k-th largest is ordered[n − k].",
        ("edge cases", "If even k = 1 is too much, there is no such interval: raise ValueError."),
    ),
)


@median_interval.by_hand
def _():
    yield call([6.0, 1.0, 3.0, 2.0, 5.0, 4.0]), (3.5, 1.0, 6.0)
    yield call([float(n) for n in range(1, 10)]), (5.0, 2.0, 8.0)
    yield call([3.0, 1.0, 2.0], 0.75), (2.0, 1.0, 3.0)
    yield call([float(n) for n in range(1, 11)], 0.5), (5.5, 4.0, 7.0)


@median_interval.cases(40)
def _(draw):
    confidence = draw(st.sampled_from((0.5, 0.8, 0.9, 0.95, 0.99)))
    fewest = next(n for n in range(1, 20) if 2 / 2**n <= 1 - confidence)
    n = draw(st.integers(fewest, fewest + 24))
    times = draw(st.lists(st.integers(1, 400), min_size=n, max_size=n, unique=True))
    yield call([t / 8 for t in times], confidence)


@median_interval.edge
def _():
    yield call([float(n) for n in range(5)]), "five are too few for 95 %"
    yield call([]), "no time"
    yield call([2.0]), "one time"
    yield call([float(n) for n in range(6)], 0.99), "six are too few for 99 %"
    yield call([7.0] * 6), "all alike"
    yield call([1.0] * 12 + [900.0]), "one that is far out"
    yield call([float(n) for n in range(20)], 0.95), "twenty, for 95 %"
    yield call([float(n * n) for n in range(51)], 0.99), "51, for 99 %"
    yield call([1.0, 2.0, 3.0, 4.0], 0.875), "just enough: 2 / 2⁴ is 1 − 0.875"
    yield call([float(n) for n in range(1100)]), "eleven hundred: 2ⁿ is no float"
    yield call([1.0, 2.0], 1.0), "no interval is certain"
    yield call([1.0, 2.0], 0.0), "a confidence of nothing"
    yield call([1.0, 2.0], 95.0), "a percentage"


median_interval.slips(
    {
        replace(
            "median, ordered[k - 1], ordered[n - k]", "median, ordered[k], ordered[n - k - 1]"
        ): "Your interval is one time too narrow at each end: the k-th smallest has the index k − 1, the k-th "
        "largest n − k.",
        replace(
            "2 * beyond / 2**n", "beyond / 2**n"
        ): "You leave the whole of 1 − confidence to one end. It is for both together: half to each.",
        replace(
            "2 * beyond / 2**n", "2 * (beyond + math.comb(n, k + 1)) / 2**n"
        ): "You count the outcomes with exactly k heads as well. It is fewer than k: comb(n, i) for i < k.",
        replace(
            "k, beyond = 0, 1 ", "k, beyond = 0, 0 "
        ): "You forget the outcome without any head: comb(n, 0) is 1.",
        replace(
            "<= 1 - confidence", "< 1 - confidence"
        ): "Exactly 1 − confidence is allowed: ≤, not <.",
        replace(
            "ordered, n = sorted(times), len(times)", "ordered, n = list(times), len(times)"
        ): "You take the times in the order in which they came. Order statistics need them sorted.",
        replace(
            "(ordered[(n - 1) // 2] + ordered[n // 2]) / 2", "(ordered[k - 1] + ordered[n - k]) / 2"
        ): "Your median is the middle of the interval. It is that of the times: the middle one, or the mean of the "
        "middle two.",
        replace(
            "(ordered[(n - 1) // 2] + ordered[n // 2]) / 2", "ordered[n // 2]"
        ): "For an even number of times you return the upper of the middle two. The median is their mean.",
        replace(
            "(ordered[(n - 1) // 2] + ordered[n // 2]) / 2", "ordered[(n - 1) // 2]"
        ): "For an even number of times you return the lower of the middle two. The median is their mean.",
        replace(
            "(ordered[(n - 1) // 2] + ordered[n // 2]) / 2", "sum(ordered) / n"
        ): "That is the mean, which one slow call moves. The median is asked for.",
        replace(
            """    if k == 0:
        raise ValueError(f"{n} times are too few for a confidence of {confidence}")
""",
            "    k = max(k, 1)\n",
        ): "With too few times you return the smallest and the largest, which do not hold what you promise: raise "
        "ValueError.",
        replace(
            """    if not 0 < confidence < 1:
        raise ValueError(f"a confidence lies between 0 and 1; came {confidence}")
""",
            "",
        ): "You take any confidence. It lies between 0 and 1: else raise ValueError.",
        replace(
            "ordered[k - 1], ordered[n - k]", "ordered[0], ordered[-1]"
        ): "You return the smallest and the largest time. That holds the median more often than asked, and gets "
        "wider with every repeat: take the largest k.",
        replace(
            "return median, ordered[k - 1], ordered[n - k]",
            "return ordered[k - 1], median, ordered[n - k]",
        ): "The order is (median, low, high).",
    }
)


SIX = (
    "You refuse fewer than 6 times, whatever the confidence. Six is for 0.95: for 0.75 three are enough, for 0.99 six are "
    "too few. Raise where even k = 1 is too much."
)
COUNTED = "    ordered, n = sorted(times), len(times)\n"
for edit in (
    ("if k == 0:", "if n < 6:", "ordered[n - k]", "ordered[-k]"),
    (COUNTED, COUNTED + "    if n < 6:\n        raise ValueError('too few')\n"),
):
    median_interval.mistake(SIX, replace(*edit))


@median_interval.mistake(
    "These are quantiles of the times: between them lie most calls. How sure the median is, is another question, and "
    "the answer gets narrower with every repeat."
)
def _(times, confidence=0.95):
    median, _, _ = book.median_interval(times, confidence)
    ordered, n = sorted(times), len(times)
    cut = int(n * (1 - confidence) / 2)
    return median, ordered[cut], ordered[n - 1 - cut]


@median_interval.mistake(
    "That is mean ± 1.96 standard errors: it takes the times to be normally distributed, and one slow call widens it "
    "for all."
)
def _(times, confidence=0.95):
    from statistics import NormalDist, mean, stdev

    median, _, _ = book.median_interval(times, confidence)
    off = NormalDist().inv_cdf((1 + confidence) / 2) * stdev(times) / len(times) ** 0.5
    return median, mean(times) - off, mean(times) + off


@median_interval.mistake("You sort the caller's list in place: use `sorted`.")
def _(times, confidence=0.95):
    found = book.median_interval(times, confidence)
    times.sort()
    return found


@median_interval.mistake(
    "You take the binomial's normal approximation, which is off by a place for few times. Count the outcomes."
)
def _(times, confidence=0.95):
    from statistics import NormalDist

    median, _, _ = book.median_interval(times, confidence)
    ordered, n = sorted(times), len(times)
    k = max(int(n / 2 - NormalDist().inv_cdf((1 + confidence) / 2) * n**0.5 / 2), 1)
    return median, ordered[k - 1], ordered[n - k]


@median_interval.mistake(
    "You take the binomial's normal approximation, which is off by a place for few times. Count the outcomes."
)
def _(times, confidence=0.95):
    from statistics import NormalDist, median

    if not 0 < confidence < 1:
        raise ValueError("confidence")
    ordered, n = sorted(times), len(times)
    k = math.floor((n - NormalDist().inv_cdf((1 + confidence) / 2) * n**0.5) / 2)
    if k < 1:
        raise ValueError("too few")
    return median(ordered), ordered[k - 1], ordered[n - k]


@median_interval.alternative("fractions, and the last k that will do")
def _(times, confidence=0.95):
    from statistics import median

    if confidence <= 0 or confidence >= 1:
        raise ValueError("confidence")
    x = sorted(times)
    n = len(x)
    best, below = 0, 0
    for k in range(1, n // 2 + 1):
        below += math.comb(n, k - 1)
        if Fraction(2 * below, 2**n) <= 1 - confidence:
            best = k
    if not best:
        raise ValueError("too few")
    return median(x), x[best - 1], x[-best]


for mutant in ("0 < confidence <= 1", "0 < confidence < 2"):
    median_interval.equivalent(
        f"median_interval: `0 < confidence < 1` → `{mutant}`",
        because="for a confidence of 1 or more no k will do, and ValueError is raised all the same",
    )


# ------------------------------------------------------------------------------ exposed_time

exposed_time = Exercise(
    book.exposed_time,
    title="Communication that nothing hides",
    difficulty=2,
    minutes=25,
    points=3,
    hints=(
        "Between two neighbouring starts or ends nothing changes. So sort all of them, and ask for each piece "
        "between two neighbours what runs there.",
        "Count up at each start and down at each end, for both lists apart.",
        "A piece is exposed if at least one communication runs in it and no compute does.",
    ),
)


@exposed_time.by_hand
def _():
    yield call([(0.0, 4.0)], []), 4.0
    yield call([(0.0, 4.0)], [(1.0, 2.0)]), 3.0
    yield call([(2.0, 6.0)], [(0.0, 3.0), (5.0, 9.0)]), 2.0
    yield call([(0.0, 4.0), (2.0, 6.0)], [(3.0, 4.0)]), 5.0
    yield call([(0.0, 6.0), (1.0, 2.0)], [(4.0, 5.0), (4.0, 5.0)]), 5.0
    yield call([(1.0, 2.0)], [(0.0, 4.0)]), 0.0


@exposed_time.cases(60)
def _(draw):
    def kernels(most):
        starts = draw(st.lists(st.integers(0, 20), max_size=most))
        return [(float(s), float(s + draw(st.integers(0, 8)))) for s in starts]

    yield call(kernels(4), kernels(4))


@exposed_time.edge
def _():
    yield call([], []), "nothing runs"
    yield call([], [(0.0, 4.0)]), "nothing is sent"
    yield call([(0.0, 4.0)], [(4.0, 8.0)]), "one after the other"
    yield call([(0.0, 4.0)], [(1.0, 3.0), (2.0, 3.5)]), "compute that overlaps itself"
    yield call([(0.0, 4.0), (0.0, 4.0), (1.0, 2.0)], []), "three streams at once"
    yield call([(6.0, 9.0), (0.0, 2.0)], [(7.0, 8.0), (1.0, 3.0)]), "not in order"
    yield call([(0.0, 10.0)], [(0.0, 1.0), (9.0, 10.0)]), "compute at both ends"
    yield call([(2.0, 2.0)], []), "no length"
    yield call([(0.0, 2.0), (2.0, 4.0)], [(1.0, 3.0)]), "two that touch"
    yield call([(0.0, 3.0)], [(0.0, 3.0)]), "the same interval"
    yield (
        call([(float(i), i + 0.5) for i in range(40)], [(i + 0.25, i + 0.75) for i in range(40)]),
        "many",
    )
    yield call([(0.0, 8.0)], [(0.0, 6.0), (1.0, 2.0), (5.0, 7.0)]), "one inside another"


@exposed_time.mistake("You add up the communication, whatever runs beside it.")
def _(communication, compute):
    return float(sum(end - start for start, end in communication))


@exposed_time.mistake(
    "You subtract the total of compute from the total of communication. It hides something only where both run."
)
def _(communication, compute):
    total = sum(end - start for start, end in communication)
    return float(max(0.0, total - sum(end - start for start, end in compute)))


@exposed_time.mistake(
    "You subtract every overlap of two kernels. Where two compute kernels run at once, or two of communication, a "
    "moment is then counted twice."
)
def _(communication, compute):
    total = sum(end - start for start, end in communication)
    return float(
        total - sum(max(0.0, min(e, f) - max(s, t)) for s, e in communication for t, f in compute)
    )


def united(kernels):
    joined = []
    for start, end in sorted(kernels):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def hidden(communication, compute):
    return sum(max(0.0, min(e, f) - max(s, t)) for s, e in communication for t, f in compute)


@exposed_time.mistake(
    "You count a moment once for each communication that runs in it. Several streams may send at once."
)
def _(communication, compute):
    total = sum(end - start for start, end in communication)
    return float(total - hidden(communication, united(compute)))


@exposed_time.mistake(
    "A moment in which several compute kernels run is subtracted several times: join them first."
)
def _(communication, compute):
    one = united(communication)
    return float(sum(e - s for s, e in one) - hidden(one, compute))


@exposed_time.mistake(
    "A moment in which several compute kernels run is subtracted several times: join them first."
)
def _(communication, compute):
    one = united(communication)
    return max(0.0, sum(e - s for s, e in one) - hidden(one, compute))


@exposed_time.mistake(
    "A moment in which several compute kernels run is subtracted several times: join them first."
)
def _(communication, compute):
    pieces = ((end - start, [(start, end)]) for start, end in united(communication))
    return float(sum(max(0.0, length - hidden(piece, compute)) for length, piece in pieces))


def joined_by(kernels, key, end_of):
    joined = []
    for start, end in sorted(kernels, key=key):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], end_of(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def exposed_of(communication, compute):
    return float(sum(e - s for s, e in communication) - hidden(communication, compute))


@exposed_time.mistake(
    "When you join two kernels you keep the end of the one that starts later. It may lie inside of the other: keep "
    "the larger end."
)
def _(communication, compute):
    def join(kernels):
        return joined_by(kernels, None, lambda before, end: end)

    return exposed_of(join(communication), join(compute))


@exposed_time.mistake(
    "You sort by the end before you join. A long kernel that starts first then comes last, and is joined with too "
    "few: sort by the start."
)
def _(communication, compute):
    def join(kernels):
        return joined_by(kernels, lambda kernel: kernel[1], max)

    return exposed_of(join(communication), join(compute))


@exposed_time.mistake(
    "You count what is sent after the last compute kernel has ended. Communication is also exposed before the first "
    "one, and in the gaps between them."
)
def _(communication, compute):
    last = max((end for _, end in compute), default=-INF)
    return book.exposed_time([(max(s, last), e) for s, e in communication if e > last], [])


@exposed_time.mistake(
    "Where nothing is sent you return the int 0, as `sum` of nothing does. A float is asked for: 0.0."
)
def _(communication, compute):
    return book.exposed_time(communication, compute) if communication else 0


@exposed_time.mistake(
    "You look at each communication by itself. A moment in which two run is counted twice, and one in which two "
    "compute kernels run is subtracted twice."
)
def _(communication, compute):
    return float(
        sum(max(0.0, end - start - hidden([(start, end)], compute)) for start, end in communication)
    )


@exposed_time.mistake(
    "You take compute for one block from its first start to its last end. In the gaps communication is exposed."
)
def _(communication, compute):
    block = [(min(s for s, _ in compute), max(e for _, e in compute))] if compute else []
    return book.exposed_time(communication, block)


@exposed_time.mistake(
    "You drop a whole communication as soon as any compute runs beside it. The rest of it is exposed."
)
def _(communication, compute):
    rest = [(s, e) for s, e in communication if not any(max(s, t) < min(e, f) for t, f in compute)]
    return book.exposed_time(rest, [])


@exposed_time.mistake(
    "That is the time that compute hides; the rest of the communication is asked for."
)
def _(communication, compute):
    return book.exposed_time(communication, []) - book.exposed_time(communication, compute)


@exposed_time.mistake(
    "You have the two lists the wrong way round: that is for how long compute runs and nothing is sent."
)
def _(communication, compute):
    return book.exposed_time(compute, communication)


exposed_time.slips(
    {
        replace(
            "if running[0] > 0 and running[1] == 0:", "if running[0] == 1 and running[1] == 0:"
        ): "Where two communications run at once you count nothing. At least one must run.",
        replace(
            "if running[0] > 0 and running[1] == 0:", "if running[1] == 0:"
        ): "You count every moment without compute, those in which nothing is sent too.",
        replace(
            "if running[0] > 0 and running[1] == 0:", "if running[0] > 0 and running[1] > 0:"
        ): "That is the time that compute hides; the rest of the communication is asked for.",
    }
)


@exposed_time.alternative("every piece between two marks, looked at by itself")
def _(communication, compute):
    marks = sorted({t for span in [*communication, *compute] for t in span})
    total = 0.0
    for a, b in pairwise(marks):
        if any(s <= a and b <= e for s, e in communication) and not any(
            s <= a and b <= e for s, e in compute
        ):
            total += b - a
    return total


@exposed_time.alternative("the length of both unions less that of compute's")
def _(communication, compute):
    def length(kernels):
        return sum(e - s for s, e in united(kernels))

    return float(length([*communication, *compute]) - length(compute))


# ------------------------------------------------------------------------------ count_kernels

count_kernels = Exercise(
    book.count_kernels,
    title="Which kernels did this launch?",
    difficulty=2,
    minutes=25,
    points=3,
    hints=(
        "Three kinds of events: the annotation, on the host; the launches, on the host; the kernels, on the device.",
        "Which launches began inside the annotation? Collect their correlations in a set.",
        "A kernel counts if its correlation is in the set, whenever it ran.",
        ("edge cases", '`event.get("cat")`: an event of another kind may have no cat.'),
    ),
)


def host(name, ts, dur=1.0, cat="cuda_runtime", tid=1, **args):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid, "args": args}


def note(name, ts, dur, cat="user_annotation"):
    return host(name, ts, dur, cat)


def launch(correlation, ts, name="cudaLaunchKernel", cat="cuda_runtime", tid=1, dur=1.0):
    return host(name, ts, dur, cat, tid, correlation=correlation)


def kernel(correlation, ts, name="gemm", dur=4.0, cat="kernel"):
    return host(name, ts, dur, cat, 7, correlation=correlation, stream=7)


@count_kernels.by_hand
def _():
    trace = [
        note("forward", 0.0, 10.0),
        launch(1, 2.0),
        kernel(1, 3.0),
        launch(2, 12.0),
        kernel(2, 13.0),
    ]
    yield call(trace, "forward"), {"gemm": 1}
    late = [
        note("forward", 0.0, 4.0),
        launch(1, 1.0),
        launch(2, 2.0),
        kernel(1, 3.0),
        kernel(2, 20.0, "gelu"),
    ]
    yield call(late, "forward"), {"gemm": 1, "gelu": 1}
    yield call(late, "backward"), {}
    graph = [note("step", 0.0, 4.0), launch(5, 1.0, "cudaGraphLaunch")]
    graph += [kernel(5, 3.0 + 4 * i, name) for i, name in enumerate(("gemm", "gelu", "gemm"))]
    yield call(graph, "step"), {"gemm": 2, "gelu": 1}


@count_kernels.cases(40)
def _(draw):
    trace, at = [{"ph": "M", "name": "process_name", "ts": 0.0}], 0.0
    notes = [
        note(draw(st.sampled_from(("forward", "backward"))), float(at), float(dur))
        for at, dur in draw(
            st.lists(st.tuples(st.integers(0, 40), st.integers(1, 15)), min_size=1, max_size=4)
        )
    ]
    behind = draw(st.integers(0, 20))
    for correlation in range(1, draw(st.integers(1, 10)) + 1):
        at += draw(st.integers(0, 8))
        call_name, cat = draw(
            st.sampled_from(
                (
                    ("cudaLaunchKernel", "cuda_runtime"),
                    ("cuLaunchKernelEx", "cuda_driver"),
                    ("cudaGraphLaunch", "cuda_runtime"),
                    ("cudaMemcpyAsync", "cuda_runtime"),
                )
            )
        )
        took = draw(st.sampled_from((0.5, 1.0, 4.0)))
        trace.append(launch(correlation, at, call_name, cat, draw(st.integers(1, 2)), took))
        if "Memcpy" in call_name:
            trace.append(kernel(correlation, at + behind, "Memcpy DtoH", cat="gpu_memcpy"))
            continue
        for i in range(draw(st.integers(2, 3)) if "Graph" in call_name else 1):
            name = draw(st.sampled_from(("gemm", "gelu", "norm")))
            trace.append(kernel(correlation, at + behind + 4.0 * i, name))
    trace += notes
    trace += [note(n["name"], n["ts"] + behind, n["dur"], "gpu_user_annotation") for n in notes]
    yield call(reordered(draw, trace), "forward")


@count_kernels.edge
def _():
    window = note("forward", 10.0, 10.0)
    yield call([], "forward"), "an empty trace"
    yield call([window], "forward"), "nothing launched"
    yield call([window, launch(1, 10.0), kernel(1, 11.0)], "forward"), "launched as it opens"
    yield call([window, launch(1, 20.0), kernel(1, 21.0)], "forward"), "launched as it closes"
    yield (
        call([window, launch(1, 19.0, dur=4.0), kernel(1, 23.0)], "forward"),
        "launched inside, and the launch ends after it closes",
    )
    yield (
        call([window, launch(1, 8.0, dur=4.0), kernel(1, 12.0)], "forward"),
        "a launch that began before it opens, and ends inside",
    )
    yield (
        call(
            [window, launch(1, 8.0), kernel(1, 12.0), launch(2, 18.0), kernel(2, 31.0)], "forward"
        ),
        "one ran inside, one was launched inside",
    )
    yield (
        call(
            [window, launch(1, 12.0, "cuLaunchKernel", "cuda_driver"), kernel(1, 13.0, "triton_")],
            "forward",
        ),
        "launched by the driver's call, as Triton does",
    )
    yield (
        call(
            [window, launch(1, 12.0), kernel(1, 13.0), launch(2, 14.0, tid=2), kernel(2, 19.0)],
            "forward",
        ),
        "from two threads",
    )
    steps = [note("step", 10.0 * i, 5.0) for i in range(3)]
    calls = [e for i in range(3) for e in (launch(i, 10.0 * i + 1), kernel(i, 10.0 * i + 7))]
    yield call(steps + calls, "step"), "three steps"
    yield (
        call([window, note("forward", 12.0, 3.0), launch(1, 13.0), kernel(1, 14.0)], "forward"),
        "an annotation inside itself",
    )
    bare = [{"ph": "i", "name": "mark", "ts": 11.0}, {"ph": "M", "name": "process_name"}]
    yield (
        call([*bare, window, launch(1, 12.0), kernel(1, 13.0)], "forward"),
        "events without cat, args and ts",
    )
    copy = [launch(1, 12.0, "cudaMemcpyAsync"), kernel(1, 13.0, "Memcpy HtoD", cat="gpu_memcpy")]
    yield call([window, *copy, launch(2, 14.0), kernel(2, 15.0)], "forward"), "a copy is no kernel"
    wide = note("forward", 0.0, 100.0, "gpu_user_annotation")
    yield (
        call([window, wide, launch(1, 30.0), kernel(1, 31.0)], "forward"),
        "the device's own range",
    )
    op = host("forward", 0.0, 100.0, "cpu_op")
    yield (
        call([window, op, launch(1, 30.0), kernel(1, 31.0)], "forward"),
        "an operation of the same name",
    )
    others = [note("forward of block 1", 30.0, 5.0), launch(1, 31.0), kernel(1, 32.0)]
    others += [note("the last forward", 40.0, 5.0), launch(2, 41.0), kernel(2, 42.0)]
    yield call([window, *others], "forward"), "names that begin or end with the annotation's"
    waits = host("Stream Synchronize", 12.0, cat="cuda_sync", correlation=1)
    yield (
        call([window, waits, launch(1, 30.0), kernel(1, 31.0)], "forward"),
        "an event of another cat, with the correlation of a launch outside",
    )


IN_THE_NAME = "You take every annotation in whose name the one asked for stands, `step 10` for `step 1` too. It is the whole name."
NO_LAUNCH = (
    'You take events of other cats for launches. They may have a correlation too; a launch has cat "cuda_runtime" or '
    '"cuda_driver".'
)
GRAPHS = 'You count launches. The launch of a CUDA graph starts many kernels: count the events of cat "kernel".'
count_kernels.slips(
    {
        replace(
            """event.get("cat") in ("cuda_runtime", "cuda_driver")""",
            '''event.get("cat") == "cuda_runtime"''',
        ): "You look at the runtime's calls only. Triton's kernels are launched by the driver's: cat "
        '"cuda_driver".',
        replace('event["name"] == annotation', 'annotation in event["name"]'): IN_THE_NAME,
        replace('event["name"] == annotation', 'event["name"].startswith(annotation)'): IN_THE_NAME,
        replace(
            """event.get("cat") in ("cuda_runtime", "cuda_driver")""",
            """event.get("cat", "").startswith("cuda")""",
        ): NO_LAUNCH,
        replace(
            """event.get("cat") in ("cuda_runtime", "cuda_driver")""",
            """event.get("cat") != "kernel" and "correlation" in event.get("args", {})""",
        ): NO_LAUNCH,
        replace(
            """event.get("cat") in ("cuda_runtime", "cuda_driver")""",
            """event.get("cat") in ("cuda_runtime", "cuda_driver") and "LaunchKernel" in event["name"]""",
        ): "You take calls named after LaunchKernel only. A CUDA graph's is cudaGraphLaunch, and its kernels count.",
        replace(
            """event.get("cat") == "user_annotation" and event["name"] == annotation""",
            '''event.get("cat") == "user_annotation"''',
        ): "You take launches inside of any annotation. The name says which one.",
        replace(
            '''event.get("cat") == "user_annotation"''',
            """event.get("cat") in ("user_annotation", "gpu_user_annotation")""",
        ): 'You take the device\'s range for the annotation too. "gpu_user_annotation" says when its kernels ran, '
        "not when they were launched.",
        replace(
            '''event.get("cat") == "user_annotation"''',
            '''event.get("cat") == "gpu_user_annotation"''',
        ): 'You take the device\'s range of the annotation. Launches are on the host: cat "user_annotation".',
        replace(
            """event.get("cat") == "user_annotation" and event["name"] == annotation""",
            """event.get("name") == annotation and "dur" in event""",
        ): "You take every event of that name for the annotation, operations and the device's ranges too. Its cat is "
        '"user_annotation".',
        replace(
            '''event.get("cat") == "kernel"''',
            """event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")""",
        ): 'You count copies as well. Kernels have cat "kernel".',
        replace(
            'start <= event["ts"] < end for start, end in opened',
            'start <= event["ts"] < end for start, end in opened[:1]',
        ): "You take the first annotation of that name. There is one for each step, and all count.",
        replace(
            'start <= event["ts"] < end', 'start <= event["ts"] <= end'
        ): "A launch that begins as the annotation closes is no longer inside: t < ts + dur.",
        replace(
            'start <= event["ts"] < end',
            'start <= event["ts"] and event["ts"] + event["dur"] <= end',
        ): "You ask that a launch also ends before the annotation closes. When it began decides.",
        replace(
            'start <= event["ts"] < end',
            'start <= event["ts"] + event["dur"] and event["ts"] < end',
        ): "You count a launch that overlaps the annotation. It is inside if it *began* there.",
        replace(
            'start <= event["ts"] < end', 'start < event["ts"] < end'
        ): "A launch that begins just as the annotation opens is inside: ts ≤ t.",
        replace(
            'event["ts"] < end for', 'event["ts"] for'
        ): "You count all that is launched after the annotation has opened, also after it has closed.",
        replace(
            """(event["ts"], event["ts"] + event["dur"])""", """(event["ts"], event["dur"])"""
        ): "`dur` is a length, not a moment: the annotation ends at ts + dur.",
        replace(
            """return dict(Counter(k["name"] for k in kernels if k["args"]["correlation"] in launched))""",
            """return sum(k["args"]["correlation"] in launched for k in kernels)""",
        ): "You return how many there are in all. A number for each name is asked for.",
        replace(
            """kernels = [event for event in trace if event.get("cat") == "kernel"]""",
            """kernels = [event for event in trace if event["cat"] == "kernel"]""",
        ): 'Some events have no cat (names of processes, marks): `event.get("cat")`.',
    }
)


@count_kernels.mistake(
    "You count the kernels that *ran* while the annotation was open. The device is behind the host: what is launched "
    "inside may run later, and what runs inside may have been launched before."
)
def _(trace, annotation):
    opened = [
        (e["ts"], e["ts"] + e["dur"])
        for e in trace
        if e.get("cat") == "user_annotation" and e["name"] == annotation
    ]
    return dict(
        Counter(
            e["name"]
            for e in trace
            if e.get("cat") == "kernel" and any(s <= e["ts"] < t for s, t in opened)
        )
    )


@count_kernels.mistake("You count every kernel of the trace, whoever launched it.")
def _(trace, annotation):
    return dict(Counter(e["name"] for e in trace if e.get("cat") == "kernel"))


@count_kernels.mistake(GRAPHS)
def _(trace, annotation):
    names = {}
    for e in trace:
        if e.get("cat") == "kernel":
            names.setdefault(e["args"]["correlation"], e["name"])
    found = Counter()
    for e in trace:
        if e.get("cat") in ("cuda_runtime", "cuda_driver") and any(
            o.get("cat") == "user_annotation"
            and o["name"] == annotation
            and o["ts"] <= e["ts"] < o["ts"] + o["dur"]
            for o in trace
        ):
            found[names.get(e["args"]["correlation"])] += 1
    del found[None]
    return dict(found)


@count_kernels.mistake(
    "You keep one kernel for each correlation, the last one. The launch of a CUDA graph has many."
)
def _(trace, annotation):
    last = {e["args"]["correlation"]: e for e in trace if e.get("cat") == "kernel"}
    return book.count_kernels(
        [e for e in trace if e.get("cat") != "kernel"] + list(last.values()), annotation
    )


@count_kernels.mistake(
    "You count a launch once for each annotation that it lies in. Where one is open inside another of the same name, "
    "its kernels still ran once."
)
def _(trace, annotation):
    found = Counter()
    for o in trace:
        if o.get("cat") == "user_annotation" and o["name"] == annotation:
            inside = {
                e["args"]["correlation"]
                for e in trace
                if e.get("cat") in ("cuda_runtime", "cuda_driver")
                and o["ts"] <= e["ts"] < o["ts"] + o["dur"]
            }
            found.update(
                e["name"]
                for e in trace
                if e.get("cat") == "kernel" and e["args"]["correlation"] in inside
            )
    return dict(found)


@count_kernels.mistake(
    "You look at launches of the annotation's own thread. Backward launches from a thread of its own: any thread "
    "counts."
)
def _(trace, annotation):
    owned = [
        e for e in trace if e.get("tid") == 1 or e.get("cat") not in ("cuda_runtime", "cuda_driver")
    ]
    return book.count_kernels(owned, annotation)


@count_kernels.alternative("kernels by correlation, then launch after launch")
def _(trace, annotation):
    by_launch = defaultdict(list)
    for event in trace:
        if event.get("cat") == "kernel":
            by_launch[event["args"]["correlation"]].append(event["name"])
    counts = {}
    for event in trace:
        if event.get("cat") not in {"cuda_runtime", "cuda_driver"}:
            continue
        around = [o for o in trace if o.get("cat") == "user_annotation" and o["name"] == annotation]
        if [o for o in around if 0 <= event["ts"] - o["ts"] < o["dur"]]:
            for name in by_launch[event["args"]["correlation"]]:
                counts[name] = counts.get(name, 0) + 1
    return counts


# ------------------------------------------------------------------------------ pointwise_bytes

pointwise_bytes = Exercise(
    book.pointwise_bytes,
    title="What fusion saves",
    difficulty=1,
    minutes=20,
    points=2,
    hints=(
        "One kernel for each operation: its result, and each of its operands once.",
        "Fused: nothing between moves. What is read are names that no operation makes; what is written are the outputs.",
        "Walk back from the outputs to find what is needed; the rest is not computed.",
        (
            "edge cases",
            "An output that another operation uses as well is still written once, and not read.",
        ),
    ),
)

GELU = [
    ("h", ("x", "b")),
    ("c", ("h", "h")),
    ("t", ("h", "c")),
    ("y", ("h", "t")),
]


@pointwise_bytes.by_hand
def _():
    sizes = dict.fromkeys("xyzabc", 8)
    yield call([("y", ("x",))], ["y"], sizes), (16, 16)
    yield call([("a", ("x",)), ("y", ("a",))], ["y"], sizes), (32, 16)
    yield call([("a", ("x", "x")), ("y", ("a", "x"))], ["y"], sizes), (40, 16)
    yield (
        call([("a", ("x", "b")), ("y", ("a",))], ["y"], {"x": 8, "b": 2, "a": 8, "y": 4}),
        (30, 14),
    )
    yield call([("y", ("x",)), ("d", ("x",))], ["y"], {"x": 8, "y": 4, "d": 2}), (22, 12)
    yield call([("a", ("x",)), ("y", ("a",))], ["a", "y"], sizes), (32, 24)


@pointwise_bytes.cases(50)
def _(draw):
    inputs = list("xbz")[: draw(st.integers(1, 3))]
    sizes = {name: draw(st.sampled_from((4, 16, 64, 256))) for name in inputs}
    program, names = [], list(inputs)
    for i in range(draw(st.integers(1, 7))):
        operands = tuple(draw(st.lists(st.sampled_from(names), min_size=1, max_size=3)))
        program.append((f"r{i}", operands))
        names.append(f"r{i}")
        sizes[f"r{i}"] = draw(st.sampled_from((64, 128, 256)))
    made = [result for result, _ in program]
    outputs = draw(st.lists(st.sampled_from(made), min_size=1, max_size=2, unique=True))
    yield call(program, outputs, sizes)


@pointwise_bytes.edge
def _():
    wide = {"x": 4096, "b": 16, "h": 4096, "c": 4096, "t": 4096, "y": 4096}
    yield call(GELU, ["y"], wide), "a bias, broadcast: it is read as small as it is"
    yield call(GELU, ["y", "h"], wide), "the sum is kept for backward"
    yield call(GELU, ["h"], wide), "only the first result is used"
    yield call([], [], {}), "nothing to do"
    yield call([("r", ())], ["r"], {"r": 8}), "a result made of numbers alone"
    yield (
        call([("y", ("x",)), ("d", ("z",))], ["y"], dict.fromkeys("xyzd", 8)),
        "a result that nobody uses",
    )
    yield call([("y", ("x", "x", "x"))], ["y"], {"x": 8, "y": 8}), "one operand three times"
    yield call([("y", ("x",))], ["y", "y"], {"x": 8, "y": 8}), "an output named twice"
    yield (
        call([("a", ("x",)), ("u", ("a",)), ("v", ("a",))], ["u", "v"], dict.fromkeys("xauv", 8)),
        "one value used by two operations",
    )
    yield (
        call([("y", ("x",))], ["y"], {"x": 8, "y": 2, "w": 64}),
        "a smaller result, and the size of a tensor that nobody uses",
    )
    chain = [(f"r{i}", (f"r{i - 1}" if i else "x",)) for i in range(30)]
    yield call(chain, ["r29"], {"x": 8} | {f"r{i}": 8 for i in range(30)}), "thirty operations"


READ = "read = sum(sizes[name] for name in needed if name not in made)"
READ_AGAIN = "You read an input once for each operation that uses it. The fused kernel has it in a register after the first read."
pointwise_bytes.slips(
    {
        replace(
            "for name in set(operands)", "for name in operands"
        ): "You read an operand as often as an operation names it. A kernel reads it once: h · h is one read.",
        replace(
            "sizes[result] + sum(", "sum("
        ): "You count what each operation reads, not what it writes.",
        replace(
            "sizes[result] + sum(sizes[name] for name in set(operands)) for", "sizes[result] for"
        ): "You count what each operation writes, not what it reads.",
        replace(
            READ,
            "read = sum(sizes[name] for _, operands in program for name in operands if name not in made)",
        ): READ_AGAIN,
        replace(
            READ,
            "read = sum(sizes[name] for result, operands in program if result in needed for name in set(operands) "
            "if name not in made)",
        ): READ_AGAIN,
        replace(
            READ,
            "read = sum(sizes[name] for name in sizes if name not in made)",
        ): "You read every tensor that has a size. Fused, only inputs that an output depends on are read.",
        replace(
            READ,
            "read = sum(sizes[name] for name in {n for _, names in program for n in names} if name not in made)",
        ): "You read inputs of operations whose results nobody uses. Fused, they are not computed: walk back from "
        "the outputs.",
        replace(
            "read + sum(sizes[name] for name in set(outputs))",
            "read + sum(sizes[result] for result, _ in program)",
        ): "You write every result in the fused kernel. What stays between operations is in registers: only outputs "
        "are written.",
        replace(
            "read + sum(sizes[name] for name in set(outputs))",
            "read + sum(sizes[result] for result, _ in program[-1:])",
        ): "You write the last result alone. All outputs are written, and no other.",
        replace(
            "if name not in made)", "if name not in made or name in outputs)"
        ): "You read outputs as well. They are made in the kernel, and only written.",
        replace(
            "if name not in made)",
            "if name not in made or name in outputs and any(name in o for r, o in program if r in needed))",
        ): "You read an output back where another operation uses it. The fused kernel still has it in a register: it is "
        "only written.",
        replace(
            "read + sum(sizes[name] for name in set(outputs))",
            "read + sum(sizes[name] for name in [r for r, _ in program if r in outputs][-1:])",
        ): "You write the last of the outputs alone. All of them are written.",
        replace(
            "for name in set(outputs)", "for name in outputs"
        ): "You write an output as often as it is named. It is one tensor, written once.",
        replace(
            "return one_by_one, read + sum(", "return one_by_one, sum("
        ): "The fused kernel still has to read its inputs.",
        replace(
            "return one_by_one, read + sum(sizes[name] for name in set(outputs))",
            "return read + sum(sizes[name] for name in set(outputs)), one_by_one",
        ): "The order is (one kernel for each, fused).",
        replace(
            "    one_by_one = sum(\n        sizes[result]",
            "    program = [p for p in program if p[0] in outputs or any(p[0] in q[1] for q in program)]\n"
            "    one_by_one = sum(\n        sizes[result]",
        ): "You leave out operations whose results nobody uses also where each has its kernel. Eager mode does what "
        "it is told: it cannot know.",
    }
)


@pointwise_bytes.mistake(
    "You leave out operations whose results nobody uses also where each has its kernel. Eager mode does what it is "
    "told: it cannot know."
)
def _(program, outputs, sizes):
    needed = set(outputs)
    for result, operands in reversed(program):
        if result in needed:
            needed |= set(operands)
    used = [(result, operands) for result, operands in program if result in needed]
    return book.pointwise_bytes(used, outputs, sizes)


@pointwise_bytes.mistake(
    "You count numbers of tensors, not bytes. A bias is small, and a result may have another dtype: `sizes` says."
)
def _(program, outputs, sizes):
    return book.pointwise_bytes(program, outputs, dict.fromkeys(sizes, 1))


@pointwise_bytes.mistake(
    "You take every tensor for as large as the largest. A bias that is broadcast is read as small as it is."
)
def _(program, outputs, sizes):
    return book.pointwise_bytes(
        program, outputs, dict.fromkeys(sizes, max(sizes.values(), default=0))
    )


@pointwise_bytes.alternative("needed values by going through the program backwards")
def _(program, outputs, sizes):
    each = 0
    for result, operands in program:
        each += sizes[result]
        for name in dict.fromkeys(operands):
            each += sizes[name]
    needed, inside = set(outputs), set()
    for result, operands in reversed(program):
        inside.add(result)
        if result in needed:
            needed |= set(operands)
    fused = 0
    for name in needed:
        fused += sizes[name] * ((name not in inside) + (name in outputs))
    return each, fused


# ------------------------------------------------------------------------------ remove_graph_break

remove_graph_break = Exercise(
    book.remove_graph_break,
    title="Remove the graph breaks",
    difficulty=2,
    minutes=25,
    points=3,
    probe=probes.in_one_graph,
    limit_s=120.0,
    hints=(
        "`.item()`, `float(norm)`, `if norm > …` and `print` need the value on the host: there the graph ends. Keep "
        "the norm a tensor.",
        "Compute both outcomes and choose with `torch.where(condition, one, other)`.",
        "For the factor: torch.where(norm > max_norm, max_norm / norm, 1.0).",
        (
            "edge cases",
            "0 · ∞ is NaN: an update with an infinite element is not made zero by multiplying. Choose 0 with "
            "`torch.where`.",
        ),
    ),
)


@remove_graph_break.by_hand
def _():
    update = torch.tensor([3.0, 4.0])
    yield call(update, 1.0, compiled=True), (torch.tensor([0.6, 0.8]), torch.tensor(5.0))
    yield call(update, 10.0), (update, torch.tensor(5.0))
    broken = torch.tensor([1.0, INF])
    yield call(broken, 1.0, compiled=True), (torch.zeros(2), torch.tensor(INF))


@remove_graph_break.cases(30)
def _(draw):
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    yield call(draw(draws.tensors(shape)), draw(st.sampled_from((0.5, 1.0, 2.0, 4.0))))


@remove_graph_break.edge
def _():
    yield call(torch.tensor([3.0, 4.0]), 5.0), "just the norm that is allowed"
    yield call(torch.zeros(3), 1.0), "zeros"
    yield call(torch.tensor([-INF, 1.0]), 1.0), "an infinite element"
    yield call(torch.tensor([float("nan"), 1.0]), 1.0), "a NaN"
    yield call(torch.tensor(-6.0), 2.0), "no axes"
    yield call(torch.tensor(-6.0, dtype=BF16), 2.0), "no axes, in bfloat16"
    yield call(normal(2, 3, 4), 1.0), "three axes: one norm for all"
    yield call(normal(0), 1.0), "no elements"
    yield call(normal(400, dtype=F16, scale=300.0), 1.0), "float16, whose squares overflow"
    yield call(normal(64, dtype=BF16), 2.0, compiled=True), "bfloat16"
    yield call(normal(5, dtype=F64), 0.25), "float64"
    yield call(draws.scattered(normal(3, 4)), 1.0), "not contiguous"
    yield call(torch.zeros(2, 3, device="meta"), 1.0), "on another device than the default one"


@remove_graph_break.mistake(
    "The values are right, but the graph breaks: somewhere a value goes to the host (`.item()`, `float(norm)`, an `if` on "
    "a tensor, `print`), or a part is kept from Dynamo. Keep the norm a tensor, and choose with `torch.where`."
)
def _(update, max_norm):
    norm = update.to(torch.promote_types(update.dtype, torch.float32)).square().sum().sqrt()
    if update.device.type == "meta":
        return torch.empty_like(update), norm
    value = norm.item()
    if not math.isfinite(value):
        return torch.zeros_like(update), norm
    if value > max_norm:
        return (update * (max_norm / norm)).to(update.dtype), norm
    return update.clone(), norm


OTHER_DTYPE = (
    "The result has another dtype than the update: a float32 factor makes it float32, or the update was "
    "converted. Convert back."
)
OWN_DTYPE = (
    "Your norm has the update's dtype. For half precision it is float32: convert the update first."
)
remove_graph_break.slips(
    {
        replace(
            "    clipped = torch.where(norm.isfinite(), update * scale, 0.0)\n",
            "    clipped = update * scale * norm.isfinite()\n",
        ): "You make a broken update zero by multiplying: 0 · ∞ and 0 · NaN are NaN. Choose the zeros with "
        "`torch.where`.",
        replace(
            "    clipped = torch.where(norm.isfinite(), update * scale, 0.0)\n",
            "    clipped = torch.nan_to_num(update * scale, 0.0, 0.0, 0.0)\n",
        ): "You replace the broken elements alone. The whole update is zero if its norm is not finite.",
        replace(
            "    clipped = torch.where(norm.isfinite(), update * scale, 0.0)\n",
            "    scale = torch.where(norm.isfinite(), scale, 1.0)\n"
            "    clipped = torch.nan_to_num(update, 0.0, 0.0, 0.0) * scale\n",
        ): "You replace the broken elements alone. The whole update is zero if its norm is not finite.",
        replace(
            "    clipped = torch.where(norm.isfinite(), update * scale, 0.0)\n",
            "    clipped = update * scale\n",
        ): "You let a broken update through. If the norm is not finite the update is zeros.",
        replace(
            "    clipped = torch.where(norm.isfinite(), update * scale, 0.0)\n",
            "    clipped = torch.where(norm.isnan(), 0.0, update * scale)\n",
        ): "You look for NaN only. An infinite norm is not finite, either.",
        replace(
            "scale = torch.where(norm > max_norm, max_norm / norm, 1.0)", "scale = max_norm / norm"
        ): "You scale small updates up. Only a norm above max_norm is changed.",
        replace(
            "scale = torch.where(norm > max_norm, max_norm / norm, 1.0)",
            "scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)",
        ): "You add a small number to the norm, as `clip_grad_norm_` does: the factor is max_norm / norm.",
        replace(
            "torch.where(norm > max_norm, max_norm / norm, 1.0)",
            "torch.where(norm > max_norm, 1.0 / norm, 1.0)",
        ): "You scale to a norm of 1. It is max_norm.",
        replace(
            "norm = update.to(wide).square().sum().sqrt()",
            "norm = update.square().sum().sqrt().to(wide)",
        ): "You square in the update's own dtype: 300² overflows in float16. Convert first.",
        replace("update.to(wide).square().sum().sqrt()", "update.norm()"): OWN_DTYPE,
        replace("update.to(wide).square().sum().sqrt()", "update.square().sum().sqrt()"): OWN_DTYPE,
        replace(
            "norm = update.to(wide).square().sum().sqrt()",
            "norm = update.to(wide).square().sum(-1).sqrt() if update.ndim else update.to(wide).abs()",
            "update * scale",
            "update * (scale[..., None] if update.ndim else scale)",
            "torch.where(norm.isfinite(),",
            "torch.where(norm.isfinite()[..., None] if update.ndim else norm.isfinite(),",
        ): "You take a norm for each row. It is one for all elements together.",
        replace(
            "norm = update.to(wide).square().sum().sqrt()",
            "norm = update.to(wide).abs().amax() if update.numel() else update.to(wide).sum()",
        ): "That is the largest element. The norm is the square root of the sum of squares.",
        replace(
            "norm = update.to(wide).square().sum().sqrt()", "norm = update.to(wide).square().sum()"
        ): "That is the square of the norm.",
        replace("return clipped.to(update.dtype), norm", "return clipped, norm"): OTHER_DTYPE,
        replace(
            "update * scale",
            "update.to(wide) * scale",
            "return clipped.to(update.dtype), norm",
            "return clipped, norm",
        ): OTHER_DTYPE,
        replace(
            "return clipped.to(update.dtype), norm", "return clipped.to(update.dtype), norm * scale"
        ): "You return the norm after clipping. Before clipping is asked for: a run's logs show that.",
        replace(
            "return clipped.to(update.dtype), norm", "return update.copy_(clipped), norm"
        ): "You write into the caller's update. Return another tensor.",
        replace(
            "wide = torch.promote_types(update.dtype, torch.float32)", "wide = torch.float32"
        ): "The norm of a float64 update is float64.",
    }
)


@remove_graph_break.alternative("minimum of two factors, and masked_fill")
def _(update, max_norm):
    wide = update.double() if update.dtype == F64 else update.float()
    norm = wide.flatten().norm() if update.numel() else wide.sum()
    factor = torch.clamp(max_norm / norm, max=1.0)
    factor = torch.nan_to_num(factor, nan=1.0)
    kept = (wide * factor).masked_fill(~torch.isfinite(norm), 0.0)
    return kept.type_as(update), norm


@remove_graph_break.alternative("torch.linalg.vector_norm, and torch.where with tensors")
def _(update, max_norm):
    dtype = F64 if update.dtype == F64 else torch.float32
    norm = torch.linalg.vector_norm(update, dtype=dtype)
    clipped = torch.where(norm > max_norm, update * (max_norm / norm), update)
    return torch.where(torch.isfinite(norm), clipped, torch.zeros_like(clipped)).to(
        update.dtype
    ), norm


# ------------------------------------------------------------------------------ recompiles

recompiles = Exercise(
    book.recompiles,
    title="Which call compiles again?",
    difficulty=3,
    minutes=40,
    points=4,
    hints=(
        'Keep a list of compilations. Each is a guard for every axis: a size, or "2 or more".',
        "A call that some compilation's guards let through compiles nothing.",
        "On a miss: an axis is dynamic if the sizes of all calls that were compiled so far, and of this one, are not all "
        "the same there.",
        ("edge cases", "Sizes 0 and 1 get a guard for just this size, on a dynamic axis too."),
    ),
)


def sizes(*values):
    return [(n,) for n in values]


@recompiles.by_hand
def _():
    yield call(sizes(4, 4, 4)), [True, False, False]
    yield call(sizes(4, 5, 6, 4)), [True, True, False, False]
    yield call(sizes(4, 5, 6), dynamic=False), [True, True, True]
    yield call(sizes(4, 5, 1, 7, 1)), [True, True, True, False, False]
    yield call([(4, 8), (4, 9), (4, 7), (5, 7), (6, 3)]), [True, True, False, True, False]
    yield call(sizes(1, 4, 5)), [True, True, False]
    yield call([(4, 8), (1, 9), (1, 7)]), [True, True, False]
    yield call(sizes(2, 3, 4, 2, 4), dynamic=False, limit=2), [True, True, False, False, False]


@recompiles.cases(60)
def _(draw):
    rank = draw(st.integers(1, 3))
    pool = draw(st.sampled_from(((2, 3, 4, 5), (0, 1, 2, 3), (1, 2, 3))))
    shape = st.tuples(*[st.sampled_from(pool)] * rank)
    shapes = draw(st.lists(shape, min_size=1, max_size=8))
    options = {"dynamic": False} if draw(st.integers(0, 3)) == 0 else {}
    if draw(st.booleans()):
        options["limit"] = draw(st.integers(1, 4))
    yield call(shapes, **options)


@recompiles.edge
def _():
    yield call([]), "no call"
    yield call([(), (), ()]), "a tensor without axes"
    yield call(sizes(1, 4, 5, 6, 1)), "the first size is 1"
    yield call(sizes(0, 1, 2, 3)), "0, then 1, then more"
    yield call(sizes(4, 4, 4, 5)), "the same size again and again"
    yield call([(4, 8), (5, 8), (5, 9)]), "one axis after the other"
    yield call([(4, 4), (5, 5), (6, 7)]), "two dynamic axes need not stay equal"
    yield call([(4, 1), (5, 1), (6, 1), (6, 2)]), "an axis of 1 beside a dynamic one"
    yield call([(4, 8), (1, 8), (5, 8), (6, 8)]), "a batch of one comes second"
    yield (
        call([(n, 8) for n in range(2, 14)], dynamic=False),
        "more shapes than compilations are allowed",
    )
    yield call([(2,) * 3, (3, 2, 2), (2, 3, 2), (4, 4, 2), (4, 4, 5)]), "three axes"
    yield call(sizes(4, 5, 6), limit=1), "one compilation only"
    yield call(sizes(4, 1, 0, 1, 9), limit=3), "the limit is reached by 0 and 1"
    yield (
        call([(2, 2), (2, 3), (3, 2), (2, 2), (3, 3)]),
        "a static size that comes back after its axis became dynamic",
    )


recompiles.slips(
    {
        replace(
            "None if dynamic is None and vary and size >= 2 else size", "size"
        ): "You never make an axis dynamic: only shapes that came before fit. By default the second size that is compiled on "
        "an axis makes it dynamic, and further ones are free.",
        replace(
            "None if dynamic is None and vary and size >= 2 else size",
            "None if dynamic is None and size >= 2 else size",
        ): "You make every axis dynamic at once. The first compilation takes all sizes for fixed; an axis becomes dynamic "
        "when a second size is compiled there.",
        replace(
            "None if dynamic is None and vary and size >= 2 else size",
            "None if dynamic is None and vary else size",
        ): "You let a call with a size of 0 or 1 be compiled as dynamic. It is compiled for just this size.",
        replace(
            "None if dynamic is None and vary and size >= 2 else size",
            "None if vary and size >= 2 else size",
        ): "With dynamic=False no axis is dynamic.",
        replace(
            "None if dynamic is None and vary and size >= 2 else size",
            "None if dynamic is None and any(varies) and size >= 2 else size",
        ): "You make all axes dynamic as soon as one is. Each axis is judged by its own sizes.",
        replace(
            "None if dynamic is None and vary and size >= 2 else size",
            "None if dynamic is None and vary and all(n >= 2 for n in shape) else size",
        ): "You fix every axis of a call that has a size of 0 or 1 somewhere. Only that axis is fixed; the others follow "
        "the rule.",
        replace(
            "len(set(sizes)) > 1", "len({n for n in sizes if n > 1}) > 1"
        ): "You leave sizes of 0 and 1 out when you ask whether an axis varies. They are never dynamic themselves, but "
        "they count among the sizes that differ.",
        replace(
            "size >= 2 if want is None else size == want", "want is None or size == want"
        ): "You let sizes of 0 and 1 through a dynamic axis. Its guard asks for 2 or more.",
        replace(
            "size >= 2 if want is None", "size >= 1 if want is None"
        ): "You let a size of 1 through a dynamic axis. Its guard asks for 2 or more.",
        replace(
            "            for wanted in guards\n", "            for wanted in guards[-1:]\n"
        ): "You look at the last compilation only. Earlier ones are not thrown away: all are kept, and any may fit.",
        replace(
            "compiles.append(not hit and len(guards) < limit)", "compiles.append(not hit)"
        ): "You compile without end. Once there are `limit` compilations a call that fits none runs uncompiled.",
        replace(
            "len(guards) < limit", "len(guards) <= limit"
        ): "You allow one compilation more than the limit.",
        replace(
            "zip(*compiled_with, strict=True)", "zip(*compiled_with[-2:], strict=True)"
        ): "You compare with the last compilation alone. An axis that has once varied stays dynamic.",
        replace(
            "zip(*compiled_with, strict=True)", "zip(compiled_with[0], shape, strict=True)"
        ): "You compare with the first compilation alone. An axis that has once varied stays dynamic, also for the size "
        "that came first.",
    }
)


@recompiles.alternative("axes that vary kept in a set, guards as functions")
def _(shapes, *, dynamic=None, limit=8):
    first, varying, guards, out = None, set(), [], []
    for shape in shapes:
        if any(guard(shape) for guard in guards) or len(guards) >= limit:
            out.append(False)
            continue
        out.append(True)
        if first is None:
            first = shape
        varying |= {axis for axis in range(len(shape)) if shape[axis] != first[axis]}
        free = {a for a in varying if shape[a] > 1} if dynamic is None else set()

        def guard(other, shape=shape, free=free):
            return all(
                (other[a] > 1) if a in free else (other[a] == shape[a]) for a in range(len(shape))
            )

        guards.append(guard)
    return out


for number, call_of_zip in enumerate(
    ("zip(shape, wanted", "zip(*compiled_with", "zip(shape, varies"), start=1
):
    for mutant in (
        f"`{call_of_zip}, strict=True)` → `{call_of_zip})`",
        f"`strict=True` → `strict=False` [#{number}]",
    ):
        recompiles.equivalent(
            f"recompiles: {mutant}", because="all shapes have as many axes, so nothing is cut short"
        )


# ------------------------------------------------------------------------------ online_softmax, merge_statistics

online_softmax = Exercise(
    (book.online_softmax, book.merge_statistics),
    title="Softmax in one pass",
    difficulty=2,
    minutes=30,
    points=3,
    probe=probes.one_of,
    hints=(
        "When the maximum grows from m to m′, each exp(x − m) becomes exp(x − m′): multiply the sum by exp(m − m′).",
        "A merge does that on both sides: the new maximum is the larger one, and each total comes down to it.",
        "In `online_softmax`, start from (−∞, 0) and merge the statistics of one block after the other; `x.split` "
        "gives the blocks.",
        (
            "edge cases",
            "−∞ − −∞ is NaN. Where the maximum is −∞, subtract 0 instead: exp(−∞) is 0.",
        ),
    ),
)


def stats(maximum, total, dtype=torch.float32):
    return torch.tensor(maximum, dtype=dtype), torch.tensor(total, dtype=dtype)


@online_softmax.by_hand
def _():
    e = math.e
    x = torch.tensor([[0.0, 1.0, 2.0], [5.0, 5.0, 5.0]])
    want = stats([2.0, 5.0], [1 + 1 / e + 1 / e**2, 3.0])
    yield call("online_softmax", x, 2), want
    yield call("online_softmax", x, 3), want
    yield (
        call("merge_statistics", stats([1.0], [2.0]), stats([3.0], [1.0])),
        stats([3.0], [1 + 2 / e**2]),
    )
    yield call("merge_statistics", stats([1.0], [2.0]), stats([1.0], [0.5])), stats([1.0], [2.5])


@online_softmax.cases(40)
def _(draw):
    rows = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    x = draw(draws.tensors((*rows, draw(st.integers(1, 9))), scale=3.0))
    yield call("online_softmax", x, draw(st.integers(1, 10)))


@online_softmax.cases(20)
def _(draw):
    rows = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    one, other = (
        (draw(draws.tensors(rows, scale=4.0)), draw(draws.tensors(rows)).abs() + 1)
        for _ in range(2)
    )
    yield call("merge_statistics", one, other)


@online_softmax.edge
def _():
    masked = torch.tensor(
        [[-INF, -INF, 1.0, 2.0], [-INF, -INF, -INF, -INF], [3.0, -INF, -INF, -INF]]
    )
    yield call("online_softmax", masked, 2), "elements that are masked out, and a row of them alone"
    yield call("online_softmax", masked, 4), "the same in one block"
    yield call("online_softmax", torch.tensor([1000.0, 1001.0, 999.0]), 2), "exp(1000) is infinite"
    yield call("online_softmax", torch.tensor([-1000.0, -1001.0, -999.0]), 1), "exp(−1000) is 0"
    yield call("online_softmax", torch.tensor([9.0, 1.0, 0.0, 8.0]), 1), "the maximum comes first"
    yield call("online_softmax", torch.tensor([0.0, 1.0, 8.0, 9.0]), 1), "the maximum comes last"
    yield call("online_softmax", normal(2, 7), 64), "one block, larger than the row"
    yield call("online_softmax", normal(2, 7), 3), "a last block of one"
    yield call("online_softmax", normal(1, 1), 1), "one element"
    yield call("online_softmax", normal(0, 4), 2), "no row"
    yield call("online_softmax", normal(3, 70, dtype=BF16, scale=3.0), 16), "bfloat16"
    yield call("online_softmax", normal(3, 70, dtype=F16, scale=3.0), 16), "float16"
    yield call("online_softmax", normal(3, 9, dtype=F64), 4), "float64"
    yield call("online_softmax", draws.scattered(normal(3, 6)), 4), "not contiguous"
    yield (
        call("online_softmax", torch.zeros(2, 6, device="meta"), 4),
        "on another device than the default one",
    )
    yield call("online_softmax", normal(2, 3), 0), "a block of nothing is an error"
    yield call("online_softmax", normal(2, 3), -1), "a negative block is an error"
    nothing = stats([-INF, -INF], [0.0, 0.0])
    some = stats([2.0, -1.0], [1.5, 3.0])
    yield call("merge_statistics", nothing, some), "one side has seen nothing"
    yield call("merge_statistics", some, nothing), "the other has seen nothing"
    yield call("merge_statistics", nothing, nothing), "neither has"
    yield (
        call("merge_statistics", stats([500.0], [1.0]), stats([-500.0], [7.0])),
        "a thousand apart",
    )
    yield (
        call("merge_statistics", stats([-500.0], [7.0]), stats([500.0], [1.0])),
        "a thousand apart, the other way",
    )
    yield call("merge_statistics", stats(1.0, 2.0, F64), stats(3.0, 4.0, F64)), "float64, one row"
    half = stats([1.0, 2.0], [2.0, 1.5], BF16), stats([3.0, -1.0], [4.0, 3.0], BF16)
    yield call("merge_statistics", *half), "two parts in bfloat16"


online_softmax.contract(
    contracts.largest_tensor(
        [
            call("online_softmax", normal(4, 2048), 256),
            call("online_softmax", normal(4, 1024, dtype=BF16), 256),
            call("online_softmax", normal(4, 1280, dtype=F16), 256),
            call("online_softmax", draws.scattered(normal(4, 6144, dtype=BF16)), 256),
        ],
        limit=4 * 256 * 4 + 64,
        says="no tensor is made that is larger than a block, rows × block_size elements, in the dtype in which it is computed",
        prepare=driving_pairs.one_called,
    )
)


def whole_row(x, block_size):
    if block_size < 1:
        raise ValueError
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    top = wide.amax(-1)
    shift = top.masked_fill(top == -INF, 0.0)
    return top, (wide - shift[..., None]).exp().sum(-1)


online_softmax.mistake(
    "The values are right, but exp of whole rows is made. A block at a time is enough: that is the point of one pass.",
    cost=True,
)(whole_row, book.merge_statistics)


def converted_first(x, block_size):
    wide = torch.promote_types(x.dtype, torch.float32)
    return book.online_softmax(x.to(wide), block_size)


def contiguous_first(x, block_size):
    return book.online_softmax(x.contiguous(), block_size)


online_softmax.mistake(
    "The values are right, but all of x is converted to float32: a copy of every row. Convert a block when it is its "
    "turn.",
    cost=True,
)(converted_first, book.merge_statistics)
online_softmax.mistake(
    "The values are right, but an x that is not contiguous is copied as a whole. Blocks of any strides will do.",
    cost=True,
)(contiguous_first, book.merge_statistics)

MERGED = "one[1] * (one[0] - shift).exp() + other[1] * (other[0] - shift).exp()"
IN_FLOAT32 = "Merged statistics of half precision come back in float32. A merge keeps the dtype of what it is given."
NEITHER = (
    "Where neither side has seen anything you compute −∞ − −∞, which is NaN. Subtract 0 there."
)
WRITES = "You write into a total that you were given. Others may still merge with it: return new tensors."
online_softmax.slips(
    {
        replace(
            MERGED, "one[1] + other[1]"
        ): "You add totals that belong to different maxima. Each is first multiplied by exp(its maximum − the new one).",
        replace(
            MERGED, "one[1] * (one[0] - shift).exp() + other[1]"
        ): "You correct one of the totals. Either side's maximum may be the smaller one.",
        replace(
            MERGED, "one[1] + other[1] * (other[0] - shift).exp()"
        ): "You correct one of the totals. Either side's maximum may be the smaller one: that of `one`, too.",
        replace(
            MERGED, "one[1] * (shift - one[0]).exp() + other[1] * (shift - other[0]).exp()"
        ): "The factor is exp(old maximum − new maximum), which is at most 1. You have it the other way round, and it "
        "overflows.",
        replace(
            "shift = maximum.masked_fill(maximum == -math.inf, 0.0)", "shift = maximum"
        ): NEITHER,
        replace(
            "top.masked_fill(top == -math.inf, 0.0)[..., None]", "top[..., None]"
        ): "In a block that is masked out you compute −∞ − −∞, which is NaN. Subtract 0 there.",
        replace(
            "(block - top.masked_fill(top == -math.inf, 0.0)[..., None]).exp()", "block.exp()"
        ): "You do not subtract the maximum of the block: exp(1000) is infinite.",
        replace(
            f"return maximum, {MERGED}",
            "wide = torch.promote_types(maximum.dtype, torch.float32)\n"
            f"    return maximum.to(wide), ({MERGED}).to(wide)",
        ): IN_FLOAT32,
        replace(
            "maximum = torch.maximum(one[0], other[0])",
            "wide = torch.promote_types(one[0].dtype, torch.float32)\n"
            "    one, other = ([x.to(wide) for x in side] for side in (one, other))\n"
            "    maximum = torch.maximum(one[0], other[0])",
        ): IN_FLOAT32,
        replace(
            "maximum = torch.maximum(one[0], other[0])",
            "maximum = torch.logaddexp(one[0], other[0])",
        ): "That is the logarithm of a sum of exponentials. The larger of the two maxima is asked for.",
        replace(
            "state = merge_statistics(state, (top, weights.sum(dim=-1)))",
            "state = (top, weights.sum(dim=-1))",
        ): "You keep the statistics of the last block. Merge each block's into those of the blocks before.",
        replace(
            "top = block.amax(dim=-1)",
            "top = torch.maximum(state[0], block.amax(dim=-1))",
            "state = merge_statistics(state, (top, weights.sum(dim=-1)))",
            "state = (top, state[1] + weights.sum(dim=-1))",
        ): "The total of the blocks before keeps its old maximum where a later block has a larger one. Multiply it by "
        "exp(old maximum − new maximum) first.",
        replace(
            "    return state",
            "    return state[0].masked_fill(state[0] == -math.inf, 0.0), state[1]",
        ): "You return 0 as the maximum of a row of −∞. The 0 is there for the subtraction only: the maximum is −∞.",
        replace(
            "x.new_full(x.shape[:-1], -math.inf, dtype=wide)",
            "x.new_zeros(x.shape[:-1], dtype=wide)",
        ): "Your maximum begins at 0. All elements may be negative: begin with −∞.",
        replace(
            "wide = torch.promote_types(x.dtype, torch.float32)", "wide = x.dtype"
        ): "You sum in the dtype of x. Half precision is turned into float32 first, and so are the results.",
        replace(
            "wide = torch.promote_types(x.dtype, torch.float32)", "wide = torch.float32"
        ): "A float64 x has float64 statistics.",
        replace(
            """    if block_size < 1:
        raise ValueError(f"a block holds one element at least; came {block_size}")
""",
            "    block_size = max(block_size, 1)\n",
        ): "You take a block of nothing for a block of one. Below 1, raise ValueError.",
        replace(
            "x.split(block_size, dim=-1)",
            "x[..., : x.size(-1) // block_size * block_size].split(block_size, dim=-1) if x.size(-1) >= block_size else [x]",
        ): "You leave the last block out where it is smaller than the others.",
        replace(
            "return maximum, one[1] * (one[0] - shift).exp() + other[1] * (other[0] - shift).exp()",
            "return maximum, one[1].mul_((one[0] - shift).exp()).add_(other[1] * (other[0] - shift).exp())",
        ): WRITES,
        replace(
            "    return maximum, one[1] * (one[0] - shift).exp() + other[1] * (other[0] - shift).exp()",
            "    one[1].mul_((one[0] - shift).exp())\n"
            "    other[1].mul_((other[0] - shift).exp())\n"
            "    return maximum, one[1] + other[1]",
        ): WRITES,
        replace(
            "    return state",
            "    return state[0], state[1].log() + state[0]",
        ): "That is the logarithm of the sum of exp(x). The sum of exp(x − maximum) itself is asked for.",
    }
)


def one_element_at_a_time(x, block_size):
    if block_size <= 0:
        raise ValueError("block")
    dtype = F64 if x.dtype == F64 else torch.float32
    maximum = torch.full(x.shape[:-1], -INF, dtype=dtype, device=x.device)
    total = torch.zeros(x.shape[:-1], dtype=dtype, device=x.device)
    for start in range(0, x.size(-1), block_size):
        block = x[..., start : start + block_size].to(dtype)
        new = torch.maximum(maximum, block.max(dim=-1).values)
        safe = torch.where(torch.isneginf(new), torch.zeros_like(new), new)
        total = total * torch.exp(maximum - safe) + torch.exp(block - safe.unsqueeze(-1)).sum(-1)
        maximum = new
    return maximum, total


def merged_by_logs(one, other):
    both = torch.stack((one[0], other[0]))
    maximum = both.amax(0)
    factors = torch.exp(both - torch.nan_to_num(maximum, neginf=0.0, posinf=INF))
    return maximum, (factors * torch.stack((one[1], other[1]))).sum(0)


def merged_bare(one, other):
    maximum = torch.maximum(one[0], other[0])
    return maximum, one[1] * (one[0] - maximum).exp() + other[1] * (other[0] - maximum).exp()


online_softmax.mistake(NEITHER)(one_element_at_a_time, merged_bare)
online_softmax.alternative("a running total, and merges of stacks")(
    one_element_at_a_time, merged_by_logs
)


# ------------------------------------------------------------------------------ tiled_matmul

tiled_matmul = Exercise(
    book.tiled_matmul,
    title="A product in tiles",
    difficulty=2,
    minutes=30,
    points=3,
    hints=(
        "Three loops with steps: range(0, M, block_m), range(0, N, block_n), range(0, K, block_k). Slices end where the "
        "matrix ends by themselves.",
        "The total of a tile is float32 and begins at zero, inside of the two outer loops.",
        "What a product reads are its two tiles: a_tile.numel() + b_tile.numel().",
        ("edge cases", "With K = 0 every sum is empty: the result is zeros, and nothing was read."),
    ),
)


@tiled_matmul.by_hand
def _():
    a = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    b = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    c = torch.tensor([[3.0, 2.0], [7.0, 4.0]])
    yield call(a, b, 2, 2, 2), (c, 8)
    yield call(a, b, 1, 1, 1), (c, 16)
    yield call(a, b, 1, 2, 2), (c, 12)
    yield (
        call(torch.ones(3, 2), torch.ones(2, 5), 2, 2, 2),
        (torch.full((3, 5), 2.0), 2 * (5 * 2 + 3 * 3)),
    )


@tiled_matmul.cases(40)
def _(draw):
    m, k, n = draw(draws.distinct_sizes(3, 1, 9))
    blocks = [draw(st.integers(1, 5)) for _ in range(3)]
    yield call(draw(draws.tensors((m, k))), draw(draws.tensors((k, n))), *blocks)


@tiled_matmul.edge
def _():
    a, b = normal(6, 8), normal(8, 10, seed=1)
    yield call(a, b, 4, 4, 4), "the last tiles are smaller"
    yield call(a, b, 64, 64, 64), "one tile is larger than everything"
    yield call(a, b, 2, 5, 8), "three block sizes, all different"
    yield call(normal(3, 0), normal(0, 4), 2, 2, 2), "K is 0"
    yield call(normal(0, 3), normal(3, 4), 2, 2, 2), "no row"
    yield call(normal(3, 4), normal(4, 0), 2, 2, 2), "no column"
    yield call(normal(1, 1), normal(1, 1), 1, 1, 1), "one number"
    yield (
        call(draws.scattered(normal(5, 6)), draws.scattered(normal(6, 4, seed=1)), 2, 2, 4),
        "not contiguous",
    )
    yield (
        call(normal(4, 600, dtype=BF16), normal(600, 4, dtype=BF16, seed=1), 4, 4, 16),
        "bfloat16: round once, at the end",
    )
    yield (
        call(
            torch.full((2, 64), 250.0, dtype=F16),
            torch.cat((torch.full((32, 2), 250.0), torch.full((32, 2), -250.0))).to(F16),
            2,
            2,
            16,
        ),
        "float16: a partial sum beyond 65504",
    )
    yield call(normal(4, 6, dtype=F64), normal(6, 4, dtype=F64, seed=1), 4, 4, 4), "float64"
    yield (
        call(torch.zeros(3, 4, device="meta"), torch.zeros(4, 5, device="meta"), 2, 2, 2),
        "on another device than the default one",
    )
    rising = torch.full((2, 128), 100.0, dtype=F16)
    falling = torch.cat((torch.full((64, 2), 18.75), torch.full((64, 2), -18.75))).to(F16)
    yield call(rising, falling, 2, 2, 16), "float16: small partial sums, and a total beyond 65504"
    yield call(normal(0, 3), normal(3, 4), 2, 0, 2), "no row, and a tile of nothing"
    for blocks in ((0, 2, 2), (2, 0, 2), (2, 2, 0), (2, -1, 2)):
        yield call(a, b, *blocks), "a tile of nothing is an error"


tiled_matmul.slips(
    {
        replace(
            "a_tile.to(wide) @ b_tile.to(wide)",
            "a_tile @ b_tile",
            "torch.zeros_like(tile, dtype=wide)",
            "torch.zeros_like(tile)",
        ): "You sum in the dtype of a. Half precision overflows and rounds in every step: keep the total in float32, and "
        "convert the tiles.",
        replace(
            "torch.zeros_like(tile, dtype=wide)", "torch.zeros_like(tile)"
        ): "You convert the tiles, but keep the total in the dtype of a: half precision rounds it after each tile of K, "
        "and it may overflow. Keep it in float32, and round once, at the end.",
        replace(
            "total += a_tile.to(wide) @ b_tile.to(wide)", "total += (a_tile @ b_tile).to(wide)"
        ): "Each partial product is rounded to half precision before it is added. Convert the tiles, not their product.",
        replace(
            "total += a_tile.to(wide)", "total = a_tile.to(wide)"
        ): "You keep the last partial product. A tile of the result is the sum over all of them.",
        replace(
            "range(0, b.size(1), block_n)", "range(0, max(b.size(1), 1), block_n)"
        ): "Where b has no column you read the tiles of a all the same. There is no tile of the result that needs them.",
        replace(
            "read += a_tile.numel() + b_tile.numel()",
            "read += block_m * block_k + block_k * block_n",
        ): "You count whole tiles at the edges, too. The last ones are smaller: count the elements that are there.",
        replace(
            "read += a_tile.numel() + b_tile.numel()",
            "read += (a_tile.numel() if j == 0 else 0) + b_tile.numel()",
        ): "You count a tile of a once for a whole row of tiles of the result. Each of these reads it anew.",
        replace(
            "read += a_tile.numel() + b_tile.numel()",
            "read += a_tile.numel() + (b_tile.numel() if i == 0 else 0)",
        ): "You count a tile of b once for a whole column of tiles of the result. Each of these reads it anew.",
        replace(
            "read += a_tile.numel() + b_tile.numel()", "read = a.numel() + b.numel()"
        ): "You count each element once. Every tile of the result reads its tiles anew, and they count anew.",
        replace(
            "read += a_tile.numel() + b_tile.numel()", "read += a_tile.numel()"
        ): "You count what is read of a. b is read as well.",
        replace(
            "read += a_tile.numel() + b_tile.numel()",
            "read += a_tile.numel() + b_tile.numel() + (tile.numel() if k == 0 else 0)",
        ): "You count elements of the result as read. They are only written.",
        replace(
            "read += a_tile.numel() + b_tile.numel()", "read += a_tile.nbytes + b_tile.nbytes"
        ): "You count bytes. Elements are asked for.",
        replace(
            "read += a_tile.numel() + b_tile.numel()", "read += 2 * a_tile.numel() * b_tile.size(1)"
        ): "You count FLOPs. What is asked for are the elements that are read.",
        replace(
            "range(0, a.size(0), block_m)",
            "range(0, max(a.size(0), 1), block_m)",
            "range(0, b.size(1), block_n)",
            "range(0, max(b.size(1), 1), block_n)",
        ): "You count tiles as read where the result has no element. `split` gives one empty piece for an axis of size 0; "
        "there is no tile, and nothing to read for it.",
        replace(
            "range(0, a.size(1), block_k)", "range(0, a.size(1) // block_k * block_k, block_k)"
        ): "You leave out the last tile along K where it is smaller.",
        replace(
            "range(0, b.size(1), block_n)",
            "range(0, b.size(1) // block_n * block_n, block_n)",
            "c, read = a.new_empty(",
            "c, read = a.new_zeros(",
        ): "You leave out the last columns where they do not fill a tile.",
        replace(
            "range(0, a.size(0), block_m)",
            "range(0, a.size(0) // block_m * block_m, block_m)",
            "c, read = a.new_empty(",
            "c, read = a.new_zeros(",
        ): "You leave out the last rows where they do not fill a tile.",
        replace(
            "range(0, b.size(1), block_n)",
            "range(0, b.size(1), block_m)",
            "tile = c[i : i + block_m, j : j + block_n]",
            "tile = c[i : i + block_m, j : j + block_m]",
            "b_tile = b[k : k + block_k, j : j + block_n]",
            "b_tile = b[k : k + block_k, j : j + block_m]",
        ): "You step through the columns by block_m. They have a block of their own, block_n.",
        replace(
            "wide = torch.promote_types(a.dtype, torch.float32)", "wide = torch.float32"
        ): "You sum in float32 for float64 matrices as well.",
        replace(
            "a.new_empty(a.size(0), b.size(1))",
            "torch.empty(a.size(0), b.size(1), device=a.device)",
        ): "Your result has the default dtype. It has a's.",
        replace(
            "if min(block_m, block_n, block_k) < 1:",
            "if False:",
            "c, read = a.new_empty(",
            "c, read = a.new_zeros(",
        ): "A block below 1 is no tile: raise ValueError.",
    }
)


tiled_matmul.contract(
    contracts.largest_tensor(
        [
            call(normal(32, 1024, dtype=BF16), normal(1024, 32, dtype=BF16, seed=1), 16, 16, 64),
            call(
                draws.scattered(normal(48, 1024, dtype=BF16)),
                draws.scattered(normal(1024, 16, dtype=BF16, seed=1)),
                16,
                16,
                64,
            ),
        ],
        limit=4 * 16 * 64,
        says="no tensor is made that is larger than the largest tile, in the dtype in which it is computed, the result aside",
    )
)


@tiled_matmul.mistake(
    "The values are right, but all of a and b is converted to float32: a copy of both, in the largest dtype. Convert a "
    "tile when it is its turn.",
    cost=True,
)
def _(a, b, block_m, block_n, block_k):
    wide = torch.promote_types(a.dtype, torch.float32)
    c, read = book.tiled_matmul(a.to(wide), b.to(wide), block_m, block_n, block_k)
    return c.to(a.dtype), read


@tiled_matmul.mistake(
    "The values are right, but you multiply whole strips of a and b, K elements long. Take block_k of them at a time.",
    cost=True,
)
def _(a, b, block_m, block_n, block_k):
    c, _ = book.tiled_matmul(a, b, block_m, block_n, max(a.size(1), 1))
    return c, book.tiled_matmul(a, b, block_m, block_n, block_k)[1]


@tiled_matmul.mistake(
    "The values are right, but matrices that are not contiguous are copied as a whole. Tiles of any strides will do.",
    cost=True,
)
def _(a, b, block_m, block_n, block_k):
    return book.tiled_matmul(a.contiguous(), b.contiguous(), block_m, block_n, block_k)


@tiled_matmul.alternative("all tiles along K of a row of tiles, and the count by its formula")
def _(a, b, block_m, block_n, block_k):
    if block_m < 1 or block_n < 1 or block_k < 1:
        raise ValueError("blocks")
    (m, k), n = a.shape, b.shape[1]
    dtype = F64 if a.dtype == F64 else torch.float32
    rows = []
    for a_rows in a.split(block_m) if m else []:
        tiles = []
        for b_columns in b.split(block_n, dim=1):
            total = torch.zeros(a_rows.size(0), b_columns.size(1), dtype=dtype, device=a.device)
            for left, right in zip(
                a_rows.split(block_k, 1), b_columns.split(block_k, 0), strict=True
            ):
                total = total + left.to(dtype) @ right.to(dtype)
            tiles.append(total)
        rows.append(torch.cat(tiles, dim=1).to(a.dtype))
    c = torch.cat(rows) if rows else a.new_zeros(0, n)
    return c, -(-n // block_n) * m * k + -(-m // block_m) * k * n


# ------------------------------------------------------------------------------ softmax_kernel, in Triton

softmax_kernel = Exercise(
    triton_kernels.softmax_kernel,
    key="profiling_and_compile.softmax_kernel",
    title="Softmax as a kernel",
    difficulty=2,
    minutes=30,
    points=3,
    needs="triton",
    probe=probes.softmax_launched,
    limit_s=30.0,
    hints=(
        "`tl.program_id(0)` is the row. `tl.arange(0, BLOCK)` are the columns, more of them than there are: a mask says "
        "which are inside.",
        "`tl.load(x_ptr + row * x_stride + columns, mask=…, other=…)`: which `other` changes neither the maximum nor the "
        "sum of exp?",
        "`tl.max(x, axis=0)`, `tl.exp`, `tl.sum(…, axis=0)`, and `tl.store` with the mask.",
        (
            "edge cases",
            "Convert what you load with `.to(tl.float32)`: half precision is for storage.",
        ),
    ),
)


def rows_of(*lists):
    return torch.tensor(lists)


@softmax_kernel.by_hand
def _():
    yield call(rows_of([0.0, 0.0]), 0, 2), rows_of([0.5, 0.5])
    yield call(rows_of([0.0, math.log(3.0)], [7.0, 7.0]), 0, 2), rows_of([0.25, 0.75], [0.5, 0.5])
    yield call(rows_of([5.0, 5.0, 5.0]), 0, 4), rows_of([1 / 3, 1 / 3, 1 / 3])


@softmax_kernel.cases(12)
def _(draw):
    m, n = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    block = 1 << (n - 1).bit_length() + draw(st.integers(0, 1))
    x = draw(draws.tensors((m, n), scale=3.0))
    if draw(st.booleans()):
        x = draw(draws.tensors((m, n + 3), scale=3.0))[:, :n]
    yield call(x, draw(st.sampled_from((0, 2))), block)


@softmax_kernel.edge
def _():
    yield call(normal(3, 37), 0, 64), "a row much shorter than the block"
    yield call(normal(3, 8) + 1000.0, 0, 8), "exp(1000) is infinite"
    yield call(normal(3, 5) - 1000.0, 0, 8), "exp(−1000) is 0"
    yield call(rows_of([0.0, 1000.0]), 0, 2), "a row as long as the block, and far apart"
    yield call(rows_of([-INF, 0.0, -INF], [1.0, -INF, 2.0]), 0, 4), "elements that are masked out"
    yield call(normal(2, 1), 0, 1), "one column"
    yield call(normal(4, 12)[:, :7], 5, 8), "rows lie apart, in y by another distance"
    yield call(normal(4, 12)[::2, :7], 0, 8), "every second row"
    yield call(normal(2, 40, dtype=F16, scale=4.0), 0, 64), "float16"
    yield call(torch.zeros(1, 70_000, dtype=F16), 0, 131_072), "float16, and a sum beyond 65504"


softmax_kernel.slips(
    {
        replace(
            'x_stride + columns, mask=inside, other=-float("inf")', "x_stride + columns"
        ): "You load without a mask. The block is longer than the row, and what lies behind the row comes in.",
        replace(
            'other=-float("inf")', "other=0.0"
        ): "Columns outside are loaded as 0, and exp(0) = 1 goes into the sum. Load them as −∞.",
        replace(
            ', other=-float("inf")', ""
        ): "Your load has a mask and no `other`. What it gives outside is then not defined, and it goes into the maximum "
        "and the sum: load −∞ there.",
        replace("tl.exp(", "tl.exp2("): "`tl.exp2` raises 2 to a power. Softmax takes e: `tl.exp`.",
        replace("y, mask=inside)", "y)"): "You store without a mask, and write behind the row.",
        replace(
            "x - tl.max(x, axis=0)", "x"
        ): "You do not subtract the largest element: exp(1000) is infinite.",
        replace(
            "x_ptr + row * x_stride", "x_ptr + row * n_cols"
        ): "You take the rows of x for neighbours. From one to the next it is x_stride elements.",
        replace(
            "y_ptr + row * y_stride", "y_ptr + row * n_cols"
        ): "You take the rows of y for neighbours. From one to the next it is y_stride elements.",
        replace(
            "y_ptr + row * y_stride", "y_ptr + row * x_stride"
        ): "You step through y by the stride of x. It has its own.",
        replace(
            "y_ptr + row * y_stride + columns", "y_ptr + columns"
        ): "Every program writes the first row.",
        replace(
            "x_ptr + row * x_stride + columns", "x_ptr + columns"
        ): "Every program reads the first row.",
        replace(
            "y = weights / tl.sum(weights, axis=0)", "y = weights"
        ): "You do not divide by the sum.",
        replace(
            "y = weights / tl.sum(weights, axis=0)",
            "y = x - tl.max(x, axis=0) - tl.log(tl.sum(weights, axis=0))",
        ): "That is the logarithm of softmax.",
        replace(
            "inside = columns < n_cols", "inside = columns <= n_cols"
        ): "Your mask lets one column too many through: the last one is n_cols − 1.",
        replace(
            "inside = columns < n_cols", "inside = columns < n_cols - 1"
        ): "Your mask leaves the last column out.",
        replace(
            "x - tl.max(x, axis=0)", "x - tl.min(x, axis=0)"
        ): "You subtract the smallest element. Then exp is large, not small.",
        replace(
            "tl.program_id(0)", "tl.program_id(1)"
        ): "The grid has one axis: its programs are numbered by tl.program_id(0).",
    }
)


@softmax_kernel.alternative("Triton's own tl.softmax")
def _(x_ptr, y_ptr, x_stride, y_stride, n_cols, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    start = tl.program_id(0)
    x = tl.load(x_ptr + start * x_stride + at, at < n_cols, other=float("-inf")).to(tl.float32)
    tl.store(y_ptr + start * y_stride + at, tl.softmax(x), at < n_cols)


@softmax_kernel.alternative("zeros outside, and a choice afterwards")
def _(x_ptr, y_ptr, x_stride, y_stride, n_cols, BLOCK: tl.constexpr):
    x_ptr += tl.program_id(0) * x_stride
    y_ptr += tl.program_id(0) * y_stride
    columns = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + columns, mask=columns < n_cols, other=0.0).to(tl.float32)
    top = tl.max(tl.where(columns < n_cols, x, -1e38), axis=0)
    e = tl.where(columns < n_cols, tl.exp(x - top), 0.0)
    tl.store(y_ptr + columns, e / tl.sum(e, axis=0), mask=columns < n_cols)


# ------------------------------------------------------------------------------ matmul_kernel, in Triton

matmul_kernel = Exercise(
    triton_kernels.matmul_kernel,
    key="profiling_and_compile.matmul_kernel",
    title="A tiled product as a kernel",
    difficulty=3,
    minutes=45,
    points=4,
    needs="triton",
    probe=probes.matmul_launched,
    limit_s=60.0,
    hints=(
        "This is `tiled_matmul` without its two outer loops: `tl.program_id(0)` and `tl.program_id(1)` say which tile.",
        "Pointers of a tile: `a_ptr + rows[:, None] * stride_am + inner[None, :] * stride_ak`. Row indices go down, column "
        "indices go across.",
        "Each load has a mask of both axes and other=0.0, so that what is outside adds nothing. `total += tl.dot(a, b, input_precision='ieee')`.",
        ("edge cases", "The mask of a load along K matters too: the last tile of K is smaller."),
    ),
)
TILES = (16, 16, 16)


@matmul_kernel.by_hand
def _():
    eye, twos = torch.eye(16), torch.full((16, 16), 2.0)
    yield call(eye, twos, TILES, False), twos
    yield call(torch.ones(2, 3), torch.ones(3, 4), TILES, False), torch.full((2, 4), 3.0)
    yield call(torch.ones(2, 40), torch.ones(40, 4), TILES, False), torch.full((2, 4), 40.0)


@matmul_kernel.cases(10)
def _(draw):
    m, k, n = (draw(st.integers(1, 40)) for _ in range(3))
    blocks = tuple(draw(st.sampled_from((16, 32))) for _ in range(3))
    yield call(
        draw(draws.tensors((m, k))), draw(draws.tensors((k, n))), blocks, draw(st.booleans())
    )


@matmul_kernel.edge
def _():
    a, b = normal(20, 24), normal(24, 36, seed=1)
    yield call(a, b, TILES, False), "more tiles than one on each axis"
    yield call(a, b, (16, 32, 16), False), "wide tiles"
    yield call(a, b, (32, 16, 32), True), "tall tiles, and c by columns"
    yield call(a.T.contiguous().T, b, TILES, False), "a by columns"
    yield call(a, b.T.contiguous().T, TILES, False), "b by columns"
    yield (
        call(normal(20, 30)[:, ::2], normal(15, 18, seed=1), TILES, False),
        "every second column of a",
    )
    yield call(normal(1, 1), normal(1, 1), TILES, False), "one number"
    yield call(normal(16, 16), normal(16, 16, seed=1), TILES, False), "just one tile"
    yield call(normal(8, 48, dtype=F16), normal(48, 8, dtype=F16, seed=1), TILES, False), "float16"
    yield (
        call(
            torch.full((2, 64), 100.0, dtype=F16),
            torch.cat((torch.full((32, 2), 25.0), torch.full((32, 2), -25.0))).to(F16),
            TILES,
            False,
        ),
        "float16, and a total beyond 65504 on the way",
    )


matmul_kernel.slips(
    {
        replace(
            'total += tl.dot(a, b, input_precision="ieee")',
            'total = tl.dot(a, b, input_precision="ieee")',
        ): "You keep the product of the last tiles. Add it to the total.",
        replace(
            "(rows[:, None] < M) & (inner[None, :] < K)",
            "rows[:, None] < M",
            "(inner[:, None] < K) & (columns[None, :] < N)",
            "columns[None, :] < N",
        ): "Your loads have no mask along K. The last tile of K reads beyond the end.",
        replace(
            "(rows[:, None] < M) & (inner[None, :] < K)", "inner[None, :] < K"
        ): "One of your loads reads outside of its matrix: a needs a mask along M as well, b along N. What is read there is "
        "thrown away in the end, but a GPU may end the program for it.",
        replace(
            "mask=(rows[:, None] < M) & (columns[None, :] < N)", "mask=rows[:, None] < M"
        ): "Your store has no mask along N, and writes beside the matrix or into its next row.",
        replace(
            "mask=(rows[:, None] < M) & (columns[None, :] < N)", "mask=columns[None, :] < N"
        ): "Your store has no mask along M, and writes behind the matrix.",
        replace(
            "rows[:, None] * stride_am + inner[None, :] * stride_ak",
            "rows[:, None] * stride_ak + inner[None, :] * stride_am",
        ): "You have the strides of a the wrong way round: stride_am leads from one row to the next.",
        replace(
            "inner[:, None] * stride_bk + columns[None, :] * stride_bn",
            "inner[:, None] * stride_bn + columns[None, :] * stride_bk",
        ): "You have the strides of b the wrong way round: stride_bk leads from one row to the next.",
        replace(
            "rows[:, None] * stride_cm + columns[None, :] * stride_cn",
            "rows[:, None] * stride_cn + columns[None, :] * stride_cm",
        ): "You have the strides of c the wrong way round: stride_cm leads from one row to the next.",
        replace(
            "inner[None, :] * stride_ak", "inner[None, :]"
        ): "You take the elements of a row of a for neighbours. From one column to the next it is stride_ak elements.",
        replace(
            "columns[None, :] * stride_bn", "columns[None, :]"
        ): "You take the elements of a row of b for neighbours. From one column to the next it is stride_bn elements.",
        replace(
            "columns[None, :] * stride_cn", "columns[None, :]"
        ): "You take the elements of a row of c for neighbours. From one column to the next it is stride_cn elements.",
        replace(
            "rows = tl.program_id(0)",
            "rows = tl.program_id(1)",
            "columns = tl.program_id(1)",
            "columns = tl.program_id(0)",
        ): "You have the axes of the grid the wrong way round: program (i, j) has rows by i and columns by j.",
        replace(
            "tl.program_id(1) * BLOCK_N", "tl.program_id(1) * BLOCK_M"
        ): "Your tiles' columns begin at multiples of BLOCK_M. They begin at those of BLOCK_N.",
        replace(
            "inner = start + tl.arange(0, BLOCK_K)", "inner = tl.arange(0, BLOCK_K)"
        ): "Every step reads the first tiles along K. Add the start of the step to the indices.",
        replace(
            "< K),\n            other=0.0,\n",
            "< K),\n",
            "< N),\n            other=0.0,\n",
            "< N),\n",
        ): "Your loads have a mask and no `other`. What they give outside is then not defined, and it goes into the sums: "
        "say other=0.0.",
        replace(
            "range(0, K, BLOCK_K)", "range(0, N, BLOCK_K)"
        ): "You step along N. What is summed over, the columns of a and the rows of b, has K elements.",
        replace(
            "range(0, K, BLOCK_K)", "range(0, M, BLOCK_K)"
        ): "You step along M. What is summed over, the columns of a and the rows of b, has K elements.",
        replace(
            "range(0, K, BLOCK_K)", "range(0, K - K % BLOCK_K, BLOCK_K)"
        ): "You leave out the last tiles along K where they are smaller.",
        replace(
            'total += tl.dot(a, b, input_precision="ieee")',
            'total = (total + tl.dot(a, b, input_precision="ieee")).to(a.dtype).to(tl.float32)',
        ): "You round the total to the inputs' dtype in every step. Keep it in float32.",
    }
)


@matmul_kernel.alternative("pointers that move along K")
def _(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    i, j = tl.program_id(0), tl.program_id(1)
    rows = (i * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    columns = (j * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    k = tl.arange(0, BLOCK_K)
    a_at = a_ptr + rows * stride_am + k[None, :] * stride_ak
    b_at = b_ptr + k[:, None] * stride_bk + columns * stride_bn
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for step in range(tl.cdiv(K, BLOCK_K)):
        left = K - step * BLOCK_K
        a = tl.load(a_at, mask=(rows < M) & (k[None, :] < left), other=0).to(tl.float32)
        b = tl.load(b_at, mask=(k[:, None] < left) & (columns < N), other=0).to(tl.float32)
        total += tl.dot(a, b, input_precision="ieee")
        a_at += BLOCK_K * stride_ak
        b_at += BLOCK_K * stride_bk
    inside = (rows < M) & (columns < N)
    tl.store(
        c_ptr + rows * stride_cm + columns * stride_cn,
        total.to(c_ptr.dtype.element_ty),
        mask=inside,
    )


@matmul_kernel.alternative("a sum of products without tl.dot")
def _(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(K):
        a = tl.load(a_ptr + rows * stride_am + k * stride_ak, mask=rows < M, other=0.0)
        b = tl.load(b_ptr + k * stride_bk + columns * stride_bn, mask=columns < N, other=0.0)
        total += a.to(tl.float32)[:, None] * b.to(tl.float32)[None, :]
    at = c_ptr + rows[:, None] * stride_cm + columns[None, :] * stride_cn
    tl.store(at, total, mask=(rows[:, None] < M) & (columns[None, :] < N))


for exercise, name, mutant, because in (
    (
        remove_graph_break,
        "remove_graph_break",
        "torch.promote_types(update.dtype, torch.float32)` → "
        "`torch.promote_types(torch.float32, update.dtype)",
        "the order makes no difference",
    ),
    (
        remove_graph_break,
        "remove_graph_break",
        "norm > max_norm` → `norm >= max_norm",
        "where they are equal the factor is 1",
    ),
    *(
        (
            softmax_kernel,
            "softmax_kernel",
            mutant,
            "under the interpreter exp of float16 is float32; compiled, Triton refuses it",
        )
        for mutant in ("x = x.to(tl.float32)` removed", "x.to(tl.float32)` → `x")
    ),
    *(
        (
            softmax_kernel,
            "softmax_kernel",
            f"{call_of} axis=0)` → `{other}",
            "there is one axis",
        )
        for call_of, others in (
            ("tl.max(x,", ("tl.max(x)", "tl.max(x, axis=-1)")),
            ("tl.sum(weights,", ("tl.sum(weights)", "tl.sum(weights, axis=-1)")),
        )
        for other in others
    ),
    (
        tiled_matmul,
        "tiled_matmul",
        "torch.promote_types(a.dtype, torch.float32)` → `torch.promote_types(torch.float32, a.dtype)",
        "the order makes no difference",
    ),
    (
        online_softmax,
        "online_softmax",
        "torch.promote_types(x.dtype, torch.float32)` → `torch.promote_types(torch.float32, x.dtype)",
        "the order makes no difference",
    ),
    (
        online_softmax,
        "online_softmax",
        "x.new_full(x.shape[:-1], -math.inf, dtype=wide)` → `x.new_full(x.shape[:-1], -math.inf)",
        "−∞ and 0 are exact in every dtype, and the first merge promotes",
    ),
    (
        online_softmax,
        "online_softmax",
        "x.shape[:-1]` → `x.shape[:0]",
        "one (−∞, 0) broadcasts to all rows, and there is a block to merge with",
    ),
    (
        online_softmax,
        "online_softmax",
        "torch.zeros_like(maximum)` → `torch.ones_like(maximum)",
        "the first total is multiplied by exp(−∞), which is 0",
    ),
    (
        online_softmax,
        "online_softmax",
        "top.masked_fill(top == -math.inf, 0.0)` → `top.masked_fill(top == -math.inf, 1.0)",
        "where it is used every element is −∞, and exp(−∞ − 1) is 0 as well",
    ),
    (
        online_softmax,
        "online_softmax",
        "merge_statistics(state, (top, weights.sum(dim=-1)))` → "
        "`merge_statistics((top, weights.sum(dim=-1)), state)",
        "a merge does not depend on the order",
    ),
    (
        online_softmax,
        "merge_statistics",
        "maximum.masked_fill(maximum == -math.inf, 0.0)` → `maximum.masked_fill(maximum == -math.inf, 1.0)",
        "where it is used both sides have seen nothing, and exp(−∞ − 1) is 0 as well",
    ),
):
    end = "" if mutant.endswith("removed") else "`"
    exercise.equivalent(f"{name}: `{mutant}{end}", because=because)
for _load in (1, 2):
    matmul_kernel.equivalent(
        f"matmul_kernel: `other=0.0` → `other=1.0` [#{_load}]",
        because="beyond K the other matrix is 0, and rows and columns beyond M and N are not written",
    )
matmul_kernel.equivalent(
    "matmul_kernel: `tl.dot(a, b, input_precision='ieee')` → `tl.dot(a, b)`",
    because="the interpreter knows one precision; compiled, float32 is multiplied in TF32",
)
