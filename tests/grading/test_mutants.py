"""Small wrong versions of every reference must die by the checks, or be argued to be equivalent."""

from pathlib import Path

import pytest
import toys

import course_utils
from course_utils.authoring.counts import count
from course_utils.authoring.mutation import Job, build, digest, mutants, original, run
from course_utils.grading import Exercise, every, grade
from course_utils.grading.judging.judge import checks_of
from course_utils.source.text import source_of

PACKAGE = Path(course_utils.__file__).parent
CPU_SECONDS = 20.0
ON_RANKS_S = 2.0  # by the clock, which several processes share


def engine_digest() -> str:
    """Of all that can change a verdict besides the exercise itself."""
    files = [*PACKAGE.glob("grading/**/*.py"), *PACKAGE.glob("meters/*.py")]
    return digest(*sorted(files))


def jobs_of(exercise: Exercise) -> list[Job]:
    chapter = [
        p
        for p in (PACKAGE / f"{r}/{exercise.chapter}.py" for r in ("reference", "exercises"))
        if p.exists()
    ]
    base = digest(engine_digest(), *chapter, exercise.key)
    return [
        Job(mutant.id, digest(base, mutant.source), (exercise, n, mutant.source))
        for n, part in enumerate(exercise.parts)
        for mutant in [original(source_of(part)), *mutants(source_of(part))]
    ]


def judge(job: Job) -> dict:
    """Grade one mutant: in a process of its own, without jaxtyping's and beartype's checks."""
    exercise, n, source = job.payload
    sources = [source_of(part) for part in exercise.parts]
    sources[n] = source
    built = build("\n\n\n".join(sources), exercise.parts)  # a pair's parts know one another
    objects = built if len(sources) > 1 else [built]
    limit_s, exercise.limit_s = exercise.limit_s, ON_RANKS_S if on_ranks(exercise) else 1.0
    try:
        verdict = grade(exercise, *objects, explain=False)
    finally:
        exercise.limit_s = limit_s
    return {"killed": verdict.outcome == "failed", "rung": verdict.failed_rung or ""}


def on_ranks(exercise: Exercise) -> bool:
    """Is the exercise judged on ranks, in processes of their own?"""
    return exercise.probe.on_ranks


def survivors(exercise: Exercise, cache_dir: Path | None = None) -> tuple[int, list[str]]:
    """How many mutants were made, and the ids of those that pass."""
    outcomes = run(
        jobs_of(exercise),
        judge,
        CPU_SECONDS,
        warm=lambda: checks_of(exercise),
        cache_dir=cache_dir,
        here=on_ranks(exercise),
    )
    errors = [str(o) + o.detail for o in outcomes if o.verdict == "error"]
    assert not errors, "\n".join(errors)
    controls = {original(source_of(part)).id for part in exercise.parts}
    living = [o.id for o in outcomes if o.verdict == "survived"]
    assert controls <= set(living), "the unchanged reference does not pass as a mutant would"
    return len(outcomes) - len(controls), [m for m in living if m not in controls]


def judge_survivors(exercise: Exercise, living: list[str]) -> None:
    unargued = [m for m in living if m not in exercise.equivalents]
    assert not unargued, "mutants pass, and nobody says why:\n" + "\n".join(unargued)
    stale = [m for m in exercise.equivalents if m not in living]
    assert not stale, "arguments for mutants that do not survive:\n" + "\n".join(stale)
    thin = [m for m, why in exercise.equivalents.items() if len(why.split()) < 4]
    assert not thin, f"an argument takes more words than this: {thin}"


@pytest.mark.parametrize("key", every())
def test_mutants_die(key):
    exercise = every()[key]
    made, living = survivors(exercise)
    assert made, "no mutant could be made of the reference"
    judge_survivors(exercise, living)
    count("mutants killed", made - len(living))
    count("mutants that survive, with an argument", len(living))


def test_a_survivor_without_an_argument_fails_the_suite(tmp_path):
    """The toy softmax without its edge cases no longer notices that the maximum is not subtracted."""
    weak = toys.softmax.__class__(
        toys.ref.temperature_softmax, "t", 1, 1, 1, key="toys.temperature_softmax"
    )
    weak._random = list(toys.softmax._random)
    _, living = survivors(weak, tmp_path)
    assert any("amax" in m for m in living)
    with pytest.raises(AssertionError, match="nobody says why"):
        judge_survivors(weak, living)


def test_an_argument_for_a_dead_mutant_fails_the_suite():
    exercise = toys.softmax.__class__(toys.ref.unit_norm, "t", 1, 1, 1, key="toys.unit_norm")
    exercise.equivalent("gone", because="it once was the same thing")
    with pytest.raises(AssertionError, match="do not survive"):
        judge_survivors(exercise, [])
