"""Exercises of chapter 20: pipelines, meshes, ring attention, experts on ranks, a planner."""
# mypy: ignore-errors
# (mistakes are written as students write them, and all functions of theirs are called _)

import torch
import torch.distributed as dist
from hypothesis import strategies as st

from course_utils.grading import Exercise, call, contracts, draws, on_ranks, probes, replace
from course_utils.reference import (
    context_parallel,
    device_mesh,
    expert_parallel,
    pipeline,
    planning,
)
from course_utils.reference import pipeline_schedules as schedules
from course_utils.reference.attention import online_softmax
from course_utils.reference.context_parallel import zigzag_positions as zigzag
from course_utils.reference.expert_parallel import exchange_rows
from course_utils.reference.pipeline_schedules import gpipe_schedule as gpipe
from course_utils.reference.pipeline_schedules import interleaved_schedule as interleaved
from course_utils.reference.pipeline_schedules import one_f_one_b_schedule as one_f_one_b
from course_utils.reference.pipeline_schedules import zero_bubble_schedule as zero_bubble
from course_utils.reference.process_groups import exchange

F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16

# ------------------------------------------------------------------------------ bubble_fraction

bubble_fraction = Exercise(
    schedules.bubble_fraction,
    key="pipeline_and_3d.bubble_fraction",
    title="How large is the bubble?",
    difficulty=1,
    minutes=10,
    points=1,
    hints=(
        "Draw rank 0 of a GPipe: m forwards, a wait, m backwards. For how many stages' forward and "
        "backward does it wait?",
        "It is busy for m forwards and backwards, and waits for p − 1 of each. The times of a forward and of a "
        "backward drop out of the quotient.",
        (
            "random cases",
            "With v chunks a forward of one chunk takes a v-th of the time, and so does each step of the wait.",
        ),
        ("edge cases", "Nothing waits where there is one rank. Nothing is divided by zero."),
    ),
)


@bubble_fraction.by_hand
def _():
    yield call(4, 8), 3 / 11
    yield call(4, 1), 3 / 4
    yield call(2, 2), 1 / 3
    yield call(4, 8, 2), 3 / 19


@bubble_fraction.cases(40)
def _(draw):
    p = draw(st.integers(1, 12))
    v = draw(st.integers(1, 6))
    yield call(p, p * draw(st.integers(1, 8)), v)


@bubble_fraction.edge
def _():
    yield call(1, 5), "one rank waits for nobody"
    yield call(1, 1, 1), "one of each"
    yield call(7, 1), "one micro-batch: one rank works at a time"
    yield call(16, 2), "fewer micro-batches than ranks"
    yield call(64, 512, 4), "a large job"
    yield call(0, 4), "no rank"
    yield call(4, 0), "no micro-batch"
    yield call(4, 4, 0), "no chunk"
    yield call(-1, 4), "a negative number of ranks"


RETURNED = "(n_ranks - 1) / (n_chunks * n_microbatches + n_ranks - 1)"
LEAST = "min(n_ranks, n_microbatches, n_chunks) < 1"
for said, instead in (
    (
        "You divide the waiting by the working time. The question is for the share of the whole, in which the "
        "waiting itself counts too.",
        "(n_ranks - 1) / (n_chunks * n_microbatches)",
    ),
    (
        "You count p steps of waiting. The first micro-batch reaches the last rank after p − 1 steps.",
        "n_ranks / (n_chunks * n_microbatches + n_ranks)",
    ),
    (
        "You leave the chunks out. With v of them each step of the wait takes a v-th of the time.",
        "(n_ranks - 1) / (n_microbatches + n_ranks - 1)",
    ),
    (
        "You divide the whole fraction by the number of chunks. Only the wait becomes shorter by it; the work stays.",
        "(n_ranks - 1) / (n_microbatches + n_ranks - 1) / n_chunks",
    ),
    (
        "That is the share in which a rank works. The bubble is the rest.",
        "n_chunks * n_microbatches / (n_chunks * n_microbatches + n_ranks - 1)",
    ),
    (
        "You count every chunk as a rank more. Chunks lie on the same ranks, and shorten the steps.",
        "(n_ranks * n_chunks - 1) / (n_microbatches + n_ranks * n_chunks - 1)",
    ),
    (
        "You multiply the wait by the number of chunks. The steps become shorter with v, not longer.",
        "n_chunks * (n_ranks - 1) / (n_microbatches + n_chunks * (n_ranks - 1))",
    ),
    (
        "You forget the wait in the whole time: it has m + p − 1 steps, not m + p.",
        "(n_ranks - 1) / (n_chunks * n_microbatches + n_ranks)",
    ),
    (
        "That is the share in percent. A number from 0 to 1 is asked for.",
        "100 * (n_ranks - 1) / (n_chunks * n_microbatches + n_ranks - 1)",
    ),
    (
        "A rank waits for p − 1 forwards and for p − 1 backwards. You count one of the two waits beside both kinds of work.",
        "(n_ranks - 1) / (2 * n_chunks * n_microbatches + n_ranks - 1)",
    ),
    (
        "You divide by `//`, which leaves whole numbers only: a fraction is asked for.",
        "(n_ranks - 1) // (n_chunks * n_microbatches + n_ranks - 1)",
    ),
):
    bubble_fraction.mistake(said, replace(RETURNED, instead))
bubble_fraction.mistake(
    "You take numbers below 1. There is no pipeline of 0 ranks, micro-batches or chunks: raise ValueError.",
    replace(LEAST, "False"),
)
bubble_fraction.mistake(
    "You refuse one rank, one micro-batch or one chunk. All three are fine.",
    replace(LEAST, "min(n_ranks, n_microbatches, n_chunks) <= 1"),
)
for checked in ("n_ranks < 1", "min(n_ranks, n_microbatches) < 1", "min(n_ranks, n_chunks) < 1"):
    bubble_fraction.mistake(
        "You check some of the three numbers only. Without ranks, without micro-batches or without chunks there is no "
        "pipeline: raise ValueError in each case.",
        replace(LEAST, checked),
    )


@bubble_fraction.alternative(
    "one less the share of work, in units of a chunk's forward and backward"
)
def _(n_ranks, n_microbatches, n_chunks=1):
    if n_ranks < 1 or n_microbatches < 1 or n_chunks < 1:
        raise ValueError("at least one of each")
    work = n_chunks * n_microbatches
    return 1 - work / (work + n_ranks - 1)


# ------------------------------------------------------------------------------ gpipe_schedule

gpipe_schedule = Exercise(
    schedules.gpipe_schedule,
    key="pipeline_and_3d.gpipe_schedule",
    probe=probes.of_tuples,
    title="GPipe's schedule",
    difficulty=1,
    minutes=10,
    points=1,
    hints=(
        "Every stage does the same: F of micro-batches 0, 1, …, then B of 0, 1, …",
        "The result is a list of lists. An action is a tuple: kind, stage, micro-batch.",
    ),
)


@gpipe_schedule.by_hand
def _():
    yield (
        call(2, 2),
        [
            [("F", 0, 0), ("F", 0, 1), ("B", 0, 0), ("B", 0, 1)],
            [("F", 1, 0), ("F", 1, 1), ("B", 1, 0), ("B", 1, 1)],
        ],
    )


@gpipe_schedule.cases(20)
def _(draw):
    yield call(draw(st.integers(1, 5)), draw(st.integers(1, 6)))


@gpipe_schedule.edge
def _():
    yield call(1, 1), "one of each"
    yield call(4, 1), "one micro-batch"
    yield call(1, 3), "one stage"
    yield call(2, 5), "more micro-batches than stages"


GPIPE = '[(kind, stage, i) for kind in "FB" for i in range(n_microbatches)]'
for said, instead in (
    (
        "You run each micro-batch forward and backward before the next one. So only one of them is in the pipeline, "
        "and the ranks work one at a time.",
        '[(kind, stage, i) for i in range(n_microbatches) for kind in "FB"]',
    ),
    (
        "Your tuples are (kind, micro-batch, stage). The stage comes before the micro-batch.",
        '[(kind, i, stage) for kind in "FB" for i in range(n_microbatches)]',
    ),
    (
        "Your backwards go from the last micro-batch to the first. GPipe may do that, and its memory would be the "
        "same; here both go by micro-batch from 0 on.",
        '[("F", stage, i) for i in range(n_microbatches)]'
        ' + [("B", stage, i) for i in reversed(range(n_microbatches))]',
    ),
    (
        "You run the backward of a micro-batch on the mirrored stage. It belongs where the forward was: its "
        "activations lie there.",
        '[("F", stage, i) for i in range(n_microbatches)]'
        ' + [("B", n_stages - 1 - stage, i) for i in range(n_microbatches)]',
    ),
    (
        "Your tuples are (stage, kind, micro-batch), the order in which torch writes an action. Here the kind comes first.",
        '[(stage, kind, i) for kind in "FB" for i in range(n_microbatches)]',
    ),
    (
        "You count micro-batches from 1. They begin at 0.",
        '[(kind, stage, i + 1) for kind in "FB" for i in range(n_microbatches)]',
    ),
    (
        "Every rank of yours runs the actions of all stages. Rank r has stage r, and runs that one's.",
        '[("F", s, i) for i in range(n_microbatches) for s in range(n_stages)]'
        ' + [("B", s, i) for i in range(n_microbatches) for s in reversed(range(n_stages))]',
    ),
    (
        "The backwards are missing.",
        '[("F", stage, i) for i in range(n_microbatches)]',
    ),
    (
        "You put waiting into the lists. A schedule has actions only, in their order; when each runs follows from "
        "what it needs.",
        '[None] * stage + [(kind, stage, i) for kind in "FB" for i in range(n_microbatches)]',
    ),
    (
        "You write actions as text. An action is a tuple (kind, stage, micro-batch).",
        '[f"{stage}{kind}{i}" for kind in "FB" for i in range(n_microbatches)]',
    ),
):
    gpipe_schedule.mistake(said, replace(GPIPE, instead))
for there_and_back in (
    '[(kind, stage, i) for kind in "FB" for stage in range(n_stages)]',
    '[("F", stage, i) for stage in range(n_stages)]'
    ' + [("B", stage, i) for stage in reversed(range(n_stages))]',
):
    gpipe_schedule.mistake(
        "Your outer list goes by micro-batch. It goes by rank: one list of actions for each.",
        replace(
            f"{GPIPE}\n        for stage in range(n_stages)\n",
            f"{there_and_back}\n        for i in range(n_microbatches)\n",
        ),
    )
gpipe_schedule.mistake(
    "Your ranks come in reverse: rank r has stage r.",
    replace("for stage in range(n_stages)", "for stage in reversed(range(n_stages))"),
)
gpipe_schedule.mistake(
    "All your ranks run stage 0. Rank r has stage r, so each list names another stage.",
    replace("(kind, stage, i)", "(kind, 0, i)"),
)
gpipe_schedule.mistake(
    "Your actions are lists. They are tuples, which can be keys of a dict, as `timeline` will need them.",
    replace("(kind, stage, i)", "[kind, stage, i]"),
)


@gpipe_schedule.alternative("append, one action after the other")
def _(n_stages, n_microbatches):
    result = [[] for _ in range(n_stages)]
    for kind in ("F", "B"):
        for i in range(n_microbatches):
            for stage in range(n_stages):
                result[stage].append((kind, stage, i))
    return result


# ------------------------------------------------------------------------------ one_f_one_b_schedule

one_f_one_b_schedule = Exercise(
    schedules.one_f_one_b_schedule,
    key="pipeline_and_3d.one_f_one_b_schedule",
    probe=probes.of_tuples,
    title="1F1B's schedule",
    difficulty=2,
    minutes=20,
    points=2,
    hints=(
        "The last stage begins with no extra forward: F0 B0 F1 B1 … The one before begins with one.",
        "Three parts: `warmup` forwards; then for i from warmup on a forward of i and a backward of i − warmup; "
        "then the backwards that are left.",
        (
            "random cases",
            "How many forwards can the warm-up have if there are fewer micro-batches than stages?",
        ),
    ),
)


@one_f_one_b_schedule.by_hand
def _():
    yield (
        call(2, 3),
        [
            [("F", 0, 0), ("F", 0, 1), ("B", 0, 0), ("F", 0, 2), ("B", 0, 1), ("B", 0, 2)],
            [("F", 1, 0), ("B", 1, 0), ("F", 1, 1), ("B", 1, 1), ("F", 1, 2), ("B", 1, 2)],
        ],
    )


@one_f_one_b_schedule.cases(30)
def _(draw):
    yield call(draw(st.integers(1, 5)), draw(st.integers(1, 8)))


@one_f_one_b_schedule.edge
def _():
    yield call(1, 3), "one stage: accumulation"
    yield call(4, 4), "as many micro-batches as stages"
    yield call(4, 2), "fewer micro-batches than stages"
    yield call(5, 1), "one micro-batch"
    yield call(3, 3), "the first stage runs its last forward before its first backward"


WARMUP = "min(n_stages - 1 - stage, n_microbatches)"
one_f_one_b_schedule.mistake(
    "Your warm-up has a forward too many. The forward that comes just before the first backward belongs to the "
    "turns; so a stage holds p − s micro-batches at most, not p − s + 1.",
    replace(WARMUP, "min(n_stages - stage, n_microbatches)"),
)
one_f_one_b_schedule.mistake(
    "All your stages warm up like the first one. The later a stage, the sooner its first gradient comes, so it "
    "needs fewer forwards, and holds fewer activations.",
    replace(WARMUP, "min(n_stages - 1, n_microbatches)"),
)
one_f_one_b_schedule.mistake(
    "Your warm-up grows with the stage. The first stage waits longest for a gradient, the last one not at all.",
    replace(WARMUP, "min(stage, n_microbatches)"),
)
one_f_one_b_schedule.mistake(
    "You have no warm-up: each stage runs F0 and then wants B0, before later stages have more to do. One "
    "micro-batch is in the pipeline at a time.",
    replace(WARMUP, "0"),
)
for left in ("n_microbatches - warmup", "max(0, n_microbatches - warmup)"):
    one_f_one_b_schedule.mistake(
        "You do not bound the warm-up by the number of micro-batches: a stage runs forwards that do not exist.",
        replace(
            WARMUP,
            "n_stages - 1 - stage",
            "range(n_microbatches - warmup, n_microbatches)",
            f"range({left}, n_microbatches)",
        ),
    )
one_f_one_b_schedule.mistake(
    "With fewer micro-batches than stages you run GPipe. The late stages need no such warm-up: the last one still "
    "runs a forward and a backward in turn.",
    replace(
        "    schedule = []\n",
        "    if n_microbatches < n_stages:\n"
        "        all_of_them = range(n_microbatches)\n"
        '        return [[(k, s, i) for k in "FB" for i in all_of_them] for s in range(n_stages)]\n'
        "    schedule = []\n",
    ),
)
one_f_one_b_schedule.mistake(
    "In turn means a forward first, then a backward. The other way round the last stage would begin with the "
    "backward of a micro-batch that it has not seen.",
    replace(
        '[("F", stage, i), ("B", stage, i - warmup)]', '[("B", stage, i - warmup), ("F", stage, i)]'
    ),
)
one_f_one_b_schedule.mistake(
    "The backwards at the end are missing. The warm-up's forwards left as many to do.",
    replace(
        '        actions += [("B", stage, i) for i in range(n_microbatches - warmup, n_microbatches)]\n',
        "",
    ),
)
one_f_one_b_schedule.mistake(
    "In the turns you run the backward of the micro-batch whose forward has just run. Its gradient has not come "
    "back: the oldest one is due, i − warmup.",
    replace(
        '("B", stage, i - warmup)]',
        '("B", stage, i)]',
        "range(n_microbatches - warmup, n_microbatches)",
        "range(warmup)",
    ),
)
one_f_one_b_schedule.mistake(
    "Your backwards take the newest micro-batch that is alive. The oldest one is due: they go by micro-batch from 0 on.",
    replace(
        '("B", stage, i - warmup)]',
        '("B", stage, i)]',
        "range(n_microbatches - warmup, n_microbatches)",
        "reversed(range(warmup))",
    ),
)
one_f_one_b_schedule.mistake(
    "The backwards at the end go from the last to the first. They go by micro-batch, too.",
    replace(
        "range(n_microbatches - warmup, n_microbatches)",
        "reversed(range(n_microbatches - warmup, n_microbatches))",
    ),
)
one_f_one_b_schedule.mistake(
    "That is GPipe: all forwards, then all backwards. 1F1B begins with backwards as soon as it can.",
    replace(WARMUP, "n_microbatches"),
)
one_f_one_b_schedule.mistake(
    "You refuse fewer micro-batches than stages, as torch does. Here any number will do.",
    replace(
        "    schedule = []\n",
        '    schedule = []\n    if n_microbatches < n_stages:\n        raise ValueError("too few")\n',
    ),
)
one_f_one_b_schedule.mistake(
    "On the last stage, where there is no warm-up, your forwards are one ahead: F1 F2 … It begins with F0, like "
    "every stage.",
    replace(
        'actions += [("F", stage, i), ',
        'actions += [("F", stage, i + (warmup == 0)), ',
    ),
)


