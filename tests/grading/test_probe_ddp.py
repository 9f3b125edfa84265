"""The probes of chapter 17: what they see, and answers that no declared mistake covers."""

import os
import shutil

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_utils.grading import exercises_of, grade
from course_utils.grading.observing.observe import observe
from course_utils.reference import ddp

EXERCISES = exercises_of("ddp")


@pytest.mark.parametrize("key", EXERCISES)
def test_the_reference_raises_on_no_case(key):
    """In float64 neither: an exception there would leave a tolerance without its oracle."""
    exercise = EXERCISES[key]
    for case in exercise.all_cases():
        for given in (case, case.upcast()):
            seen = observe(exercise.probe, exercise.reference, given)
            assert not seen.raised and not seen.left, (case.why, seen)


def verdict(name, subject):
    return grade(EXERCISES[f"ddp.{name}"], subject)


def test_a_broadcast_of_the_weights_alone_is_rejected():
    def broadcast_parameters(module, src=0):
        for name, x in [*module.named_parameters(), *module.named_buffers()]:
            if "bias" not in name:
                ddp._broadcast([x], src)

    assert verdict("broadcast_parameters", broadcast_parameters).outcome == "failed"


def test_gradients_that_are_averaged_on_one_rank_only_are_rejected():
    def average_gradients(params):
        params = [p for p in params if p.requires_grad]
        before = [None if p.grad is None else p.grad.clone() for p in params]
        ddp.average_gradients(params)
        if dist.get_rank() == 1:
            for p, g in zip(params, before, strict=True):
                p.grad = g

    assert verdict("average_gradients", average_gradients).outcome == "failed"


def test_messages_that_nobody_waits_for_are_rejected():
    class GradientBuckets(ddp.GradientBuckets):
        def finish(self):
            for bucket, flat, _ in self._under_way:
                for p, mean in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                    p.grad = mean.view_as(p).clone()
            self._under_way.clear()

    assert verdict("GradientBuckets", GradientBuckets).outcome == "failed"


def test_a_wrapper_of_torchs_own_passes_for_no_answer():
    """Its buckets hide from its constructor's `cap_bytes`, and unused parameters stop it."""

    class DistributedDataParallel(nn.Module):
        def __init__(self, module, cap_bytes=25 * 2**20):
            super().__init__()
            self.module = module
            self.inner = [nn.parallel.DistributedDataParallel(module)]

        def forward(self, *args, **kwargs):
            return self.inner[0](*args, **kwargs)

        def no_sync(self):
            return self.inner[0].no_sync()

    assert verdict("DistributedDataParallel", DistributedDataParallel).outcome == "failed"


def test_a_step_that_forgets_the_optimizer_is_rejected():
    def no_sync_step(model, batches, optimizer):
        step, optimizer.step = optimizer.step, lambda: None
        loss = ddp.no_sync_step(model, batches, optimizer)
        optimizer.step = step
        return loss

    assert verdict("no_sync_step", no_sync_step).outcome == "failed"


def test_a_file_of_the_whole_model_is_rejected():
    def save_on_rank_zero(model, path):
        if dist.get_rank() == 0:
            torch.save(model, path)
        dist.barrier()

    assert verdict("save_on_rank_zero", save_on_rank_zero).outcome == "failed"


def test_right_answers_in_other_words_pass():
    def average_gradients(params):
        for p in filter(lambda p: p.requires_grad, params):
            p.grad = (p.grad if p.grad is not None else 0 * p.detach()).contiguous()
            p.grad.mul_(1 / dist.get_world_size())
            dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)

    def save_on_rank_zero(model, path):
        wrapped = isinstance(model, nn.parallel.DistributedDataParallel)
        here, there = f"{path}.new", torch.zeros(1)
        try:
            if not dist.get_rank():
                with open(here, "wb") as file:
                    torch.save((model.module if wrapped else model).state_dict(), file)
                there += bool(shutil.move(here, path))
        finally:
            if os.path.exists(here):
                os.remove(here)
            dist.broadcast(there, 0)
        if not there:
            raise OSError("rank 0 has written nothing")

    def no_sync_step(model, batches, optimizer):
        """As nanoGPT does it: by a flag of the wrapper, without a block."""
        optimizer.zero_grad(set_to_none=True)
        samples, total = sum(len(x) for x, _ in batches), torch.zeros(())
        for i, (x, y) in enumerate(batches):
            model.require_backward_grad_sync = i == len(batches) - 1
            loss = (model(x) - y).square().mean() * len(x) / samples
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        return total

    assert verdict("no_sync_step", no_sync_step).outcome == "passed"
    assert verdict("average_gradients", average_gradients).outcome == "passed"
    assert verdict("save_on_rank_zero", save_on_rank_zero).outcome == "passed"
