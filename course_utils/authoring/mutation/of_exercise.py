"""The mutants of an exercise's reference, judged by the exercise's own checks."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from course_utils.grading import Exercise, grade
from course_utils.grading.judging.judge import checks_of
from course_utils.source.text import source_of

from .build import build
from .judge import judged_here, run
from .mutants import mutants, original
from .outcomes import ERROR, SURVIVED, TIME_LIMIT, Job, Outcome

CONTROL_S = 60.0
"""Processor seconds that the unchanged reference may take."""

TIMES, AT_LEAST_S = 4.0, 2.0
"""A mutant may take so many times the reference's processor seconds, and so many more."""

WAITING_S = 30.0
"""By the clock, for one check of a mutant that waits and does not compute."""

ON_RANKS_S, AGAIN_S = 2.0, 10.0
"""By the clock, for one check on ranks; a mutant that takes longer is judged once more, in more time:
the ranks share a machine that may be busy."""


@dataclass(frozen=True)
class Survey:
    """How many mutants were made, and the ids of those that pass."""

    made: int
    living: tuple[str, ...]


def survey(exercise: Exercise) -> Survey:
    """Judge all mutants of the reference's parts, the unchanged parts beside them.

    Raises AssertionError where a judgement failed, or where an unchanged part does not pass as a
    mutant would: then nothing is known of the others.
    """
    checks_of(exercise)  # what is expected is found out once, before the first fork
    controls, others = list(_controls(exercise)), list(_mutants(exercise))
    outcomes = _on_ranks(controls + others) if on_ranks(exercise) else _apart(controls, others)
    errors = [f"{outcome}\n{outcome.detail}" for outcome in outcomes if outcome.verdict == ERROR]
    assert not errors, "\n".join(errors)
    living = [outcome.id for outcome in outcomes if outcome.verdict == SURVIVED]
    dead = [str(o) for o in outcomes[: len(controls)] if o.id not in living]
    assert not dead, f"the unchanged reference does not pass as a mutant would: {dead}"
    return Survey(len(others), tuple(living[len(controls) :]))


def small_wrong_versions_die(exercise: Exercise) -> dict[str, int]:
    """Each mutant of the reference is rejected, or an argument says why it is equivalent.

    How many were made, killed and are surviving. Raises AssertionError, too, for an argument about
    a mutant that does not survive, and for one of less than four words.
    """
    found = survey(exercise)
    assert found.made, "no mutant could be made of the reference"
    judge_survivors(exercise, found.living)
    surviving = len(found.living)
    return {"made": found.made, "killed": found.made - surviving, "surviving": surviving}


def judge_survivors(exercise: Exercise, living: tuple[str, ...]) -> None:
    """Raises AssertionError unless the declared equivalents are just these, each with an argument."""
    unargued = [m for m in living if m not in exercise.equivalents]
    assert not unargued, "mutants pass, and nobody says why:\n" + "\n".join(unargued)
    stale = [m for m in exercise.equivalents if m not in living]
    assert not stale, "arguments for mutants that do not survive:\n" + "\n".join(stale)
    thin = [m for m, why in exercise.equivalents.items() if len(why.split()) < 4]
    assert not thin, f"an argument takes more words than this: {thin}"


def on_ranks(exercise: Exercise) -> bool:
    """Is the exercise judged on ranks, in processes of their own?"""
    return exercise.probe.on_ranks


def _controls(exercise: Exercise) -> Iterator[Job]:
    for number, part in enumerate(exercise.parts):
        mutant = original(source_of(part))
        yield Job(mutant.id, (exercise, number, mutant.source, WAITING_S))


def _mutants(exercise: Exercise) -> Iterator[Job]:
    for number, part in enumerate(exercise.parts):
        for mutant in mutants(source_of(part)):
            yield Job(mutant.id, (exercise, number, mutant.source, WAITING_S))


def _apart(controls: list[Job], others: list[Job]) -> list[Outcome]:
    """Each in a process of its own, in a limit that the unchanged reference sets here and now."""
    first = run(controls, judge, CONTROL_S)
    needed = max(outcome.processor_s for outcome in first)
    limit_s = AT_LEAST_S + TIMES * needed
    return first + run(others, judge, limit_s, clock_s=20 * (WAITING_S + limit_s))


def _on_ranks(jobs: list[Job]) -> list[Outcome]:
    """One after the other, from here: the ranks are started once."""
    outcomes = []
    for job in jobs:
        outcome = judged_here(replace(job, payload=(*job.payload[:3], ON_RANKS_S)), judge)
        if outcome.rung == TIME_LIMIT:
            outcome = judged_here(replace(job, payload=(*job.payload[:3], AGAIN_S)), judge)
        outcomes.append(outcome)
    return outcomes


def judge(job: Job) -> dict[str, Any]:
    """Grade one mutant, without jaxtyping's and beartype's checks: the payload is the exercise, the
    number of the part, its source, and the seconds that one check may take by the clock."""
    exercise, number, source, check_s = job.payload
    sources = [source_of(part) for part in exercise.parts]
    sources[number] = source
    built = build("\n\n\n".join(sources), exercise.parts)  # a pair's parts know one another
    objects = built if len(sources) > 1 else [built]
    limit_s, exercise.limit_s = exercise.limit_s, check_s
    try:
        verdict = grade(exercise, *objects, explain=False)
    finally:
        exercise.limit_s = limit_s
    killed = verdict.outcome == "failed"
    late = killed and verdict.seconds >= check_s
    return {"killed": killed, "rung": TIME_LIMIT if late else verdict.failed_rung or ""}