one_f_one_b_schedule.mistake(
    "Your turns end early: the last forwards are missing. Every micro-batch goes forward once.",
    replace(
        "range(warmup, n_microbatches):",
        "range(warmup, n_microbatches - 1):",
        "range(n_microbatches - warmup, n_microbatches)",
        "range(max(0, n_microbatches - 1 - warmup), n_microbatches)",
    ),
)
KEPT = "schedule.append(actions)"
one_f_one_b_schedule.mistake(
    "Your ranks come in reverse: rank r has stage r.",
    replace(KEPT, "schedule.insert(0, actions)"),
)
one_f_one_b_schedule.mistake(
    "All your ranks run stage 0. Rank r has stage r, so each list names another stage.",
    replace(KEPT, "schedule.append([(kind, 0, i) for kind, _, i in actions])"),
)
one_f_one_b_schedule.mistake(
    "Your tuples are (kind, micro-batch, stage). The stage comes before the micro-batch.",
    replace(KEPT, "schedule.append([(kind, i, s) for kind, s, i in actions])"),
)
one_f_one_b_schedule.mistake(
    "Your actions are lists. They are tuples, which can be keys of a dict, as `timeline` will need them.",
    replace(KEPT, "schedule.append([list(action) for action in actions])"),
)


@one_f_one_b_schedule.alternative("always the backward that is due, once there are enough forwards")
def _(n_stages, n_microbatches):
    result = []
    for stage in range(n_stages):
        actions, forwards, backwards = [], 0, 0
        while backwards < n_microbatches:
            if forwards < n_microbatches and forwards - backwards < n_stages - stage:
                actions.append(("F", stage, forwards))
                forwards += 1
            else:
                actions.append(("B", stage, backwards))
                backwards += 1
        result.append(actions)
    return result


# ------------------------------------------------------------------------------ peak_microbatches

peak_microbatches = Exercise(
    schedules.peak_microbatches,
    key="pipeline_and_3d.peak_microbatches",
    title="What a schedule holds",
    difficulty=1,
    minutes=10,
    points=1,
    hints=(
        "Walk through a rank's actions and keep count; the most there ever was is the answer.",
        "`F` adds one. `B` takes one away. Which of `I` and `W` does?",
    ),
)


@peak_microbatches.by_hand
def _():
    yield call(gpipe(2, 3)), [3, 3]
    yield call(one_f_one_b(3, 4)), [3, 2, 1]
    split = [
        ("F", 0, 0),
        ("I", 0, 0),
        ("F", 0, 1),
        ("W", 0, 0),
        ("F", 0, 2),
        ("I", 0, 1),
        ("F", 0, 3),
    ]
    yield call([split]), [3]


@peak_microbatches.cases(40)
def _(draw):
    p, groups = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    kind = draw(st.sampled_from(["gpipe", "1f1b", "interleaved", "zero"]))
    if kind == "gpipe":
        yield call(gpipe(p, groups))
    elif kind == "1f1b":
        yield call(one_f_one_b(p, draw(st.integers(1, 8))))
    elif kind == "interleaved":
        yield call(interleaved(p, p * groups, draw(st.integers(1, 3))))
    else:
        yield call(zero_bubble(p, p * groups, draw(st.integers(1, 2))))


@peak_microbatches.edge
def _():
    yield call([[], [("F", 0, 0), ("B", 0, 0)]]), "a rank without actions"
    yield call([]), "no ranks"
    yield call(interleaved(4, 8, 2)), "a micro-batch counts once for each of a rank's stages"
    yield call(zero_bubble(4, 8)), "split backwards: the weights' gradient frees"
    last = [("F", 0, 0), ("B", 0, 0), ("F", 0, 1), ("F", 0, 2), ("B", 0, 1), ("B", 0, 2)]
    yield call([last, [("F", 1, 0), ("B", 1, 0)]]), "the peak comes late, and ranks differ"
    mixed = [("F", 0, 0), ("I", 0, 0), ("F", 0, 1), ("B", 0, 1), ("W", 0, 0)]
    yield call([mixed]), "full and split backwards on one rank"
    pairs = [("F", 0, 0), ("F", 0, 1), ("I", 0, 0), ("F", 0, 2), ("F", 0, 3), ("W", 0, 0)]
    yield call([pairs]), "a gradient of inputs between pairs of forwards"


FREES = 'elif kind in ("B", "W"):'
peak_microbatches.mistake(
    "You free with I. The gradient of the inputs is done, but that of the weights still needs the activations.",
    replace(FREES, 'elif kind in ("B", "I"):'),
)
peak_microbatches.mistake(
    "You free only with B. Where the backward is split, W frees, or nothing ever would.",
    replace(FREES, 'elif kind == "B":'),
)
peak_microbatches.mistake(
    "You free with I and with W: a split backward frees twice.",
    replace(FREES, "else:"),
)
peak_microbatches.mistake(
    "You return what is left at the end. The peak is asked for.",
    replace("peaks.append(peak)", "peaks.append(alive)"),
)
peak_microbatches.mistake(
    "You count all forwards. What a backward has freed is gone.",
    replace("alive -= 1", "pass"),
)
peak_microbatches.mistake(
    "You look at the count before the action, so a peak that the action itself makes is missed.",
    replace(
        "            peak = max(peak, alive)\n",
        "",
        "        for kind, _, _ in actions:\n",
        "        for kind, _, _ in actions:\n            peak = max(peak, alive)\n",
    ),
)
peak_microbatches.mistake(
    "You count on from rank to rank. Each has memory of its own: begin anew.",
    replace("    peaks = []\n", "    peaks = []\n    peak = 0\n", "alive = peak = 0", "alive = 0"),
)
peak_microbatches.mistake(
    "You count micro-batches. One that has been forward through two of the rank's stages holds the activations of "
    "both.",
    replace(
        "kind, _, _ in",
        "kind, _, i in",
        "alive = peak = 0",
        "peak, held = 0, []",
        "alive += 1",
        "held.append(i)",
        "alive -= 1",
        "held.remove(i)",
        "max(peak, alive)",
        "max(peak, len(set(held)))",
    ),
)
peak_microbatches.mistake(
    "You count micro-batches. One that has been forward through two of the rank's stages holds the activations of "
    "both.",
    replace(
        "kind, _, _ in",
        "kind, _, i in",
        "alive = peak = 0",
        "alive, peak = set(), 0",
        "alive += 1",
        "alive.add(i)",
        "alive -= 1",
        "alive.discard(i)",
        "max(peak, alive)",
        "max(peak, len(alive))",
    ),
)
peak_microbatches.mistake(
    "You return the peak of all ranks. It is another one on each.",
    replace("return peaks", "return [max(peaks, default=0)] * len(peaks)"),
)
for first in ('kind != "F"', 'kind in ("B", "W")'):
    peak_microbatches.mistake(
        "You stop counting at the first backward. The peak may come later.",
        replace(
            "            peak = max(peak, alive)\n",
            f"            peak = max(peak, alive)\n            if {first}:\n                break\n",
        ),
    )


@peak_microbatches.mistake(
    "You count for each stage. A rank's memory holds the activations of all of its stages: one number for each rank."
)
def _(schedule):
    alive, peaks = {}, {}
    for kind, stage, _ in (action for actions in schedule for action in actions):
        alive[stage] = alive.get(stage, 0) + {"F": 1, "I": 0}.get(kind, -1)
        peaks[stage] = max(peaks.get(stage, 0), alive[stage])
    return [peaks[stage] for stage in sorted(peaks)]


peak_microbatches.mistake(
    "You let I and W free half each. All that was saved stays until the last that needs it, W, is done.",
    replace(
        'elif kind in ("B", "W"):',
        'elif kind in ("I", "W"):\n                alive -= 0.5\n            else:',
    ),
)
peak_microbatches.mistake(
    "You count forwards in a row. A backward in between frees one of them, not all.",
    replace("alive -= 1", "alive = 0", 'elif kind in ("B", "W"):', "else:"),
)


@peak_microbatches.mistake(
    "You add up the peaks of a rank's stages. They need not be reached at the same time: count all of its stages together."
)
def _(schedule):
    result = []
    for actions in schedule:
        alive, peaks = {}, {}
        for kind, stage, _ in actions:
            alive[stage] = alive.get(stage, 0) + {"F": 1, "I": 0}.get(kind, -1)
            peaks[stage] = max(peaks.get(stage, 0), alive[stage])
        result.append(sum(peaks.values()))
    return result


@peak_microbatches.alternative("sums of +1 and −1")
def _(schedule):
    from itertools import accumulate

    change = {"F": 1, "B": -1, "I": 0, "W": -1}
    return [max(accumulate((change[kind] for kind, *_ in r), initial=0)) for r in schedule]


# ------------------------------------------------------------------------------ timeline

timeline = Exercise(
    schedules.timeline,
    key="pipeline_and_3d.timeline",
    probe=probes.of_tuples,
    title="A simulator of pipelines",
    difficulty=3,
    minutes=45,
    points=4,
    hints=(
        "Keep for each rank how many of its actions are done, and when it is free. Go round over the ranks: "
        "whoever's next action has all that it needs runs it.",
        "An action starts at the latest of: when its rank is free, and for each thing that it needs its end, plus "
        "`hop` if that lies on another rank.",
        "If a whole round over the ranks moves nobody, either all is done or there is a deadlock.",
        (
            "random cases",
            "Which rank has which stage is in the schedule; it need not be stage % ranks. And the next stage may "
            "have run B or I.",
        ),
        ("edge cases", "Does the last stage, the largest number, wait for a stage after it?"),
    ),
)


def alike(n_stages, forward=1.0, backward=2.0):
    half = backward / 2
    return {
        "F": [forward] * n_stages,
        "B": [backward] * n_stages,
        "I": [half] * n_stages,
        "W": [half] * n_stages,
    }


@timeline.by_hand
def _():
    yield (
        call(gpipe(2, 1), alike(2)),
        {
            ("F", 0, 0): (0.0, 1.0),
            ("F", 1, 0): (1.0, 2.0),
            ("B", 1, 0): (2.0, 4.0),
            ("B", 0, 0): (4.0, 6.0),
        },
    )
    yield (
        call(gpipe(2, 1), {"F": [1.0, 3.0], "B": [2.0, 4.0]}, 0.5),
        {
            ("F", 0, 0): (0.0, 1.0),
            ("F", 1, 0): (1.5, 4.5),
            ("B", 1, 0): (4.5, 8.5),
            ("B", 0, 0): (9.0, 11.0),
        },
    )


def quarters(draw, n):
    return [draw(st.integers(1, 16)) / 4 for _ in range(n)]


@timeline.cases(40)
def _(draw):
    p, kind = draw(st.integers(1, 4)), draw(st.sampled_from(["g", "1", "v", "z", "mirrored"]))
    m = p * draw(st.integers(1, 2))
    n_stages = p
    if kind == "g":
        schedule = gpipe(p, m)
    elif kind == "1":
        schedule = one_f_one_b(p, m)
    elif kind == "v":
        schedule, n_stages = interleaved(p, m, 2), 2 * p
    elif kind == "z":
        schedule = zero_bubble(p, m)
    else:
        schedule = gpipe(p, m)[::-1]
    seconds = {kind: quarters(draw, n_stages) for kind in "FBIW"}
    hop = draw(st.sampled_from([0.0, 0.25, 1.0, 3.0]))
    yield call(schedule, seconds, hop)


CROSSED = [
    [("F", 0, 0), ("F", 0, 1), ("B", 0, 1), ("B", 0, 0)],
    [("F", 1, 0), ("B", 1, 0), ("F", 1, 1), ("B", 1, 1)],
]


@timeline.edge
def _():
    yield call([], {"F": [], "B": []}), "no ranks"
    yield call([[], [("F", 0, 0), ("B", 0, 0)]], alike(1), 1.0), "a rank without actions"
    both = [[("F", 0, 0), ("F", 1, 0), ("B", 1, 0), ("B", 0, 0)]]
    yield call(both, alike(2), 5.0), "two stages on one rank: nothing travels"
    v = [
        [("F", 0, 0), ("F", 3, 0), ("B", 3, 0), ("B", 0, 0)],
        [("F", 1, 0), ("F", 2, 0), ("B", 2, 0), ("B", 1, 0)],
    ]
    yield call(v, alike(4), 0.5), "stages 0 and 3 on one rank, 1 and 2 on the other"
    yield call(CROSSED, alike(2), 0.25), "backwards that the first rank wants in another order"
    yield call([[("B", 0, 0), ("F", 0, 0)]], alike(1)), "a backward before its forward"
    swapped = [
        [("F", 0, 0), ("B", 0, 0), ("F", 0, 1), ("B", 0, 1)],
        [("F", 1, 1), ("B", 1, 1), ("F", 1, 0), ("B", 1, 0)],
    ]
    yield call(swapped, alike(2)), "two ranks that wait for each other"
    yield call([[("F", 0, 0)], [("F", 1, 0), ("F", 1, 1)]], alike(2)), "what nobody sends"
    yield call([[("F", 0, 0), ("W", 0, 0)]], alike(1)), "W without I"
    gap = [[("F", 0, 0), ("B", 0, 0)], [("F", 1, 0)]]
    yield call(gap, alike(2)), "a backward that the next stage never runs"
    mixed = [
        [("F", 0, 0), ("F", 0, 1), ("B", 0, 0), ("B", 0, 1)],
        [("F", 1, 0), ("I", 1, 0), ("F", 1, 1), ("B", 1, 1), ("W", 1, 0)],
    ]
    yield call(mixed, alike(2), 0.5), "one stage splits a backward, the other does not"
    yield call(zero_bubble(3, 3, 2), alike(6), 0.25), "split backwards, two stages on each rank"
    slow = {"F": [1.0, 4.0, 1.0], "B": [2.0, 8.0, 2.0]}
    yield call(one_f_one_b(3, 5), slow), "one slow stage"


