"""Cases are reproducible: the same seed, the same cases, whatever else is loaded."""

import os
import subprocess
import sys

import pytest
import torch

from course_utils.authoring import proofs
from course_utils.grading import call, draws, every
from course_utils.grading.declaring.draws import collect

DIGEST = """
import hashlib, sys
sys.path.insert(0, {folder!r})
{extra}
import torch

from course_utils.grading import call, draws, every
from course_utils.grading.declaring.draws import collect
from course_utils.grading.pytrees.serialization import dumps
total = hashlib.sha256()
for key, exercise in every().items():
    for case in exercise.all_cases(7):
        total.update(dumps((case.args, case.kwargs)))
print(total.hexdigest())
"""


def cases_digest(folder, extra=""):
    done = subprocess.run(
        [sys.executable, "-c", DIGEST.format(folder=str(folder), extra=extra)],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env=os.environ | {"COURSE_HOME": str(folder / "home")},
    )
    return done.stdout.strip()


def test_the_seed_alone_decides(tmp_path):
    constants = [1000 + 37 * i for i in range(200)]
    (tmp_path / "loaded.py").write_text(f"numbers = {constants}\n")
    assert cases_digest(tmp_path) == cases_digest(tmp_path, "import loaded, json, sqlite3")
    assert not (tmp_path / ".hypothesis").exists(), "the working folder was littered"


def cases_with(exercise, seed):
    return [repr(case.as_tree()) for case in exercise.random_cases(seed)]


def test_another_seed_gives_other_cases():
    """Unless the declaration goes through its whole domain: then every seed gives the same."""
    whole = []
    for key, exercise in every().items():
        if exercise._random and cases_with(exercise, 0) == cases_with(exercise, 1):
            again = [sorted(cases_with(exercise, seed)) for seed in (0, 2, 3)]
            assert again[0] == again[1] == again[2], key
            whole.append(key)
    assert len(whole) <= len(every()) // 10, whole


def test_arguments_drawn_from_annotations():
    """A letter is one size wherever it stands, different letters differ, and overrides win."""
    masked_mean = every()["tensors.masked_mean"].reference

    def body(draw):
        yield call(**draw(draws.from_annotations(masked_mean, B=2)))

    found = collect(body, 10, seed=0)
    assert len(found) == 10
    for case in found:
        x, keep = case.kwargs["x"], case.kwargs["keep"]
        assert x.dtype == torch.float32 and keep.dtype == torch.bool
        assert x.shape[:2] == keep.shape and x.shape[0] == 2
        assert x.shape[1] != x.shape[2]


@pytest.mark.parametrize("shape", [(2, 3), (3, 1, 6), (2, 8, 1), (2, 3, 4), (1, 2, 1, 2)])
def test_a_scattered_tensor_is_one_that_no_view_flattens(shape):
    x = torch.randn(shape)
    found = draws.scattered(x)
    assert torch.equal(found, x)
    assert proofs.no_view_flattens(found)
    with pytest.raises(RuntimeError, match="view"):
        found.view(-1)


@pytest.mark.parametrize("shape", [(), (5,), (1, 5), (3, 1, 1), (0, 1)])
def test_a_tensor_that_any_view_flattens_is_refused(shape):
    with pytest.raises(ValueError, match="a view flattens every tensor of shape"):
        draws.scattered(torch.zeros(shape))
