"""How long a verdict takes: the first in a fresh kernel, and the next ones, for every exercise."""

from statistics import median
from time import perf_counter

from course_utils.grading import every, grade


def main() -> None:
    firsts, agains = [], []
    print(f"{'exercise':<40}{'checks':>8}{'first ms':>10}{'again ms':>10}")
    for key, exercise in every().items():
        times = []
        for _ in range(6):
            start = perf_counter()
            verdict = grade(exercise, *exercise.parts)
            times.append(1000 * (perf_counter() - start))
        firsts.append(times[0])
        agains.append(median(times[1:]))
        print(f"{key:<40}{verdict.ran:>8}{firsts[-1]:>10.1f}{agains[-1]:>10.1f}")
    print(f"{'median':<40}{'':>8}{median(firsts):>10.1f}{median(agains):>10.1f}")


if __name__ == "__main__":
    main()