HOP = "hop * (rank_of[need[1]] != rank)"
AFTER = "[(due, stage + 1, i)] if stage < last else []"
timeline.mistake("Your messages take no time: `hop` is left out.", replace(f" + {HOP}", ""))
timeline.mistake(
    "You add `hop` between two stages of one rank. Nothing travels there.",
    replace(HOP, "hop * (need[1] != stage)"),
)
timeline.mistake(
    "You add `hop` to all that an action needs, also to what its own rank has made. Only what comes from another "
    "rank has travelled.",
    replace(HOP, "hop"),
)
timeline.mistake(
    "You let a message keep its sender busy. It travels while the rank goes on.",
    replace(
        "                times[action] = start, free[rank]\n",
        "                times[action] = start, free[rank]\n"
        '                to = stage + {"F": 1, "W": 0}.get(kind, -1)\n'
        "                free[rank] += hop * (rank_of.get(to, rank) != rank)\n",
    ),
)
timeline.mistake(
    "A rank of yours runs several actions at a time: each starts when its inputs are there. It also has to wait "
    "until its rank is free.",
    replace("start = free[rank]", "start = 0.0"),
)
timeline.mistake(
    "Your backwards wait for their own forward only. Except on the last stage the gradient comes from the next one.",
    replace(f" + ({AFTER})", ""),
)
timeline.mistake(
    "Your backwards do not wait for the forward of their own stage. On the last stage there is nothing else to wait for.",
    replace(f'[("F", stage, i)] + ({AFTER})', AFTER),
)
timeline.mistake(
    "Your forwards wait for nothing. They need that of the stage before.",
    replace('[("F", stage - 1, i)] if stage > 0 else []', "[]"),
)
timeline.mistake(
    "You return what could be run. A schedule that gets stuck must raise ValueError, or one takes it for a short one.",
    replace("    if waiting:\n", "    if False:\n"),
)
timeline.mistake(
    "You take the seconds by rank. They are by stage, of which a rank may have several.",
    replace("seconds[kind][stage]", "seconds[kind][rank]"),
)
timeline.mistake(
    "Your W waits for nothing but its rank. It needs I of its own stage.",
    replace('return [("I", stage, i)]', "return []"),
)
timeline.mistake(
    "Your backwards wait for one of their own kind. Where one stage splits them and the other does not, B waits for I, "
    "or I for B.",
    replace('due = "I" if ("I", stage + 1, i) in times else "B"', "due = kind"),
)
timeline.mistake(
    "You wait for B of the next stage. It may have been split: then I is what makes the gradient.",
    replace('"I" if ("I", stage + 1, i) in times else "B"', '"B"'),
)
timeline.mistake(
    "Where the next stage's backward is split, you wait for its W. The gradient of the inputs is there with I already.",
    replace(
        '"I" if ("I", stage + 1, i) in times else "B"',
        '"W" if any(("I", stage + 1, i) in actions for actions in schedule) else "B"',
    ),
)
timeline.mistake(
    "You take stage % ranks for the rank of a stage. The schedule says which rank has it; there are other ways to "
    "deal stages out.",
    replace("rank_of[need[1]]", "need[1] % len(schedule)"),
)
timeline.mistake(
    "You let the message keep the receiver busy: it takes `hop` after the rank is free. It travels while the rank works.",
    replace(
        f"start = max(start, times[need][1] + {HOP})",
        f"start = max(start, times[need][1]) + {HOP}",
    ),
)
timeline.mistake(
    "You give the start and how long it takes. Start and end are asked for.",
    replace("times[action] = start, free[rank]", "times[action] = start, seconds[kind][stage]")
    + replace("times[need][1]", "sum(times[need])"),
)
timeline.mistake(
    "You take the last rank's number for that of the last stage. With several stages on a rank there are more.",
    replace("max(rank_of, default=0)", "len(schedule) - 1"),
)
timeline.mistake(
    "You take all in order of rank, once. A rank that has to wait is to be asked again when others have moved.",
    replace(
        "                moved = True\n",
        "",
    ),
)


timeline.mistake(
    "Only your activations take `hop` to travel. The gradients that go back do, too.",
    replace(HOP, 'hop * (rank_of[need[1]] != rank and kind == "F")'),
)
timeline.mistake(
    "Only your gradients take `hop` to travel. The activations that go forward do, too.",
    replace(HOP, 'hop * (rank_of[need[1]] != rank and kind != "F")'),
)
timeline.mistake(
    "A schedule that gets stuck raises ValueError; you raise another exception.",
    replace("raise ValueError", "raise RuntimeError"),
)
timeline.mistake(
    "An empty schedule makes your code raise: there is no largest stage. Nobody waits in it, so the answer is an empty dict.",
    replace("max(rank_of, default=0)", "max(rank_of)"),
)
timeline.mistake(
    "Your starts and ends are lists. They are pairs, tuples.",
    replace("times[action] = start, free[rank]", "times[action] = [start, free[rank]]"),
)


for other in (1, -1):
    timeline.equivalent(
        f"timeline: `default=0` → `default={other}`",
        because="without a rank there is no action to be asked of",
    )


@timeline.alternative("each action's start by recursion, what is under way marked")
def _(schedule, seconds, hop=0.0):
    rank_of, previous, all_of_them = {}, {}, set()
    for rank, actions in enumerate(schedule):
        for n, action in enumerate(actions):
            rank_of[action[1]] = rank
            previous[action] = actions[n - 1] if n else None
            all_of_them.add(action)
    last = max(rank_of, default=0)
    times, under_way = {}, set()

    def end(action):
        if action not in all_of_them or action in under_way:
            raise ValueError(f"deadlock at {action}")
        if action in times:
            return times[action][1]
        under_way.add(action)
        kind, stage, i = action
        here = rank_of[stage]
        starts = [0.0]
        if previous[action]:
            starts.append(end(previous[action]))
        if kind == "F" and stage:
            starts.append(end(("F", stage - 1, i)) + (hop if rank_of[stage - 1] != here else 0))
        if kind == "W":
            starts.append(end(("I", stage, i)))
        if kind in "BI":
            starts.append(end(("F", stage, i)))
            if stage < last:
                due = ("I", stage + 1, i)
                due = due if due in all_of_them else ("B", stage + 1, i)
                starts.append(end(due) + (hop if rank_of[stage + 1] != here else 0))
        under_way.remove(action)
        times[action] = max(starts), max(starts) + seconds[kind][stage]
        return times[action][1]

    for action in all_of_them:
        end(action)
    return times


# ------------------------------------------------------------------------------ pipeline_step

pipeline_step = Exercise(
    pipeline.pipeline_step,
    key="pipeline_and_3d.pipeline_step",
    title="A step of a pipeline",
    difficulty=3,
    minutes=60,
    points=5,
    probe=probes.pipelined,
    hints=(
        "For F: get x (an input, or received and `requires_grad_()`), run the stage, send the output on, keep (x, y) "
        "under the micro-batch's number. For B: take them out, receive the gradient of y, `y.backward(gradient)`, "
        "send `x.grad` back.",
        "`dist.isend` returns at once, and gives a handle: keep it, and `wait()` before the function returns. Two "
        "ranks that both wait in `dist.send` for the other to receive wait for ever.",
        "On the last rank the loss takes the output's place, divided by the number of micro-batches for `backward`.",
        (
            "edge cases",
            "Ids on the first rank cannot require grad. gloo sends memory as it lies: `.contiguous()`. What you receive "
            "into has hidden's shape and dtype.",
        ),
    ),
)


def micro(seed, m, shape, dtype):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=F64).to(dtype) for _ in range(m)]


def stepping(schedule, shape=(2, 3), dtype=F32, ids=False, turned=(), **more):
    """A case: rank r has stage r, and its list of the schedule. turned: ranks whose outputs are transposed."""
    world, m = len(schedule), sum(kind == "F" for kind, _, _ in schedule[0])
    generator = torch.Generator().manual_seed(7)
    first = (
        [torch.randint(5, shape[:-1], generator=generator) for _ in range(m)]
        if ids
        else micro(1, m, shape, dtype)
    )
    return on_ranks(
        *(
            call(
                actions=schedule[rank],
                inputs=first if rank == 0 else [],
                targets=micro(2, m, shape, dtype) if rank == world - 1 else [],
                hidden=torch.zeros(shape, dtype=dtype),
                seed=10 + rank,
                ids=ids and rank == 0,
                turned=rank in turned,
                **more,
            )
            for rank in range(world)
        )
    )


@pipeline_step.by_hand
def _():
    # y = 3 · 2 · x. Outputs 6 and 12, losses (6 − 5)² + 6 and (12 − 10)² + 12.
    weights = [torch.tensor([[2.0]]), torch.tensor([[3.0]])]
    for schedule in (gpipe(2, 2), one_f_one_b(2, 2)):
        calls = [
            call(
                actions=schedule[rank],
                inputs=[torch.tensor([[1.0]]), torch.tensor([[2.0]])] if rank == 0 else [],
                targets=[torch.tensor([[5.0]]), torch.tensor([[10.0]])] if rank == 1 else [],
                hidden=torch.zeros(1, 1),
                seed=0,
                weight=weights[rank],
            )
            for rank in range(2)
        ]
        yield (
            on_ranks(*calls),
            {
                "rank 0: losses": [],
                "rank 1: losses": [torch.tensor(7.0), torch.tensor(16.0)],
                "rank 0: gradient of `layer.weight`": torch.tensor([[19.5]]),
                "rank 1: gradient of `layer.weight`": torch.tensor([[13.0]]),
            },
        )


@pipeline_step.cases(6)
def _(draw):
    p, m = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    make = draw(st.sampled_from([gpipe, one_f_one_b]))
    shape = draw(st.sampled_from([(2, 3), (1, 4), (2, 3, 4)]))
    yield stepping(make(p, m), shape, draw(st.sampled_from([F32, F64])), ids=draw(st.booleans()))


def reordered(schedule, order):
    """The same schedule with its micro-batches renumbered."""
    return [[(kind, stage, order[i]) for kind, stage, i in actions] for actions in schedule]


@pipeline_step.edge
def _():
    yield stepping(one_f_one_b(1, 3)), "one rank: no messages"
    yield stepping(one_f_one_b(4, 6)), "four ranks: everyone sends both ways at once"
    yield stepping(gpipe(2, 3), ids=True), "ids of tokens, which need no gradient"
    yield (
        stepping(one_f_one_b(2, 3), (3, 3), turned=(0, 1)),
        "outputs that are transposed in memory",
    )
    yield stepping(gpipe(3, 2), dtype=F64), "float64"
    yield stepping(gpipe(2, 2), dtype=torch.bfloat16), "bfloat16"
    yield stepping(one_f_one_b(2, 3), full=True), "gradients from before: they are added to"
    yield stepping(one_f_one_b(2, 2), again=True), "two steps"
    yield stepping(reordered(one_f_one_b(2, 4), [2, 0, 3, 1])), "micro-batches in another order"
    backwards = [
        [a for a in actions if a[0] == "F"] + [a for a in actions if a[0] == "B"][::-1]
        for actions in gpipe(2, 3)
    ]
    yield stepping(backwards), "GPipe with the last micro-batch's backward first"
    yield stepping(one_f_one_b(2, 8)), "eight micro-batches, of which two are alive"


pipeline_step.contract(
    contracts.messages(
        [stepping(gpipe(3, 4)), stepping(one_f_one_b(3, 4))],
        limit=8,
        says="at most two messages from each rank for each micro-batch",
        probe=probes.pipelined,
    )
)
pipeline_step.contract(
    contracts.collectives(
        [stepping(one_f_one_b(2, 3))],
        limit=0,
        says="point-to-point messages only",
        probe=probes.pipelined,
    )
)

pipeline_step.mistake(
    "The gradients are those of the sum of the losses: divide each by the number of micro-batches before its backward.",
    replace("y = y / n_microbatches", "pass"),
)
pipeline_step.mistake(
    "You divide by the number of ranks. The mean is over the micro-batches.",
    replace("y = y / n_microbatches", "y = y / (last + 1)"),
)
pipeline_step.mistake(
    "Your losses are Python numbers. Tensors without axes are asked for, detached.",
    replace("losses[i] = y.detach()", "losses[i] = y.item()"),
)
pipeline_step.mistake(
    "The losses that you return are divided already: return each micro-batch's own.",
    replace(
        "                losses[i] = y.detach()\n",
        "",
        "y = y / n_microbatches\n",
        "y = y / n_microbatches\n                losses[i] = y.detach()\n",
    ),
)
pipeline_step.mistake(
    "The losses that you return still hold their graphs: detach them.",
    replace("losses[i] = y.detach()", "losses[i] = y"),
)
pipeline_step.mistake(
    "You send with `dist.send`, which waits for the receiver. In 1F1B a rank sends forward while its neighbour sends "
    "backward, and both wait for ever: `dist.isend`, and wait later.",
    replace(
        "forward_sends[i] = _sent(y.detach(), rank + 1, i)",
        "dist.send(y.detach().contiguous(), rank + 1, tag=i)",
        "                forward_sends.pop(i).wait()  # it has arrived: its gradient is here\n            y.back",
        "                pass\n            y.back",
        "backward_sends.append(_sent(x.grad, rank - 1, i))",
        "dist.send(x.grad.contiguous(), rank - 1, tag=i)",
    ),
)
pipeline_step.mistake(
    "The gradient of the stage's input is never sent: the rank before waits for it.",
    replace(
        "            if rank > 0:\n                backward_sends.append(_sent(x.grad, rank - 1, i))\n",
        "",
    ),
)
pipeline_step.mistake(
    "You ask for gradients of the first rank's inputs. Ids are integers and can have none; nobody needs them.",
    replace(
        "inputs[i] if rank == 0 else _received(hidden, rank - 1, i).requires_grad_()",
        "(inputs[i] if rank == 0 else _received(hidden, rank - 1, i)).requires_grad_()",
    ),
)
pipeline_step.mistake(
    "What you receive does not require grad, so backward ends there, and there is no gradient to send back.",
    replace("(hidden, rank - 1, i).requires_grad_()", "(hidden, rank - 1, i)"),
)
pipeline_step.mistake(
    "You run all forwards before all backwards, whatever the actions say: that holds every micro-batch's activations.",
    replace(
        "in actions:\n        if",
        "in sorted(actions, key=lambda action: action[0] == 'B'):\n        if",
    ),
)
pipeline_step.mistake(
    "You return the mean of the losses. Each micro-batch's is asked for, in a list.",
    replace(
        "return [losses[i] for i in sorted(losses)]",
        "return [torch.stack(list(losses.values())).mean()] if losses else []",
    ),
)
pipeline_step.mistake(
    "Your losses come in the order in which they were computed, which the actions decide: return them by micro-batch.",
    replace("sorted(losses)", "losses"),
)
pipeline_step.mistake(
    "You send tensors as they lie in memory. A transposed one arrives with its numbers in another order, or not at all: "
    "send `.contiguous()`.",
    replace(
        "_sent(y.detach(), rank + 1, i)",
        "dist.isend(y.detach().as_strided(y.T.shape, y.T.stride()).T if False else torch.as_strided(y.detach(), "
        "y.shape, torch.empty(y.shape).stride()), rank + 1, tag=i)",
    ),
)
pipeline_step.mistake(
    "You send the output as it lies in memory. One that is not contiguous is refused: send `.contiguous()`.",
    replace("_sent(y.detach(), rank + 1, i)", "dist.isend(y.detach(), rank + 1, tag=i)"),
)
pipeline_step.mistake(
    "You receive into float32, whatever hidden's dtype is: the bytes of another dtype are read as float32.",
    replace(
        "_received(hidden, rank - 1, i)",
        "_received(hidden.float(), rank - 1, i)",
    ),
)
pipeline_step.mistake(
    "Outputs and their inputs stay in your dictionary after their backward: take them out (`pop`), or 1F1B holds as "
    "much as GPipe.",
    replace("alive.pop(i)", "alive[i]"),
)
pipeline_step.mistake(
    "Outputs and their inputs stay in your dictionary after their backward: take them out (`pop`), or 1F1B holds as "
    "much as GPipe.",
    replace(
        "            y = stage(x)\n", "            y = stage(x)\n            alive[~i] = x, y\n"
    ),
)
pipeline_step.mistake(
    "All inputs are received into one tensor. The next one overwrites what the backward of an earlier one needs: a new "
    "tensor for each.",
    replace(
        "    alive: dict",
        "    buffer = torch.empty_like(hidden, memory_format=torch.contiguous_format)\n    alive: dict",
        "_received(hidden, rank - 1, i).requires_grad_()",
        "(dist.recv(buffer, rank - 1, tag=i), buffer.detach().requires_grad_())[1]",
    ),
)
pipeline_step.mistake(
    "Inputs and gradients are all received into one tensor, and overwrite what the backward of an earlier input needs: a "
    "new tensor for each message.",
    replace(
        "    alive: dict",
        "    buffer = torch.empty_like(hidden, memory_format=torch.contiguous_format)\n    alive: dict",
        "_received(hidden, rank - 1, i).requires_grad_()",
        "(dist.recv(buffer, rank - 1, tag=i), buffer.detach().requires_grad_())[1]",
        "_received(hidden, rank + 1, i)",
        "(dist.recv(buffer, rank + 1, tag=i), buffer)[1]",
    ),
)
pipeline_step.mistake(
    "You drop the gradients that were there. A step of accumulation adds to them; who wants them gone says so.",
    replace(
        "    n_microbatches =",
        "    stage.zero_grad()\n    n_microbatches =",
    ),
)
pipeline_step.mistake(
    "You take the micro-batch whose forward came last, not the one that the action names.",
    replace("x, y = alive.pop(i)", "x, y = alive.popitem()[1]"),
)
pipeline_step.mistake(
    "You take the oldest micro-batch, not the one that the action names. A schedule may run backwards in another order.",
    replace("x, y = alive.pop(i)", "x, y = alive.pop(next(iter(alive)))"),
)
pipeline_step.mistake(
    "You begin backward on the last rank with ones for the output, and leave the loss out.",
    replace("y = y / n_microbatches", "y = (alive_y := stage(x)).sum() / n_microbatches"),
)
pipeline_step.mistake(
    "You do not wait for your last messages. Without its handle gloo may drop one, and nobody keeps its memory: wait "
    "before you return.",
    replace("    for work in backward_sends:\n        work.wait()\n", ""),
)
pipeline_step.mistake(
    "You ask each time for the shape of what comes. It is known: hidden has it, and every message costs a latency.",
    replace(
        "forward_sends[i] = _sent(y.detach(), rank + 1, i)",
        "dist.send(torch.tensor(y.shape), rank + 1, tag=1000 + i)\n"
        "                forward_sends[i] = _sent(y.detach(), rank + 1, i)",
        "            x = inputs[i] if",
        "            if rank > 0:\n"
        "                dist.recv(torch.zeros(hidden.dim(), dtype=torch.int64), rank - 1, tag=1000 + i)\n"
        "            x = inputs[i] if",
    ),
    cost=True,
)


pipeline_step.mistake(
    "You end with a barrier. All ranks then wait for the slowest, and nobody has asked for it: waiting for your own "
    "messages is enough.",
    replace("        work.wait()\n", "        work.wait()\n    dist.barrier()\n"),
    cost=True,
)
for mutant, because in (
    ("`kind == 'F'` → `kind != 'F'` [#1]", "each micro-batch is once forward and once backward"),
    ("`y.detach()` → `y` [#1]", "a message has no graph, and its handle goes with the micro-batch"),
    ("`losses[i]` → `losses[i + 1]` [#1]", "the numbers only put the losses in order"),
    ("`losses[i]` → `losses[i - 1]` [#1]", "the numbers only put the losses in order"),
):
    pipeline_step.equivalent(f"pipeline_step: {mutant}", because=because)


@pipeline_step.alternative(
    "pairs of messages by batch_isend_irecv, all sends waited for at the end"
)
def _(stage, actions, inputs, targets, loss_fn, hidden):
    me, n = dist.get_rank(), dist.get_world_size()
    m = len({i for _, _, i in actions})
    pending, graphs, found = [], {}, [None] * m if me == n - 1 else []

    def exchange(op, x, peer, tag):
        return dist.batch_isend_irecv([dist.P2POp(op, x, peer, tag=tag)])

    def receive(peer, tag):
        x = torch.zeros(hidden.shape, dtype=hidden.dtype)
        for work in exchange(dist.irecv, x, peer, tag):
            work.wait()
        return x

    for kind, _, i in actions:
        if kind == "F":
            x = inputs[i] if me == 0 else receive(me - 1, i).requires_grad_(True)
            out = stage(x)
            if me == n - 1:
                out = loss_fn(out, targets[i])
                found[i] = out.detach().clone()
            else:
                pending += exchange(dist.isend, out.detach().contiguous(), me + 1, i)
            graphs[i] = (x, out)
        else:
            x, out = graphs[i]
            del graphs[i]
            grad = torch.tensor(1 / m, dtype=out.dtype) if me == n - 1 else receive(me + 1, i)
            torch.autograd.backward(out, grad)
            if me:
                pending += exchange(dist.isend, x.grad.contiguous(), me - 1, i)
            del x, out
    for work in pending:
        work.wait()
    return found


# ------------------------------------------------------------------------------ mesh_coordinates

mesh_coordinates = Exercise(
    device_mesh.mesh_coordinates,
    key="pipeline_and_3d.mesh_coordinates",
    probe=probes.a_tuple,
    title="Where a rank stands in a mesh",
    difficulty=1,
    minutes=10,
    points=1,
    hints=(
        "With sizes (2, 4), ranks 0 to 3 are the first row: their last coordinate runs from 0 to 3.",
        "The last coordinate is rank % size. What is left for the axes before it is rank // size.",
        (
            "edge cases",
            "A rank below 0, or one as large as the product of the sizes, does not exist.",
        ),
    ),
)


@mesh_coordinates.by_hand
def _():
    yield call(5, (2, 4)), (1, 1)
    yield call(7, (2, 2, 2)), (1, 1, 1)
    yield call(5, (2, 2, 2)), (1, 0, 1)
    yield call(4, (2, 3)), (1, 1)
    yield call(3, (8,)), (3,)


@mesh_coordinates.cases(30)
def _(draw):
    sizes = tuple(draw(draws.distinct_sizes(draw(st.integers(1, 4)), low=1, high=7)))
    world = 1
    for size in sizes:
        world *= size
    yield call(draw(st.integers(0, world - 1)), sizes)


@mesh_coordinates.edge
def _():
    yield call(0, (1,)), "a mesh of one rank"
    yield call(5, (1, 6, 1)), "axes of size one"
    yield call(11, [3, 4]), "sizes may be a list"
    yield call(16383, (8, 16, 16, 8)), "the last of 16,384 ranks"
    yield call(6, (2, 3)), "there is no such rank"
    yield call(-1, (2, 3)), "no negative ranks"


ROW_MAJOR = replace(
    "reversed(sizes)", "sizes", "tuple(reversed(coordinates))", "tuple(coordinates)"
)
mesh_coordinates.mistake(
    "You let the first coordinate change fastest. Row-major is the other way: neighbours differ on the last axis.",
    ROW_MAJOR,
)
mesh_coordinates.mistake(
    "The coordinates come out back to front: you work from the last axis, so turn the result round.",
    replace("tuple(reversed(coordinates))", "tuple(coordinates)"),
)
mesh_coordinates.mistake(
    "You take any rank. One that the mesh does not have raises ValueError.",
    replace("not 0 <= rank < prod(sizes)", "False"),
)
mesh_coordinates.mistake(
    "You let negative ranks through: Python's divmod makes coordinates of them, of another rank.",
    replace("0 <= rank <", "rank <"),
)
mesh_coordinates.mistake(
    "You take the rank after the last one: ranks count from 0, so the product of the sizes is none.",
    replace("rank < prod", "rank <= prod"),
)
mesh_coordinates.mistake(
    "You keep the rank and take its remainder on every axis. After each axis go on with the quotient.",
    replace("rank, coordinate = divmod(rank, size)", "coordinate = rank % size"),
)
mesh_coordinates.mistake(
    "You have quotient and remainder the wrong way round: the remainder is the coordinate.",
    replace("rank, coordinate = divmod", "coordinate, rank = divmod"),
)
mesh_coordinates.mistake(
    "A rank that does not exist raises ValueError, not IndexError.",
    replace("ValueError", "IndexError"),
)


@mesh_coordinates.mistake(
    "You divide by the axis itself. A coordinate is rank // stride % size, and the stride of an axis is the product of the sizes *after* it."
)
def _(rank, sizes):
    if not 0 <= rank < torch.Size(sizes).numel():
        raise ValueError("no such rank")
    return tuple(rank // size % size for size in sizes)


@mesh_coordinates.mistake(
    "Your stride of an axis is the size of the next one. With more than two axes it is the product of all sizes after it."
)
def _(rank, sizes):
    if not 0 <= rank < torch.Size(sizes).numel():
        raise ValueError("no such rank")
    return tuple(rank // step % size for size, step in zip(sizes, [*sizes[1:], 1], strict=True))


@mesh_coordinates.mistake(
    "You take the rank after the last one: ranks count from 0, so the product of the sizes is none."
)
def _(rank, sizes):
    stride = torch.Size(sizes).numel()
    if not 0 <= rank <= stride:
        raise ValueError(rank)
    found = []
    for size in sizes:
        stride //= size
        found.append(rank // stride)
        rank %= stride
    return tuple(found)


@mesh_coordinates.mistake(
    "You divide by the stride and take no remainder, so coordinates are larger than their axes: rank // stride % size."
)
def _(rank, sizes):
    stride = torch.Size(sizes).numel()
    if not 0 <= rank < stride:
        raise ValueError(rank)
    found = []
    for size in sizes:
        stride //= size
        found.append(rank // stride)
    return tuple(found)


mesh_coordinates.mistake(
    "Your coordinates count from 1. They begin at 0, as ranks do.",
    replace("coordinates.append(coordinate)", "coordinates.append(coordinate + 1)"),
)


@mesh_coordinates.mistake("A rank that does not exist raises ValueError, not IndexError.")
def _(rank, sizes):
    if rank < 0:
        raise ValueError(rank)
    places = torch.cartesian_prod(*(torch.arange(size) for size in sizes)).view(-1, len(sizes))
    return tuple(places[rank].tolist())


mesh_coordinates.mistake(
    "You return a list. Coordinates are a tuple: only that is an index of one element.",
    replace("tuple(reversed(coordinates))", "coordinates[::-1]"),
)


@mesh_coordinates.alternative("from the first axis, by strides")
def _(rank, sizes):
    stride = torch.Size(sizes).numel()
    if rank not in range(stride):
        raise ValueError(rank)
    found = ()
    for size in sizes:
        stride //= size
        found += (rank // stride % size,)
    return found


@mesh_coordinates.alternative("ask torch")
def _(rank, sizes):
    import numpy as np

    if rank < 0:
        raise ValueError("negative")
    return tuple(int(i) for i in np.unravel_index(rank, tuple(sizes)))


# ------------------------------------------------------------------------------ mesh_group

mesh_group = Exercise(
    device_mesh.mesh_group,
    key="pipeline_and_3d.mesh_group",
    title="The group along an axis",
    difficulty=1,
    minutes=10,
    points=2,
    hints=(
        "All coordinates stay as they are but one, which runs from 0 to sizes[axis] − 1.",
        "One step along an axis is as many ranks as the product of the sizes after it: its stride.",
        "Go back to coordinate 0 on the axis: rank − coordinate · stride. Then step.",
        ("edge cases", "Axis −1 is the last one: what is `sizes[axis + 1 :]` then?"),
    ),
)


@mesh_group.by_hand
def _():
    yield call(5, (2, 4), 1), [4, 5, 6, 7]
    yield call(5, (2, 4), 0), [1, 5]
    yield call(5, (2, 4), -1), [4, 5, 6, 7]
    yield call(3, (2, 2, 2), 1), [1, 3]


@mesh_group.cases(30)
def _(draw):
    n = draw(st.integers(1, 4))
    sizes = tuple(draw(draws.distinct_sizes(n, low=1, high=6)))
    world = 1
    for size in sizes:
        world *= size
    yield call(draw(st.integers(0, world - 1)), sizes, draw(st.integers(-n, n - 1)))


@mesh_group.edge
def _():
    yield call(2, (3,), 0), "one axis: everybody"
    yield call(4, (2, 1, 3), 1), "an axis of size one: the rank alone"
    yield call(4, (2, 1, 3), -3), "the first axis, counted from the end"
    yield call(4, [2, 3], 0), "sizes may be a list"
    yield call(6, (2, 3), 0), "there is no such rank"
    yield call(-1, (2, 3), 0), "no negative ranks"
    yield call(1, (2, 3), 2), "there is no such axis"
    yield call(1, (2, 3), -3), "there is no such axis"


mesh_group.mistake(
    "Your steps are 1 on every axis. Only along the last axis are a group's ranks neighbours.",
    replace("prod(sizes[axis % len(sizes) + 1 :])", "1"),
)
mesh_group.mistake(
    "Your stride counts the sizes before the axis. In row-major order it is the product of those after it.",
    replace("sizes[axis % len(sizes) + 1 :]", "sizes[: axis % len(sizes)]"),
)
mesh_group.mistake(
    "Your stride counts the axis itself as well: it is the product of the sizes *after* it.",
    replace("len(sizes) + 1 :", "len(sizes) :"),
)
mesh_group.mistake(
    "A negative axis goes wrong: for −1, `axis + 1` is 0, and the slice has all sizes.",
    replace("axis % len(sizes) + 1", "axis + 1"),
)
mesh_group.mistake(
    "A negative axis equals none of the axes that you count from 0, and you repeat the rank. Add len(sizes) to it.",
    replace("first + i * stride for", "(first + i * stride if axis >= 0 else rank) for"),
)
mesh_group.mistake(
    "You take the whole block, with the ranks that differ on later axes. A group has one rank for each coordinate on "
    "this axis: go by the stride.",
    replace(
        "[first + i * stride for i in range(sizes[axis])]",
        "[i for i in range(prod(sizes)) if i // (sizes[axis] * stride) == rank // (sizes[axis] * stride)]",
    ),
)
mesh_group.mistake(
    "You begin at the rank itself. The group begins at coordinate 0, wherever in it the rank stands.",
    replace("rank - coordinate * stride", "rank"),
)
mesh_group.mistake(
    "You leave the rank itself out. It is a member of its group.",
    replace("for i in range(sizes[axis])]", "for i in range(sizes[axis]) if i != coordinate]"),
)
mesh_group.mistake(
    "You vary all other axes and keep this one: those are the ranks that it does *not* talk to along it.",
    replace(
        "return [first + i * stride for i in range(sizes[axis])]",
        "return [r for r in range(prod(sizes)) if mesh_coordinates(r, sizes)[axis] == coordinate]",
    ),
)
mesh_group.mistake(
    "The rank comes first in your group. Groups are in the order of the coordinate, the same on every member.",
    replace(
        "return [first + i * stride for i in range(sizes[axis])]",
        "return sorted([first + i * stride for i in range(sizes[axis])], key=lambda r: (r != rank, r))",
    ),
)


mesh_group.mistake(
    "The rank comes first in your group, and then you go round. Groups are in the order of the coordinate, the same on every "
    "member.",
    replace(
        "first + i * stride for i in range(sizes[axis])",
        "first + (coordinate + i) % sizes[axis] * stride for i in range(sizes[axis])",
    ),
)
mesh_group.mistake(
    "Your group is in falling order. It is in the order of the coordinate, from 0 on.",
    replace("for i in range(sizes[axis])", "for i in reversed(range(sizes[axis]))"),
)
mesh_group.mistake(
    "You take the neighbours along the axis only. The group has every rank that differs from this one on that axis alone.",
    replace(
        "for i in range(sizes[axis])", "for i in range(sizes[axis]) if abs(i - coordinate) <= 1"
    ),
)
mesh_group.mistake(
    "You refuse negative axes. They count from the end: −1 is the last one.",
    replace(
        "    coordinate =",
        "    if axis < 0:\n        raise IndexError(axis)\n    coordinate =",
    ),
)
mesh_group.mistake(
    "An axis that does not exist raises IndexError, not ValueError.",
    replace(
        "    coordinate =",
        "    if not -len(sizes) <= axis < len(sizes):\n        raise ValueError(axis)\n    coordinate =",
    ),
)
mesh_group.mistake(
    "You wrap the axis around: `axis % len(sizes)` makes an axis of every number. One that does not exist raises IndexError.",
    replace(
        "mesh_coordinates(rank, sizes)[axis]", "mesh_coordinates(rank, sizes)[axis % len(sizes)]"
    )
    + replace("range(sizes[axis])", "range(sizes[axis % len(sizes)])"),
)


@mesh_group.alternative("an arange, as DeviceMesh does it")
def _(rank, sizes, axis):
    world = torch.Size(sizes).numel()
    if not 0 <= rank < world:
        raise ValueError("no such rank")
    rows = torch.arange(world).view(*sizes).movedim(axis, -1).reshape(-1, sizes[axis])
    return next(row for row in rows.tolist() if rank in row)


@mesh_group.alternative("all ranks whose other coordinates are the same")
def _(rank, sizes, axis):
    mine = list(device_mesh.mesh_coordinates(rank, sizes))
    mine[axis] = None
    found = []
    for other in range(torch.Size(sizes).numel()):
        theirs = list(device_mesh.mesh_coordinates(other, sizes))
        theirs[axis] = None
        if theirs == mine:
            found.append(other)
    return found


# ------------------------------------------------------------------------------ zigzag_positions

zigzag_positions = Exercise(
    context_parallel.zigzag_positions,
    key="pipeline_and_3d.zigzag_positions",
    title="The same causal work for every rank",
    difficulty=2,
    minutes=10,
    points=2,
    hints=(
        "Two ranks are four chunks: 0 1 2 3. Rank 0 has 0 and 3, rank 1 has 1 and 2.",
        "Rank r has chunks r and 2n − 1 − r of 2n chunks.",
        ("edge cases", "A length that 2n does not divide raises ValueError; 0 divides."),
    ),
)


@zigzag_positions.by_hand
def _():
    yield call(0, 2, 4), torch.tensor([0, 3])
    yield call(1, 2, 8), torch.tensor([2, 3, 4, 5])
    yield call(0, 1, 2), torch.tensor([0, 1])
    yield call(2, 4, 16), torch.tensor([4, 5, 10, 11])


@zigzag_positions.cases(20)
def _(draw):
    n = draw(st.integers(1, 6))
    yield call(draw(st.integers(0, n - 1)), n, 2 * n * draw(st.integers(1, 5)))


@zigzag_positions.edge
def _():
    yield call(3, 4, 8), "chunks of one token; the middle ones are neighbours"
    yield call(1, 2, 0), "no tokens"
    yield call(0, 2, 6), "six tokens are no four chunks"
    yield call(0, 4, 4), "four ranks need eight chunks"
    yield call(0, 3, 7), "seven tokens are no six chunks"
    yield call(0, 3, 9), "as many chunks as ranks are not enough"
    yield call(15, 16, 131072), "16 ranks, 131,072 tokens"


CAT = "torch.cat([chunks[rank], chunks[2 * world_size - 1 - rank]])"
zigzag_positions.mistake(
    "You hold one contiguous piece. The last rank's queries then see nearly all keys, and the first's nearly none.",
    replace(CAT, "torch.cat([chunks[2 * rank], chunks[2 * rank + 1]])"),
)
zigzag_positions.mistake(
    "You take chunks r and r + n: both are later for a later rank, so its work is more. The second is counted from the end.",
    replace("chunks[2 * world_size - 1 - rank]", "chunks[world_size + rank]"),
)
for mirrored in (  # with rank 0's at the beginning, or after the end
    "chunks[(2 * world_size - rank) % (2 * world_size)]",
    "chunks[rank] + 2 * (world_size - rank) * len(chunks[rank])",
):
    zigzag_positions.mistake(
        "You count one too few from the end: the mirror of chunk r among 2n is 2n − 1 − r.",
        replace("chunks[2 * world_size - 1 - rank]", mirrored),
    )
zigzag_positions.mistake(
    "Your second chunk runs backwards. Positions inside a chunk keep their order.",
    replace("chunks[2 * world_size - 1 - rank]])", "chunks[2 * world_size - 1 - rank].flip(0)])"),
)
zigzag_positions.mistake(
    "Your late chunk comes first. Positions are in ascending order.",
    replace(CAT, "torch.cat([chunks[2 * world_size - 1 - rank], chunks[rank]])"),
)
zigzag_positions.mistake(
    "You deal tokens out one by one: every n-th. That is nearly balanced too (striped), but here a rank has two contiguous chunks.",
    replace(CAT, "torch.arange(length)[rank::world_size]"),
)
zigzag_positions.mistake(
    "You deal tokens out one by one, to the last rank and back. The work is balanced, but here a rank has two contiguous "
    "chunks: cut the sequence into 2n of them, and go there and back once.",
    replace(CAT, "torch.arange(length).view(-1, 2 * world_size)[:, [rank, -1 - rank]].flatten()"),
)
zigzag_positions.mistake(
    "You cut into as many chunks as there are ranks, so that one rank has two of them and another none. Cut into twice as many.",
    replace(
        CAT,
        "torch.cat([torch.arange(length).chunk(world_size)[i] for i in {rank, world_size - 1 - rank}])",
    ),
)
zigzag_positions.mistake(
    "You check that the ranks divide the length. There are two chunks for each: 2n must divide it.",
    replace(
        "if length % (2 * world_size):", "if length % world_size:", ".chunk(", ".tensor_split("
    ),
)
zigzag_positions.mistake(
    "Your positions count from 1. The first token of the sequence has position 0.",
    replace(CAT, f"{CAT} + 1"),
)
zigzag_positions.mistake(
    "You return the two chunks as two rows. The positions are one row, one chunk after the other.",
    replace("torch.cat([", "torch.stack(["),
)
for kind in ("float", "int"):
    zigzag_positions.mistake(
        "Your positions have another dtype than int64, which is what indices have.",
        replace(CAT, f"{CAT}.{kind}()"),
    )


@zigzag_positions.mistake(
    "You check that the ranks divide the length. There are two chunks for each: 2n must divide it."
)
def _(rank, world_size, length):
    if length % world_size:
        raise ValueError(length)
    size = length // (2 * world_size)
    ends = rank * size, (2 * world_size - 1 - rank) * size
    return torch.cat([torch.arange(end, end + size) for end in ends])


zigzag_positions.mistake(
    "You take a length that cannot be cut into equal chunks, and some ranks have more than others, or nothing. Raise ValueError.",
    replace("if length % (2 * world_size):", "if False:", ".chunk(", ".tensor_split("),
)


@zigzag_positions.alternative("two ranges")
def _(rank, world_size, length):
    size, left = divmod(length, 2 * world_size)
    if left:
        raise ValueError("not equal")
    late = 2 * world_size - 1 - rank
    return torch.tensor(
        [*range(rank * size, rank * size + size), *range(late * size, late * size + size)],
        dtype=torch.int64,
    )


@zigzag_positions.alternative("rows of a table")
def _(rank, world_size, length):
    if length % (2 * world_size) != 0:
        raise ValueError("not equal")
    return torch.arange(length).view(2 * world_size, -1)[[rank, -1 - rank]].flatten()


# ------------------------------------------------------------------------------ ring_attention

ring_attention = Exercise(
    context_parallel.ring_attention,
    key="pipeline_and_3d.ring_attention",
    title="Ring attention",
    difficulty=3,
    minutes=45,
    points=5,
    probe=probes.on_ranks,
    hints=(
        "The queries stay. In step s this rank has the keys of rank (rank − s) % n; after each step but the last, "
        "send them on to rank + 1 and receive those of rank − 1.",
        "`online_softmax(maximum, total, output, scores, values)` gives the state after further keys. Start with "
        "−inf, 0 and 0; the result is output / total.",
        "The mask compares *positions*: `positions[owner] > positions[rank][:, None]` is the future.",
        "One message for a step: `torch.stack([k, v])`. `exchange(out, to, into, source)` of chapter 16 sends and "
        "receives at once.",
        (
            "random cases",
            "Accumulate in float32, in float64 where that is the dtype, and cast at the end.",
        ),
        (
            "contracts",
            "n − 1 messages, each one rank's keys and values; never more than two ranks' at a time.",
        ),
    ),
)


def ring_case(
    world,
    T,
    D,
    *,
    B=1,
    H=1,
    dtype=F32,
    seed=0,
    scale=1.0,
    layout="zigzag",
    turned=False,
    offset=0.0,
):
    """A case: q, k, v of a sequence of T tokens, cut as `layout` says."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(B, H, T, D, generator=generator, dtype=F64) for _ in range(3))
    q, v = q * scale, v + offset
    if layout == "zigzag":
        positions = torch.stack([zigzag(rank, world, T) for rank in range(world)])
    elif layout == "mixed":
        positions = torch.randperm(T, generator=generator).view(world, -1)
    else:
        positions = torch.arange(T).view(world, -1)
    calls = []
    for own in positions:
        parts = [x[:, :, own].to(dtype) for x in (q, k, v)]
        if turned:
            parts = [draws.scattered(x) for x in parts]
        calls.append((*parts, positions))
    return on_ranks(*calls)


@ring_attention.by_hand
def _():
    one = torch.zeros(1, 1, 1, 1)
    v = [torch.full((1, 1, 1, 1), value) for value in (2.0, 4.0)]
    positions = torch.tensor([[0], [1]])
    yield (
        on_ranks((one, one, v[0], positions), (one, one, v[1], positions)),
        {"rank 0: result": v[0], "rank 1: result": torch.full((1, 1, 1, 1), 3.0)},
    )
    yield (
        on_ranks((one, one, v[0], positions.flip(0)), (one, one, v[1], positions.flip(0))),
        {"rank 0: result": torch.full((1, 1, 1, 1), 3.0), "rank 1: result": v[1]},
    )


@ring_attention.cases(6)
def _(draw):
    world = draw(st.integers(1, 4))
    yield ring_case(
        world,
        2 * world * draw(st.integers(1, 2)),
        draw(st.integers(1, 5)),
        B=draw(st.integers(1, 2)),
        H=draw(st.integers(1, 3)),
        dtype=draw(st.sampled_from([F32, F64])),
        seed=draw(st.integers(0, 99)),
        layout=draw(st.sampled_from(["zigzag", "plain", "mixed"])),
    )


@ring_attention.edge
def _():
    yield ring_case(1, 4, 3), "one rank alone"
    yield ring_case(3, 6, 2, layout="plain"), "contiguous pieces"
    yield ring_case(2, 8, 3, layout="mixed"), "positions in any order"
    yield (
        ring_case(2, 4, 3, H=2, scale=400.0),
        "scores of several hundreds: exp overflows without a maximum",
    )
    yield (
        ring_case(2, 8, 3, H=2, scale=400.0, layout="mixed", seed=3),
        "large scores, positions in any order",
    )
    yield ring_case(3, 12, 4, B=2, turned=True), "q, k and v are not contiguous"
    yield (
        ring_case(4, 64, 8, dtype=BF16, scale=80.0),
        "bfloat16 with large scores, which need float32",
    )
    yield ring_case(2, 8, 3, dtype=F64, seed=5), "float64 all the way"


RING = ring_case(4, 32, 256)
RINGS = [RING, ring_case(3, 12, 16, B=2, H=2), ring_case(3, 12, 16, dtype=BF16)]
SIX = ring_case(6, 48, 256)  # of six, all keys are far more than two and a step's temporaries


def kv_bytes(case):
    k = case.calls[0].args[1]
    return 2 * k.numel() * k.element_size()


ring_attention.contract(
    contracts.messages(
        RINGS, limit=lambda case: case.world - 1, says="n − 1 messages from each rank"
    )
)
ring_attention.contract(
    contracts.sends(
        RINGS,
        limit=lambda case: (case.world - 1) * kv_bytes(case),
        says="each rank sends one rank's keys and values n − 1 times",
    )
)
ring_attention.contract(
    contracts.peak_on_ranks(
        [SIX],
        limit=lambda case: 2 * kv_bytes(case) + 7 * kv_bytes(case) // 2,  # and seven like q
        says="no rank holds more than two ranks' keys and values beside its own",
    )
)
ring_attention.contract(contracts.collectives([RING], limit=0, says="point-to-point messages only"))

WORKS = "works = dist.batch_isend_irecv([sending, dist.P2POp(dist.irecv, arriving, left)])"
MERGE = "maximum, total, out = online_softmax(maximum, total, out, scores, values)"

ring_attention.mistake(
    "You leave the mask out: queries see the future.",
    replace("masked_fill(future, -torch.inf)", "clone()"),
)
ring_attention.mistake(
    "You mask every block as if the keys were this rank's own. The keys' positions are those of the rank they come "
    "from: `positions[owner]`.",
    replace("positions[(rank - step) % world_size]", "positions[rank]"),
)
ring_attention.mistake(
    "You take the keys for those of rank + step. They travel to the right: what is here after s steps was "
    "rank (rank − s) % n's.",
    replace("(rank - step) % world_size", "(rank + step) % world_size"),
)
ring_attention.mistake(
    "A query does not see itself: the key at its own position is allowed, only later ones are not.",
    replace("> positions[rank]", ">= positions[rank]"),
)
ring_attention.mistake(
    "You number a rank's tokens as if each had one contiguous piece, rank · t on. Where the sequence was dealt out "
    "otherwise, only `positions` says where a token stands.",
    replace(
        "future = positions[(rank - step) % world_size] > positions[rank][:, None]",
        "here = torch.arange(q.shape[2])\n"
        "        future = here + (rank - step) % world_size * len(here) > (here + rank * len(here))[:, None]",
    ),
)
ring_attention.mistake(
    "You stop a step early: n ranks are n − 1 messages, but n blocks to compute with.",
    replace("for step in range(world_size):", "for step in range(max(1, world_size - 1)):"),
)
ring_attention.mistake(
    "You divide the scores by D. They are divided by its square root.",
    replace("q.shape[-1] ** -0.5", "q.shape[-1] ** -1.0"),
)
ring_attention.mistake(
    "You mask the past and keep the future: a query sees keys that are no later than itself.",
    replace("> positions[rank]", "< positions[rank]"),
)
ring_attention.mistake(
    "You forget to divide the scores by √D.",
    replace("q.to(dtype) * q.shape[-1] ** -0.5", "q.to(dtype)"),
)
ring_attention.mistake(
    "You add exp(score) without a maximum: large scores overflow, and the result is NaN.",
    replace(
        MERGE,
        "total = total + scores.exp().sum(-1)\n        out = out + scores.exp() @ values",
    ),
)
ring_attention.mistake(
    "Where the maximum grows you do not rescale what was added up before: multiply sums and output by "
    "exp(old − new).",
    replace(
        MERGE,
        "new = torch.maximum(maximum, scores.amax(-1))\n"
        "        weights = (scores - new.clamp(min=-1e30)[..., None]).exp()\n"
        "        maximum, total, out = new, total + weights.sum(-1), out + weights @ values",
    ),
)
ring_attention.mistake(
    "You average the blocks' softmaxes. Their sums differ: keep maximum and total, and divide once, at the end.",
    replace(
        MERGE,
        "weights = scores.softmax(-1).nan_to_num()\n"
        "        total, out = total + 1, out + weights @ values",
    ),
)
ring_attention.mistake(
    "You accumulate in the inputs' dtype. In bfloat16 sums lose digits, in float16 they overflow: use float32 inside.",
    replace("dtype = torch.promote_types(q.dtype, torch.float32)", "dtype = q.dtype"),
)
for scaled in ("q.to(dtype) * q.shape[-1] ** -0.5", "q.to(dtype) / q.shape[-1] ** 0.5"):
    ring_attention.mistake(
        "You accumulate in float32 whatever comes: float64 inputs lose half of their digits.",
        replace(
            "torch.promote_types(q.dtype, torch.float32)",
            "torch.float32",
            "q.to(dtype) * q.shape[-1] ** -0.5",
            scaled,
        ),
    )
ring_attention.mistake(
    "The result has the dtype of the accumulators: cast it back to q's.",
    replace("(out / total[..., None]).to(q.dtype)", "out / total[..., None]"),
)
ring_attention.mistake(
    "You do not divide by the sum of the weights at the end.",
    replace("(out / total[..., None])", "out"),
)
ring_attention.mistake(
    "What arrives is never used: each step computes with the rank's own keys. Take the new ones over.",
    replace("            travelling = arriving", "            pass"),
)
ring_attention.mistake(
    "Every rank receives first and sends afterwards: all wait in a circle. Start both, then wait.",
    replace(
        "sending = dist.P2POp(dist.isend, travelling, right)",
        "dist.recv(arriving, left)",
        WORKS,
        "dist.send(travelling, right)\n            travelling = arriving",
        "        if works:\n            travelling = arriving\n",
        "",
    ),
)
ring_attention.mistake(
    "The values are right, but keys and values go as two messages a step: stack them, one α less each time.",
    replace(
        "sending = dist.P2POp(dist.isend, travelling, right)",
        "sending = [dist.P2POp(dist.isend, x, right) for x in travelling]",
        "dist.batch_isend_irecv([sending, dist.P2POp(dist.irecv, arriving, left)])",
        "dist.batch_isend_irecv([*sending, *(dist.P2POp(dist.irecv, x, left) for x in arriving)])",
    ),
    cost=True,
)


for wide in ("dtype", "torch.float64"):
    ring_attention.mistake(
        "The values are right, but you convert keys and values before you send them, and more bytes travel. Send them in "
        "their own dtype, and convert what has arrived.",
        replace("torch.stack([k, v])", f"torch.stack([k, v]).to({wide})"),
        cost=True,
    )
LAST = "You send once more after the last step. A block goes on n − 1 times; one rank alone sends nothing."
STEPS = "if step < world_size - 1:"
TRAVELS = "works = dist.batch_isend_irecv([sending, dist.P2POp(dist.irecv, arriving, left)])"
ring_attention.mistake(LAST, replace(STEPS, "if True:"))
ring_attention.mistake(
    LAST,
    replace(
        STEPS,
        "if True:",
        TRAVELS,
        "exchange(travelling, right, arriving, left)",
        "        if works:\n            travelling = arriving\n",
        "        travelling = arriving\n",
        "        keys, values = travelling.to(dtype)\n",
        "        keys, values = kept.to(dtype)\n",
        "        works = []\n",
        "        works, kept = [], travelling\n",
    ),
)
ring_attention.mistake(LAST, replace(STEPS, "if world_size > 1:"), cost=True)
ring_attention.mistake(
    "The values are right, but the queries travel too. They stay where they are: keys and values come to them.",
    replace(
        "torch.stack([k, v])",
        "torch.stack([k, v, q])",
        "keys, values = travelling.to(dtype)",
        "keys, values, _ = travelling.to(dtype)",
    ),
    cost=True,
)


ring_attention.equivalent(
    "ring_attention: `torch.promote_types(q.dtype, torch.float32)` → "
    "`torch.promote_types(torch.float32, q.dtype)`",
    because="promotion does not depend on the order",
)
ring_attention.equivalent(
    "ring_attention: `q.shape[:-1]` → `q.shape[:0]`",
    because="one −inf for all rows is as good as one for each: the first block's maxima replace it",
)
for there, then in (
    ("torch.zeros_like(maximum)", "torch.ones_like(maximum)"),
    ("torch.zeros_like(queries)", "torch.ones_like(queries)"),
    ("torch.zeros_like(queries)", "queries"),
):
    ring_attention.equivalent(
        f"ring_attention: `{there}` → `{then}`",
        because="each query sees itself in the first block, which scales what was there by exp(−inf) = 0",
    )


def plain(q, keys, values, future):
    scores = (q @ keys.mT * q.shape[-1] ** -0.5).masked_fill(future, -torch.inf)
    return scores.softmax(-1) @ values


@ring_attention.mistake(
    "You gather all keys and values on every rank: that is what a long context has no room for, and it is a "
    "collective. Pass one rank's on at a time.",
    cost=True,
)
def _(q, k, v, positions):
    dtype = torch.promote_types(q.dtype, F32)
    n, rank = dist.get_world_size(), dist.get_rank()
    parts = [torch.empty_like(torch.stack([k, v])) for _ in range(n)]
    dist.all_gather(parts, torch.stack([k, v]))
    keys, values = torch.cat(parts, dim=3).to(dtype)
    future = positions.flatten() > positions[rank][:, None]
    return plain(q.to(dtype), keys, values, future).to(q.dtype)


@ring_attention.mistake(
    "You hold keys and values of too many ranks at once. Who keeps what comes by, to compute at the end, holds them all: "
    "use a block and let it go.",
    cost=True,
)
def _(q, k, v, positions):
    dtype = torch.promote_types(q.dtype, F32)
    n, rank = dist.get_world_size(), dist.get_rank()
    blocks, order = [torch.stack([k, v])], [rank]
    for step in range(n - 1):
        received = torch.empty_like(blocks[0])
        exchange(blocks[-1], (rank + 1) % n, received, (rank - 1) % n)
        blocks.append(received)
        order.append((rank - step - 1) % n)
    keys, values = torch.cat(blocks, dim=3).to(dtype)
    future = positions[order].flatten() > positions[rank][:, None]
    return plain(q.to(dtype), keys, values, future).to(q.dtype)


@ring_attention.alternative("compute, then exchange; two results are merged by their log-sum-exp")
def _(q, k, v, positions):
    dtype = torch.promote_types(q.dtype, F32)
    n, rank = dist.get_world_size(), dist.get_rank()
    both, out, lse = torch.stack([k, v]), None, None
    for step in range(n):
        keys, values = both.to(dtype)
        future = positions[(rank - step) % n] > positions[rank][:, None]
        scores = (q.to(dtype) @ keys.mT / q.shape[-1] ** 0.5).masked_fill(future, -torch.inf)
        block = scores.logsumexp(-1, keepdim=True)
        result = (scores - block.clamp(min=-1e30)).exp() @ values
        if out is None:
            out, lse = result, block
        else:
            new = torch.logaddexp(lse, block)
            out = out * (lse - new).exp() + result * (block - new).exp()
            lse = new
        if step < n - 1:
            received = torch.empty_like(both)
            exchange(both, (rank + 1) % n, received, (rank - 1) % n)
            both = received
    return out.to(q.dtype)


@ring_attention.alternative("around the ring the other way")
def _(q, k, v, positions):
    dtype = torch.promote_types(q.dtype, F32)
    n, rank = dist.get_world_size(), dist.get_rank()
    block, maximum = torch.stack([k, v]), torch.full(q.shape[:3], -torch.inf, dtype=dtype)
    total, out = torch.zeros_like(maximum), torch.zeros(q.shape, dtype=dtype)
    for step in range(n):
        future = positions[(rank + step) % n] > positions[rank][:, None]
        scores = (q.to(dtype) @ block[0].to(dtype).mT) * q.shape[3] ** -0.5
        scores = scores.masked_fill(future, -torch.inf)
        maximum, total, out = online_softmax(maximum, total, out, scores, block[1].to(dtype))
        if step < n - 1:
            arriving = torch.empty_like(block)
            exchange(block, (rank - 1) % n, arriving, (rank + 1) % n)
            block = arriving
    return (out / total[..., None]).to(q.dtype)


@ring_attention.alternative("skip blocks that lie wholly in the future")
def _(q, k, v, positions):
    dtype = torch.promote_types(q.dtype, F32)
    n, rank = dist.get_world_size(), dist.get_rank()
    mine = positions[rank]
    state = (
        torch.full(q.shape[:3], -torch.inf, dtype=dtype),
        torch.zeros(q.shape[:3], dtype=dtype),
        torch.zeros(q.shape, dtype=dtype),
    )
    pair = torch.stack((k, v))
    for step in range(n):
        theirs = positions[(rank - step) % n]
        if theirs.min() <= mine.max():
            scores = torch.einsum("bhqd,bhkd->bhqk", q.to(dtype), pair[0].to(dtype))
            scores = scores / q.shape[-1] ** 0.5
            scores = torch.where(theirs[None, :] <= mine[:, None], scores, -torch.inf)
            state = online_softmax(*state, scores, pair[1].to(dtype))
        if step + 1 < n:
            into = torch.empty_like(pair)
            works = [dist.isend(pair, (rank + 1) % n), dist.irecv(into, (rank - 1) % n)]
            for work in works:
                work.wait()
            pair = into
    return (state[2] / state[1].unsqueeze(-1)).to(q.dtype)


# ------------------------------------------------------------------------------ top_k_router

top_k_router = Exercise(
    expert_parallel.top_k_router,
    key="pipeline_and_3d.top_k_router",
    title="A router and its balance",
    difficulty=2,
    minutes=25,
    points=3,
    gradients=("logits",),
    hints=(
        "`logits.sort(dim=-1, descending=True, stable=True).indices[:, :k]` leaves the lower number first in a tie.",
        "Gates: gather the probabilities of the chosen, and divide by their sum.",
        "f: `experts.flatten().bincount(minlength=E)` in the dtype of the softmax, over `experts.numel()`. P: the mean of the softmax over tokens. "
        "The loss is E times the sum of the products.",
        (
            "random cases",
            "Compute in float32 for bfloat16 logits; the gates are cast back, the loss is not.",
        ),
    ),
)


@top_k_router.by_hand
def _():
    log = torch.tensor([[1.0, 2.0, 1.0], [1.0, 1.0, 6.0]]).log()
    yield (
        call(log, 2),
        (
            torch.tensor([[2 / 3, 1 / 3], [6 / 7, 1 / 7]]),
            torch.tensor([[1, 0], [2, 0]]),
            torch.tensor(
                3
                * (
                    2 / 4 * (1 / 4 + 1 / 8) / 2
                    + 1 / 4 * (1 / 2 + 1 / 8) / 2
                    + 1 / 4 * (1 / 4 + 3 / 4) / 2
                )
            ),
        ),
    )
    yield (
        call(torch.zeros(2, 4), 1),
        (torch.ones(2, 1), torch.zeros(2, 1, dtype=torch.int64), torch.tensor(1.0)),
    )


@top_k_router.cases(16)
def _(draw):
    T, E = draw(draws.distinct_sizes(2, low=1, high=7))
    dtype = draw(st.sampled_from([F32, F64, BF16]))
    yield call(draw(draws.tensors((T, E), dtype)), draw(st.integers(1, E)))


@top_k_router.edge
def _():
    yield call(torch.zeros(3, 5), 2), "all equal: the lowest numbers"
    yield call(torch.tensor([[1.0, 3.0, 3.0, 0.0, 3.0]]), 2), "a tie at the border"
    yield call(torch.tensor([[500.0, 0.0, -500.0]]), 3), "probabilities that are 0 in float32"
    yield call(torch.tensor([[-500.0, 0.0, 500.0]]), 3), "equal probabilities of other logits"
    yield call(torch.tensor([[0.5, 2.0, 1.0]]).half(), 2), "float16"
    yield call(torch.tensor([[9.0, 1.0, 0.0, 0.0]] * 3), 1), "three experts that nobody chose"
    yield call(torch.arange(12.0).view(4, 3).T, 2), "not contiguous"
    yield call(torch.tensor([[0.5, 0.25, 2.0]], dtype=F64), 3), "every expert"
    generator = torch.Generator().manual_seed(0)
    yield (
        call(torch.randn(300, 4, generator=generator).to(BF16), 2),
        "bfloat16: a mean over 300 tokens",
    )


top_k_router.contract(
    contracts.constant_kernels(
        [
            call(torch.arange(float(T * E)).view(T, E).sin(), 2)
            for T, E in ((3, 4), (24, 4), (24, 32))
        ],
        says="no Python loop over tokens or experts",
    )
)
GATES = "gates = chosen / chosen.sum(dim=-1, keepdim=True)"
SORT = "logits.sort(dim=-1, descending=True, stable=True).indices[:, :k]"
top_k_router.mistake(
    "Your gates do not sum to one: divide the probabilities of the chosen experts by their sum.",
    replace(GATES, "gates = chosen"),
)
top_k_router.mistake(
    "You take a sigmoid of each logit. The gates come from the softmax over all experts.",
    replace("wide.softmax(dim=-1)", "wide.sigmoid()"),
)
top_k_router.mistake(
    "Your softmax runs over the tokens. Each token chooses among experts: the last axis.",
    replace("wide.softmax(dim=-1)", "wide.softmax(dim=0)"),
)
top_k_router.mistake(
    "In a tie your higher number comes first. Of equal logits the lower number does: a stable sort.",
    replace(SORT, f"logits.shape[1] - 1 - {SORT.replace('logits.sort', 'logits.flip(-1).sort')}"),
)
top_k_router.mistake(
    "You sort the probabilities. Those of very different logits may both be 0 in float32, and then look like a tie: "
    "sort the logits.",
    replace("logits.sort(", "probabilities.sort("),
)
top_k_router.mistake(
    "You convert bfloat16 alone to float32. float16 is computed in float32 as well.",
    replace(
        "torch.promote_types(logits.dtype, torch.float32)",
        "torch.float32 if logits.dtype == torch.bfloat16 else logits.dtype",
    ),
)
top_k_router.mistake(
    "You choose the experts with the lowest logits: sort them falling.",
    replace("descending=True", "descending=False"),
)
top_k_router.mistake(
    "Your chosen experts are in the order of their numbers; they come by falling logits.",
    replace(SORT, SORT + ".sort(dim=-1).values"),
)
top_k_router.mistake(
    "The loss lacks the factor E, without which its best value would depend on the number of experts.",
    replace("loss = E * ", "loss = "),
)
top_k_router.mistake(
    "You divide the counts by the number of tokens. Each makes k choices: f is a part of all T · k.",
    replace("/ experts.numel()", "/ len(experts)"),
)
top_k_router.mistake(
    "In the loss your f counts first choices only. All T · k choices count, as many as a token has.",
    replace(
        "experts.flatten().bincount(minlength=E).to(wide.dtype) / experts.numel()",
        "experts[:, 0].bincount(minlength=E).to(wide.dtype) / len(experts)",
    ),
)
top_k_router.mistake(
    "For f you take the mean probabilities once more. f counts what was chosen.",
    replace("(f * probabilities", "(probabilities.mean(dim=0) * probabilities"),
)
top_k_router.mistake(
    "For P you take only the probabilities of what was chosen. It is the mean of the whole softmax.",
    replace(
        "probabilities.mean(dim=0)",
        "torch.zeros_like(probabilities).scatter(1, experts, chosen).mean(dim=0)",
    ),
)
top_k_router.mistake(
    "You sum the probabilities over the tokens, so that the loss grows with the batch: P is their mean.",
    replace("probabilities.mean(dim=0)", "probabilities.sum(dim=0)"),
)
top_k_router.mistake(
    "No gradient comes through your loss: P must not be detached, or nothing balances.",
    replace("probabilities.mean(dim=0)", "probabilities.detach().mean(dim=0)"),
)
top_k_router.mistake(
    "You count with `bincount` alone: if the last experts were chosen by nobody, it is too short. Give it minlength.",
    replace("bincount(minlength=E)", "bincount()"),
)
for ranked in ("logits", "wide", "probabilities"):
    top_k_router.mistake(
        "You choose by `topk`, which promises no order among equals. Of equal logits the lower number comes first: a stable "
        "sort, falling.",
        replace(SORT, f"{ranked}.topk(k, dim=-1).indices"),
    )
top_k_router.mistake(
    "The numbers of your experts have another dtype than int64, which is what indices have.",
    replace(
        "return gates.to(logits.dtype), experts,", "return gates.to(logits.dtype), experts.int(),"
    ),
)
top_k_router.mistake(
    "Your loss is a mean over the experts. It is their sum, times E.",
    replace("loss = E * (f", "loss = 1 / E * (f"),
)
WIDE_LOGITS = "logits.to(torch.promote_types(logits.dtype, torch.float32))"
LOW_LOSS = (
    "Your loss has the logits' dtype, in which bfloat16 has two or three digits. It has the dtype that is computed in: float32 "
    "for bfloat16 logits."
)
top_k_router.mistake(LOW_LOSS, replace(WIDE_LOGITS, "logits"))
top_k_router.mistake(LOW_LOSS, replace("experts, loss", "experts, loss.to(logits.dtype)"))
top_k_router.mistake(
    "Your softmax runs in the logits' dtype: in bfloat16 its probabilities have two or three digits. Convert the logits "
    "first.",
    replace("wide.softmax(dim=-1)", "logits.softmax(dim=-1).to(wide.dtype)"),
)
top_k_router.mistake(
    "Your gates have the dtype that was computed in: cast them to the logits'.",
    replace("gates.to(logits.dtype)", "gates"),
)


@top_k_router.mistake(
    "The values are right, but you go through the tokens or experts in a Python loop: gather, bincount and mean do all "
    "at once.",
    cost=True,
)
def _(logits, k):
    gates, experts, _ = expert_parallel.top_k_router(logits, k)
    wide = logits.to(torch.promote_types(logits.dtype, F32))
    p = wide.softmax(-1)
    loss = wide.new_zeros(())
    for i in range(logits.shape[1]):
        loss = loss + (experts == i).to(wide.dtype).mean() * p[:, i].mean()
    return gates, experts, logits.shape[1] * loss


@top_k_router.alternative("a softmax of the chosen logits alone; one-hot rows")
def _(logits, k):
    wide = logits.double() if logits.dtype == F64 else logits.float()
    E = logits.size(1)
    experts = (-wide).argsort(dim=1, stable=True)[:, :k]
    gates = torch.take_along_dim(wide, experts, 1).softmax(1).type_as(logits)
    hot = torch.zeros_like(wide).scatter(1, experts, 1.0)
    return gates, experts, E * torch.dot(hot.mean(0) / k, torch.softmax(wide, 1).mean(0))


for there, then in (
    ("wide.softmax(dim=-1)", "wide.softmax(dim=1)"),
    ("chosen.sum(dim=-1, keepdim=True)", "chosen.sum(dim=1, keepdim=True)"),
    (
        "logits.sort(dim=-1, descending=True, stable=True)",
        "logits.sort(dim=1, descending=True, stable=True)",
    ),
    (
        "logits.sort(dim=-1, descending=True, stable=True)",
        "logits.sort(descending=True, stable=True)",
    ),
):
    top_k_router.equivalent(
        f"top_k_router: `{there}` → `{then}`",
        because="logits have two axes, and the last is sort's default",
    )
for there, then in (
    (
        "logits.sort(dim=-1, descending=True, stable=True)",
        "logits.sort(dim=-1, descending=True)",
    ),
    ("stable=True", "stable=False"),
):
    top_k_router.equivalent(
        f"top_k_router: `{there}` → `{then}`",
        because="torch sorts stably on a CPU whether it is asked to or not",
    )
top_k_router.equivalent(
    "top_k_router: `torch.promote_types(logits.dtype, torch.float32)` → "
    "`torch.promote_types(torch.float32, logits.dtype)`",
    because="promotion does not depend on the order",
)


# ------------------------------------------------------------------------------ expert_dispatch

expert_dispatch = Exercise(
    expert_parallel.expert_dispatch,
    key="pipeline_and_3d.expert_dispatch",
    title="Tokens to their experts and back",
    difficulty=3,
    minutes=50,
    points=5,
    probe=probes.dispatched,
    hints=(
        "Flatten `chosen`: choice c belongs to token c // k. A stable argsort puts the choices in the order of "
        "experts, and so of ranks: expert e lives on rank e // m.",
        "Counts first: how many rows do I send for each expert? `dist.all_to_all_single` of these n · m numbers "
        "tells every rank what will come.",
        "`exchange_rows(x[order // k], sent, received)` sends the rows. They come by rank, and within a rank by "
        "expert: sort them once more, by expert, and remember how to undo it.",
        "Results go back with `exchange_rows(results, received, sent)`, in the order in which you sent. Multiply by "
        "`gates.flatten()[order]` and `index_add` them to their tokens.",
        (
            "edge cases",
            "Capacity: number the choices of each expert 0, 1, 2, … as they come; keep those below it.",
        ),
        ("contracts", "Three collectives forward, two backward, and no row that is not needed."),
    ),
)


def dispatch_case(
    tokens,
    E,
    k,
    D=3,
    *,
    capacity=None,
    seed=0,
    dtype=F32,
    chosen=None,
    turned=False,
    wide_gates=False,
):
    """A case: `tokens` of each rank, E experts in all, k choices a token.

    wide_gates: they are float64, but all that is multiplied is exact in float32 too, so that it does
    not matter in which of the two the product is made.
    """
    generator = torch.Generator().manual_seed(seed)
    world = len(tokens)
    m = E // world
    weights = torch.randn(E, D, D, generator=generator, dtype=F64).to(dtype)
    calls = []
    for rank, T in enumerate(tokens):
        x = torch.randn(T, D, generator=generator, dtype=F64).to(dtype)
        own = torch.rand(T, E, generator=generator).argsort(1)[:, :k]
        if chosen is not None:
            own = torch.tensor(chosen[rank], dtype=torch.int64).view(T, k)
        gates = torch.rand(T, k, generator=generator, dtype=F64).to(dtype)
        grad = torch.randn(T, D, generator=generator, dtype=F64).to(dtype)
        if wide_gates:
            gates, grad = gates.mul(8).ceil().div(8).to(F64), torch.ones_like(grad)
        if turned:
            x, gates, own = draws.scattered(x), draws.scattered(gates), draws.scattered(own)
        more = {} if capacity is None else {"capacity": capacity}
        calls.append(
            call(
                x=x,
                chosen=own,
                gates=gates,
                weights=[w.clone() for w in weights[rank * m : rank * m + m]],
                grad=grad,
                **more,
            )
        )
    return on_ranks(*calls)


@expert_dispatch.by_hand
def _():
    one, zero = torch.ones(1, 1), torch.zeros(1, 1)
    given = [
        call(x=one * 9, chosen=torch.tensor([[1]]), gates=one * 2, weights=[zero], grad=one),
        call(x=one, chosen=torch.tensor([[1]]), gates=one, weights=[one * 50], grad=one),
    ]
    yield (
        on_ranks(*given),
        {
            "rank 0: result": one * 2,  # 2 · tanh(450)
            "rank 1: result": one,
            "rank 0: gradient of gates": one,
            "rank 0: calls of each expert": [1],
        },
    )


@expert_dispatch.cases(6)
def _(draw):
    world = draw(st.integers(1, 3))
    E = world * draw(st.integers(1, 2))
    yield dispatch_case(
        [draw(st.integers(0, 5)) for _ in range(world)],
        E,
        draw(st.integers(1, E)),
        D=draw(st.integers(1, 4)),
        capacity=draw(st.sampled_from([None, None, 1, 2])),
        seed=draw(st.integers(0, 99)),
        dtype=draw(st.sampled_from([F32, F64])),
    )


@expert_dispatch.edge
def _():
    yield dispatch_case([4, 3], 4, 2), "two experts on each of two ranks"
    yield dispatch_case([3, 0, 4], 3, 2), "a rank without tokens"
    yield (
        dispatch_case([4, 2], 4, 1, chosen=[[2, 2, 2, 2], [2, 2]]),
        "all tokens to one expert: the others get none",
    )
    yield (
        dispatch_case([5, 5], 2, 1, capacity=2, chosen=[[0, 1, 0, 0, 1], [1, 1, 1, 1, 1]]),
        "capacity 2",
    )
    yield dispatch_case([3, 2], 2, 2, capacity=1, seed=4), "capacity 1, two choices a token"
    yield (
        dispatch_case([2, 2], 2, 2, D=1, capacity=1, chosen=[[[0, 1], [1, 0]]] * 2),
        "capacity 1: the first token's second choice comes before the second's first",
    )
    yield dispatch_case([3, 2], 2, 1, capacity=0, seed=4), "capacity 0: everything is dropped"
    yield dispatch_case([4], 4, 3, seed=7), "one rank alone"
    yield dispatch_case([4, 3], 4, 2, turned=True), "x, chosen and gates are not contiguous"
    yield (
        dispatch_case([3, 2], 2, 1, D=1, wide_gates=True),
        "gates of another dtype: the result has x's",
    )
    yield dispatch_case([6, 5, 4, 7], 8, 3, D=2, seed=9), "four ranks, eight experts, three choices"


WIDE = dispatch_case([8, 8, 8, 8], 4, 1, D=128, chosen=[[0, 1, 2, 3, 0, 1, 2, 3]] * 4)
SKEWED = dispatch_case([8, 8], 2, 1, D=128, chosen=[[0, 0, 0, 0, 0, 0, 0, 1]] * 2)
DROPPED = dispatch_case(
    [8, 8], 4, 1, D=128, capacity=4, chosen=[[2, 2, 2, 2, 2, 2, 2, 3], [0, 0, 0, 0, 0, 0, 0, 1]]
)


def rows_needed(case):
    """Bytes of the rows that leave the busiest rank, there or back, in both passes, and of all counts."""
    E = sum(len(c.kwargs["weights"]) for c in case.calls)
    m, world = E // case.world, case.world
    counts = torch.stack([c.kwargs["chosen"].flatten().bincount(minlength=E) for c in case.calls])
    kept = counts.clamp(max=case.calls[0].kwargs.get("capacity"), min=0)
    table = kept.view(world, world, m).sum(2)
    table.fill_diagonal_(0)
    busiest = int((table.sum(0) + table.sum(1)).max())
    return 2 * busiest * 4 * case.calls[0].kwargs["x"].shape[1] + 8 * E * world


expert_dispatch.contract(
    contracts.collectives(
        [WIDE], limit=5, says="three collectives forward, two backward", probe=probes.dispatched
    )
)
expert_dispatch.contract(
    contracts.sends(
        [WIDE, SKEWED, DROPPED],
        limit=rows_needed,
        says="a row travels once for each choice that was not dropped, there and back",
        probe=probes.dispatched,
    )
)

WEIGHTED = "back * gates.flatten()[order, None]"
KEEP = "order = order[place < capacity]"
expert_dispatch.mistake(
    "Your gates are not applied: each result counts as gate · result.",
    replace(WEIGHTED, "back"),
)
expert_dispatch.mistake(
    "No gradient goes to the gates: they are detached, and the router would learn nothing.",
    replace(WEIGHTED, "back * gates.detach().flatten()[order, None]"),
)
expert_dispatch.mistake(
    "You add the experts' results to x. The layer returns the results alone; the residual is the caller's.",
    replace("torch.zeros_like(x).index_add", "x.index_add"),
)
expert_dispatch.mistake(
    "Your rows leave in the order of the tokens. `exchange_rows` sends the first of them to rank 0, the next to rank 1, and so "
    "on: sort the choices by expert first.",
    replace("order = choices.argsort(stable=True)", "order = torch.arange(len(choices))"),
)
expert_dispatch.mistake(
    "Your result has the gates' dtype. It has that of x.",
    replace(
        "torch.zeros_like(x).index_add(0, order // k, weighted.to(x.dtype))",
        "torch.zeros_like(x, dtype=weighted.dtype).index_add(0, order // k, weighted)",
    ),
)
expert_dispatch.mistake(
    "You multiply by the gates in the order of the tokens. The rows are in the order of experts: "
    "`gates.flatten()[order]`.",
    replace("gates.flatten()[order, None]", "gates.flatten()[: len(order), None]"),
)
expert_dispatch.mistake(
    "You scale what goes into the expert. It is not linear: scale what comes out.",
    replace("x[order // k]", "x[order // k] * gates.flatten()[order, None]", WEIGHTED, "back"),
)
expert_dispatch.mistake(
    "You send the results back in the order of experts. The other ranks expect them in the order in which they "
    "sent: undo your sorting.",
    replace("results = results[by_expert.argsort()]", "results = results.clone()"),
)
expert_dispatch.mistake(
    "You undo the sorting by applying it a second time. The inverse of a permutation is its argsort.",
    replace("results[by_expert.argsort()]", "results[by_expert]"),
)
expert_dispatch.mistake(
    "You overwrite a token's result with that of its last choice. A token has k of them: add them up.",
    replace(
        "return torch.zeros_like(x).index_add(0, order // k, weighted.to(x.dtype))",
        "return torch.zeros_like(x).index_put((order // k,), weighted.to(x.dtype))",
    ),
)
expert_dispatch.mistake(
    "You take order % k for the token. Choices are laid out row by row: choice c is of token c // k.",
    replace("x[order // k]", "x[order % k]"),
)
expert_dispatch.mistake(
    "Your capacity keeps the last choices of an expert; the first that come are kept.",
    replace(
        KEEP,
        "order = order[place >= (counts - capacity).repeat_interleave(counts)]",
    ),
)
expert_dispatch.mistake(
    "You ignore the capacity: an expert takes no more than so many choices of a rank.",
    replace("if capacity is not None:", "if False:"),
)
expert_dispatch.mistake(
    "You take capacity 0 for none given: it drops everything. Ask `is not None`.",
    replace("if capacity is not None:", "if capacity:"),
)
expert_dispatch.mistake(
    "Your capacity counts choices of all experts of a rank together. Each expert has its own.",
    replace(
        "(counts.cumsum(0) - counts).repeat_interleave(counts)",
        "(counts.view(world_size, m).sum(1).cumsum(0) - counts.view(world_size, m).sum(1))"
        ".repeat_interleave(counts.view(world_size, m).sum(1))",
        "counts = counts.clamp(max=capacity)",
        "counts = choices[order].bincount(minlength=world_size * m)",
    ),
)
expert_dispatch.mistake(
    "No gradient goes back through your all-to-all. `dist.all_to_all_single` is unknown to autograd; "
    "`exchange_rows` is not.",
    replace(
        "rows = exchange_rows(x[order // k], sent, received)",
        "rows = exchange_rows(x[order // k].detach(), sent, received)",
    ),
)
for nothing in ("part", "torch.zeros_like(part)"):
    expert_dispatch.mistake(
        "You call only experts that got rows. The others' parameters then have no gradient at all, and a rank whose "
        "experts were all left out may miss the all-to-all of backward, for which the others wait: call each, even with "
        "no rows.",
        replace(
            "torch.cat([expert(part) for expert, part in zip(experts, parts, strict=True)])",
            f"torch.cat([expert(p) if len(p) else {nothing.replace('part', 'p')} "
            "for expert, p in zip(experts, parts, strict=True)])",
        ),
    )
expert_dispatch.mistake(
    "Your capacity takes all tokens' first choices before any second one. It counts in the order of `chosen`, row by row: "
    "flatten it as it is, not its transpose.",
    replace(
        "chosen.flatten()",
        "chosen.T.flatten()",
        "x[order // k]",
        "x[order % max(1, len(x))]",
        "gates.flatten()",
        "gates.T.flatten()",
        "index_add(0, order // k",
        "index_add(0, order % max(1, len(x))",
    ),
)
AS_THEY_CAME = "    results = results[by_expert.argsort()]  # as the rows came\n"
for back in (AS_THEY_CAME, ""):
    expert_dispatch.mistake(
        "What you receive comes by rank, and within a rank by expert. You cut it as if it came by expert: with two experts "
        "on a rank, sort the rows by expert first, and undo it before you send back.",
        replace("rows[by_expert].split(", "rows.split(", AS_THEY_CAME, back),
    )
expert_dispatch.mistake(
    "The values are right, but the rows of dropped choices travel, and experts compute with them. What is dropped stays "
    "where it is: leave it out before you count and send.",
    replace(
        "if capacity is not None:",
        "capacity = len(order) if capacity is None else capacity\n    if True:",
        KEEP,
        "kept = place < capacity",
        "counts = counts.clamp(max=capacity)",
        "pass",
        WEIGHTED,
        f"{WEIGHTED} * kept[:, None]",
    ),
    cost=True,
)
expert_dispatch.mistake(
    "You call an expert once for each rank that sent rows. Sort what came by expert, and call each once.",
    replace("expert(part) for", "torch.cat([expert(part[:1]), expert(part[1:])]) for"),
)
expert_dispatch.mistake(
    "You deal experts out like cards, e % n. Expert e lives on rank e // m.",
    replace(
        "choices = chosen.flatten()",
        "choices = chosen.flatten()\n    choices = choices % world_size * m + choices // world_size",
    ),
)
expert_dispatch.mistake(
    "Your result counts dropped choices as if they had gone through: a row that was dropped adds nothing, not x.",
    replace(
        "    return torch.zeros_like(x).index_add(0, order // k, weighted.to(x.dtype))",
        "    y = torch.zeros_like(x).index_add(0, order // k, weighted.to(x.dtype))\n"
        "    gone = torch.ones(len(x)).index_fill(0, order // k, 0.0).to(x.dtype)\n"
        "    return y + gone[:, None] * x",
    ),
)


@expert_dispatch.mistake(
    "The values are right, but every exchange is padded to the fullest: all rows of a rank could go to one expert, so "
    "that you send many that nobody needs. Send uneven counts.",
    cost=True,
)
def _(x, chosen, gates, experts, capacity=None):
    world, m, k = dist.get_world_size(), len(experts), chosen.shape[1]
    choices = chosen.flatten()
    room = torch.tensor([len(choices)])
    dist.all_reduce(room, op=dist.ReduceOp.MAX)
    size = int(room)
    slots = torch.full((world * m, size), -1)
    for e in range(world * m):
        kept = (choices == e).nonzero()[:, 0][:capacity]
        slots[e, : len(kept)] = kept
    order = slots.flatten().clamp(min=0)
    full = (slots.flatten() >= 0).to(x.dtype)[:, None]
    even = [m * size] * world
    sent = x[order // k] if len(x) else x.new_zeros(len(order), x.shape[1]) + 0 * x.sum()
    rows = exchange_rows(sent, even, even).view(world, m, size, x.shape[1])
    results = torch.stack(
        [f(rows[:, i].flatten(0, 1)).view(world, size, x.shape[1]) for i, f in enumerate(experts)],
        dim=1,
    )
    back = exchange_rows(results.flatten(0, 2), even, even)
    if not len(x):
        return x + 0 * (back.sum() + gates.sum())
    return torch.zeros_like(x).index_add(
        0, order // k, (back * full * gates.flatten()[order, None]).to(x.dtype)
    )


expert_dispatch.mistake(
    "The values are right, but you wait at a barrier first: an all-to-all waits for the others by itself, and a "
    "barrier is one collective more.",
    replace(
        "    incoming = torch.empty_like", "    dist.barrier()\n    incoming = torch.empty_like"
    ),
    cost=True,
)
for there, then in (
    ("choices.argsort(stable=True)", "choices.argsort()"),
    ("mine.argsort(stable=True)", "mine.argsort()"),
):
    expert_dispatch.equivalent(
        f"expert_dispatch: `{there}` → `{then}`",
        because="torch sorts stably on a CPU whether it is asked to or not",
    )
for which in ("[#1]", "[#2]"):
    expert_dispatch.equivalent(
        f"expert_dispatch: `stable=True` → `stable=False` {which}",
        because="torch sorts stably on a CPU whether it is asked to or not",
    )
expert_dispatch.equivalent(
    "expert_dispatch: `counts.cumsum(0)` → `counts.cumsum(-1)`", because="counts have one axis"
)
for name in ("counts", "incoming"):
    there = f"{name}.view(world_size, m).sum(1)"
    expert_dispatch.equivalent(
        f"expert_dispatch: `{there}.tolist()` → `{there}`",
        because="exchange_rows makes a list of it, and a tensor without axes serves as a size",
    )
for there, then in (
    ("zip(experts, parts, strict=True)", "zip(experts, parts)"),
    ("strict=True", "strict=False"),
):
    expert_dispatch.equivalent(
        f"expert_dispatch: `{there}` → `{then}`", because="there is a part for each expert"
    )


@expert_dispatch.alternative("lists of rows by expert")
def _(x, chosen, gates, experts, capacity=None):
    world, m = dist.get_world_size(), len(experts)
    lists = [[] for _ in range(world * m)]
    for t, row in enumerate(chosen.tolist()):
        for j, e in enumerate(row):
            if capacity is None or len(lists[e]) < capacity:
                lists[e].append((t, j))
    counts = torch.tensor([len(one) for one in lists])
    theirs = torch.empty_like(counts)
    dist.all_to_all_single(theirs, counts)
    flat = [pair for one in lists for pair in one]
    tokens = torch.tensor([t for t, _ in flat], dtype=torch.int64)
    slots = torch.tensor([j for _, j in flat], dtype=torch.int64)
    out, into = counts.view(world, m).sum(1).tolist(), theirs.view(world, m).sum(1).tolist()
    pieces = list(exchange_rows(x[tokens], out, into).split(theirs.tolist()))
    for i, expert in enumerate(experts):
        mine = pieces[i::m]
        done = expert(torch.cat(mine)).split([len(p) for p in mine])
        pieces[i::m] = done
    back = exchange_rows(torch.cat(pieces), into, out)
    y = torch.zeros_like(x)
    return y.index_add(0, tokens, (back * gates[tokens, slots].unsqueeze(1)).type_as(x))


# ------------------------------------------------------------------------------ plan_parallelism

plan_parallelism = Exercise(
    planning.plan_parallelism,
    key="pipeline_and_3d.plan_parallelism",
    title="A planner",
    difficulty=3,
    minutes=35,
    points=4,
    probe=probes.planned,
    hints=(
        "First all sizes: loops over tp, cp and pp; dp is what is left of the devices, if the division is exact.",
        "For each, the choices within it: ep, chunks, stage, recompute. `itertools.product` is four loops in one.",
        "Keep what fits, as (seconds, layout[1:], layout), and sort: Python compares tuples from the left.",
        (
            "edge cases",
            "Does dp divide the batch? Does ep divide dp · cp? Does pp divide m, where chunks are more than 1?",
        ),
    ),
)

SMALL = {
    "layers": 4,
    "width": 1024,
    "vocab": 5000,
    "ffn": 4096,
    "ffn_matrices": 2,
    "kv": 1.0,
    "batch": 16,
    "context": 1024,
    "experts": 0,
    "active": 0,
    "shared": 0,
    "expert_ffn": 0,
    "nodes": 0,
    "kept": 2.0,
}
FEW = {
    "devices": 4,
    "flops": 1e14,
    "memory": 1.2e9,
    "hbm": 1e12,
    "inside": 1e11,
    "between": 1e10,
    "node": 2,
    "zero_stages": (0, 1),
}
EXPERTS = {"experts": 4, "active": 2, "shared": 1, "expert_ffn": 512}


@plan_parallelism.by_hand
def _():
    yield (
        call(model=SMALL, cluster=FEW | {"devices": 1, "memory": 80e9}),
        {
            "number of layouts": 1,
            "layout 1 (dp, tp, pp, cp, ep, chunks, zero, recompute)": (1, 1, 1, 1, 1, 1, 0, 0),
        },
    )
    yield call(model=SMALL, cluster=FEW | {"memory": 1e6}), {"number of layouts": 0}
    yield (
        call(model=SMALL, cluster=FEW | {"memory": 80e9, "node": 4}),
        {"layout 1 (dp, tp, pp, cp, ep, chunks, zero, recompute)": (4, 1, 1, 1, 1, 1, 1, 0)},
    )


@plan_parallelism.cases(14)
def _(draw):
    model = SMALL | {
        "layers": draw(st.integers(1, 9)),
        "batch": draw(st.sampled_from([4, 6, 16, 24])),
        "context": draw(st.sampled_from([1024, 16384, 40000])),
    }
    if draw(st.booleans()):
        model |= EXPERTS
    cluster = FEW | {
        "devices": draw(st.sampled_from([1, 2, 4, 6, 8, 12])),
        "memory": draw(st.sampled_from([0.6e9, 1.2e9, 3e9, 80e9])),
        "node": draw(st.sampled_from([1, 2, 4])),
        "zero_stages": draw(st.sampled_from([(0,), (1,), (0, 1, 2, 3)])),
    }
    yield call(model=model, cluster=cluster, top=draw(st.sampled_from([1, 5, 40])))


@plan_parallelism.edge
def _():
    yield call(model=SMALL, cluster=FEW, top=1000), "all that fit"
    yield (
        call(model=SMALL | {"batch": 2}, cluster=FEW | {"memory": 3e9}, top=30),
        "dp must divide the batch",
    )
    yield (
        call(model=SMALL | {"layers": 6}, cluster=FEW | {"devices": 6, "memory": 8e9}, top=60),
        "six devices: tp is no 3",
    )
    yield (
        call(model=SMALL | {"layers": 2}, cluster=FEW | {"memory": 8e9}, top=60),
        "no more stages than layers",
    )
    yield call(model=SMALL | EXPERTS, cluster=FEW | {"memory": 8e9}, top=80), "experts over dp"
    yield (
        call(
            model=SMALL | EXPERTS | {"experts": 6},
            cluster=FEW | {"devices": 8, "memory": 8e9},
            top=80,
        ),
        "six experts: ep is 1, 2 or 4",
    )
    long = SMALL | {"context": 32768, "batch": 4}
    yield call(model=long, cluster=FEW | {"memory": 80e9}, top=100), "cp of 1, 2 and 4"
    yield (
        call(model=long | EXPERTS, cluster=FEW | {"memory": 80e9}, top=100),
        "ep may divide dp · cp",
    )
    yield (
        call(model=SMALL | {"context": 16383}, cluster=FEW | {"memory": 80e9}, top=50),
        "a token short of two ranks' least",
    )
    yield (
        call(model=SMALL, cluster=FEW | {"devices": 2, "node": 1, "memory": 8e9}, top=30),
        "nodes of one device",
    )
    yield (
        call(model=SMALL | {"layers": 12}, cluster=FEW | {"memory": 8e9}, top=100),
        "many ways to cut into chunks",
    )
    yield (
        call(model=SMALL, cluster=FEW | {"devices": 12, "node": 6, "memory": 8e9}, top=1000),
        "nodes of six devices: tp is 1, 2 or 4",
    )
    yield (
        call(model=long | {"context": 32770}, cluster=FEW | {"memory": 80e9}, top=100),
        "cp of 4, which does not divide the context",
    )


FULL = sum(planning.memory(planning.Model(**SMALL), planning.Layout()).values()) / planning.USABLE


@plan_parallelism.edge
def _():
    three = SMALL | {"layers": 3}
    yield (
        call(model=three, cluster=FEW | {"memory": 8e9}, top=100),
        "four devices are no pipeline of three layers",
    )
    yield (
        call(model=SMALL, cluster=FEW | {"devices": 1, "memory": FULL, "zero_stages": (0,)}),
        "it fits to the byte",
    )


plan_parallelism.equivalent(
    "plan_parallelism: `model.batch // dp` → `model.batch / dp`",
    because="dp divides the batch here",
)
plan_parallelism.equivalent(
    "plan_parallelism: `n + 1` → `n + 2`", because="no number larger than n divides n"
)
plan_parallelism.equivalent(
    "plan_parallelism: `layout[1:]` → `layout[2:]`",
    because="layouts that differ in tp differ in their all-reduces, and so in time",
)
FITS = "if sum(memory(model, layout).values()) <= USABLE * cluster.memory:"
plan_parallelism.mistake(
    "You plan with all of a device's memory. Only USABLE of it is there for a plan.",
    replace("USABLE * cluster.memory", "cluster.memory"),
)
plan_parallelism.mistake("You do not ask whether a layout fits.", replace(FITS, "if True:"))
plan_parallelism.mistake(
    "Each part of the memory fits for itself. What must fit is their sum.",
    replace("sum(memory(model, layout).values())", "max(memory(model, layout).values())"),
)
plan_parallelism.mistake(
    "You rank by compute alone. A step's time is the sum of all parts.",
    replace(
        "sum(step_seconds(model, cluster, layout).values())",
        "step_seconds(model, cluster, layout)['compute']",
    ),
)
plan_parallelism.mistake(
    "The slowest come first.", replace("sorted(found)[:top]", "sorted(found, reverse=True)[:top]")
)
plan_parallelism.mistake(
    "You take replicas whose number does not divide the batch: some would have no micro-batch where others have one.",
    replace("if model.batch % dp:", "if dp > model.batch:"),
)
plan_parallelism.mistake(
    "You let tensor parallelism leave the node: tp is at most the devices of one.",
    replace("powers_of_two(cluster.node)", "powers_of_two(cluster.devices)"),
)
plan_parallelism.mistake(
    "You ask that tp divide the devices of a node. It is a power of two, at most as many as these: of six, 4 will do.",
    replace(
        "powers_of_two(cluster.node)",
        "[t for t in powers_of_two(cluster.node) if cluster.node % t == 0]",
    ),
)
plan_parallelism.mistake(
    "You ask that cp divide the context. It is a power of two that leaves each rank at least LEAST_TOKENS.",
    replace(
        "powers_of_two(model.context // LEAST_TOKENS)",
        "[c for c in powers_of_two(model.context // LEAST_TOKENS) if model.context % c == 0]",
    ),
)
plan_parallelism.mistake(
    "Your pipelines are powers of two. Any number of stages up to the layers will do, 3 and 35 too.",
    replace("range(1, model.layers + 1)", "powers_of_two(model.layers)"),
)
plan_parallelism.mistake(
    "You leave devices idle: dp · tp · pp · cp must be all of them.",
    replace("if cluster.devices % (tp * cp * pp) == 0", "if cluster.devices >= tp * cp * pp"),
)
plan_parallelism.mistake(
    "Your experts are spread over more ranks than hold the same layers, or unevenly: ep divides dp · cp.",
    replace(" if dp * cp % e == 0", ""),
)
plan_parallelism.mistake(
    "You let ep divide dp alone. The ranks of a context share experts too: ep divides dp · cp.",
    replace("if dp * cp % e == 0", "if dp % e == 0"),
)
plan_parallelism.mistake(
    "You interleave where pp does not divide the micro-batches: chunks is 1 there.",
    replace("pp > 1 and model.batch // dp % pp == 0", "pp > 1"),
)
plan_parallelism.mistake(
    "You cut a stage without a pipeline into chunks. There is nothing to interleave: chunks is 1.",
    replace("pp > 1 and model.batch", "model.batch"),
)
plan_parallelism.mistake(
    "Your chunks are unequal: their number divides the layers of a stage.",
    replace("[c for c in range(1, n + 1) if n % c == 0]", "list(range(1, n + 1))"),
)
plan_parallelism.mistake(
    "In a tie your larger layouts come first, or those with fewer replicas: compare (tp, pp, cp, …) as tuples, the "
    "smaller first.",
    replace(
        "found.append((seconds, layout[1:], layout))",
        "found.append((seconds, tuple(-i for i in layout[1:]), layout))",
    ),
)
plan_parallelism.mistake(
    "Of layouts that take equally long you put those with fewer replicas first. dp is not compared: the smaller (tp, pp, "
    "cp, ep, …) comes first.",
    replace(
        "found.append((seconds, layout[1:], layout))", "found.append((seconds, layout, layout))"
    ),
)
plan_parallelism.mistake(
    "You take only numbers of stages that divide the layers. Any will do, up to the layers.",
    replace(
        "range(1, model.layers + 1)",
        "[p for p in range(1, model.layers + 1) if model.layers % p == 0]",
    ),
)
plan_parallelism.mistake(
    "You leave out recompute = 2, whole layers. It takes longest, and may be all that fits.",
    replace("(0, 1, 2),", "(0, 1),"),
)
plan_parallelism.mistake(
    "You ask whether pp divides the batch. What a replica has are m = batch / dp micro-batches: pp must divide m.",
    replace("model.batch // dp % pp == 0", "model.batch % pp == 0"),
)
plan_parallelism.mistake(
    "You ask LEAST_TOKENS of cp = 1 too. A short context may stay whole: cp = 1 is always there.",
    replace(
        "powers_of_two(model.context // LEAST_TOKENS)",
        "powers_of_two(model.context // LEAST_TOKENS)[: model.context // LEAST_TOKENS]",
    ),
)
plan_parallelism.mistake(
    "Your chunks are powers of two. Any number that divides the layers of a stage will do, 3 and 6 too.",
    replace("for c in range(1, n + 1) if", "for c in powers_of_two(n) if"),
)
plan_parallelism.mistake(
    "Your chunks divide the layers of the model. They cut a stage, and divide its n layers.",
    replace("if n % c == 0", "if model.layers % c == 0"),
)
plan_parallelism.mistake(
    "Your layouts are plain tuples. A Layout has names, which what comes after asks for.",
    replace("layout[1:], layout))", "layout[1:], tuple(layout)))"),
)
plan_parallelism.mistake(
    "You cut layers // pp into chunks. Stages need not have as many: the last one has the head as well. "
    "`layers_of_stage` says how many they have.",
    replace("n, _ = layers_of_stage(model, pp)", "n = model.layers // pp"),
)
plan_parallelism.mistake(
    "You return one layout, not a list of the `top` best.",
    replace(
        "return [layout for _, _, layout in sorted(found)[:top]]",
        "return min(found)[2] if found else None",
    ),
)


@plan_parallelism.alternative("divisors, and a key")
def _(model: planning.Model, cluster: planning.Cluster, top=1):
    p = planning
    divisors = [d for d in range(1, cluster.devices + 1) if cluster.devices % d == 0]
    chosen = {}
    for tp in divisors:
        if tp > cluster.node or tp & (tp - 1):
            continue
        for cp in divisors:
            if cp & (cp - 1) or (cp > 1 and model.context // cp < p.LEAST_TOKENS):
                continue
            for pp in divisors:
                dp, left = divmod(cluster.devices, tp * cp * pp)
                if left or pp > model.layers or model.batch % max(dp, 1):
                    continue
                n = p.layers_of_stage(model, pp)[0]
                for chunks in range(1, n + 1):
                    if n % chunks or (chunks > 1 and (pp == 1 or (model.batch // dp) % pp)):
                        continue
                    for ep in divisors:
                        if ep & (ep - 1) or ep > max(1, model.experts) or dp * cp % ep:
                            continue
                        for zero in cluster.zero_stages:
                            for again in range(3):
                                one = p.Layout(dp, tp, pp, cp, ep, chunks, zero, again)
                                if sum(p.memory(model, one).values()) > p.USABLE * cluster.memory:
                                    continue
                                chosen[one] = sum(p.step_seconds(model, cluster, one).values())
    return sorted(chosen, key=lambda one: (chosen[one], *one[1:]))[:top]
