"""The book's optimizers against torch's own: fifty steps in float64, and what they keep."""

import copy
import io
from itertools import product

import pytest
import torch
from torch import nn

from course_utils.meters import measure
from course_utils.reference import optimizers as ours

STEPS = 50
SHAPES = ((3, 4), (5,), (), (2, 1, 3), (0, 2))
GROUPS = ((0, 1), (2, 3, 4))


def pairs():
    """(our class, torch's class, options) for every variant that both have."""
    decays, signs = (0.0, 0.1), (False, True)
    for name, wd, maximize in product(("SGD", "ForeachSGD"), decays, signs):
        for momentum, dampening, nesterov in (
            (0.0, 0.0, False),
            (0.9, 0.0, False),
            (0.9, 0.4, False),
            (0.8, 0.0, True),
        ):
            yield (
                name,
                "SGD",
                {
                    "lr": 0.03,
                    "momentum": momentum,
                    "dampening": dampening,
                    "nesterov": nesterov,
                    "weight_decay": wd,
                    "maximize": maximize,
                },
            )
    for name, wd, maximize in product(("AdaGrad", "ForeachAdaGrad"), decays, signs):
        yield name, "Adagrad", {"lr": 0.1, "weight_decay": wd, "maximize": maximize}
    for name, wd, maximize, momentum in product(
        ("RMSProp", "ForeachRMSProp"), decays, signs, (0.0, 0.9)
    ):
        options = {"lr": 0.01, "weight_decay": wd, "maximize": maximize, "momentum": momentum}
        yield name, "RMSprop", options | {"alpha": 0.9, "eps": 1e-3}
    for (name, torchs), wd, maximize, betas, eps in product(
        (
            ("Adam", "Adam"),
            ("ForeachAdam", "Adam"),
            ("AdamW", "AdamW"),
            ("ForeachAdamW", "AdamW"),
        ),
        decays,
        signs,
        ((0.9, 0.999), (0.9, 0.95), (0.0, 0.0)),
        (1e-8, 1e-2),
    ):
        options = {"lr": 0.02, "weight_decay": wd, "maximize": maximize}
        yield name, torchs, options | {"betas": betas, "eps": eps}


def gradients(shapes, missing=True, seed=1):
    """STEPS lists of gradients; the last parameter but one misses every third."""
    generator = torch.Generator().manual_seed(seed)
    for step in range(STEPS):
        grads = [torch.randn(s, dtype=torch.float64, generator=generator) for s in shapes]
        if missing:
            grads[-2] = None if step % 3 == 0 else grads[-2]
            grads[0] = None if step < 2 else grads[0]
        yield grads


def parameters(shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(s, dtype=torch.float64, generator=generator)) for s in shapes]


def build(cls, params, options, groups=GROUPS):
    """The second group with a learning rate of its own and no decay."""
    first, second = ([params[i] for i in group] for group in groups)
    apart = {"params": second, "lr": 0.5 * options["lr"], "weight_decay": 0.0}
    return cls([{"params": first}, apart], **options)


def set_grads(params, grads):
    for p, g in zip(params, grads, strict=True):
        p.grad = None if g is None else g.clone()


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("name, torchs, options", list(pairs()))
def test_step_for_step(name, torchs, options):
    """With groups, missing gradients, a schedule, and a save and load into a fresh optimizer."""
    cls, theirs_cls = getattr(ours, name), getattr(torch.optim, torchs)
    mine, theirs = parameters(SHAPES), parameters(SHAPES)
    a, b = build(cls, mine, options), build(theirs_cls, theirs, options | {"foreach": False})
    for step, grads in enumerate(gradients(SHAPES)):
        if step == STEPS // 2:
            saved = through_a_file(a.state_dict())
            mine = [nn.Parameter(p.detach().clone()) for p in mine]
            a = build(cls, mine, {"lr": 7.0})
            a.load_state_dict(saved)
        for optimizer in (a, b):
            optimizer.param_groups[0]["lr"] = options["lr"] / (1 + step / 20)
        set_grads(mine, grads)
        set_grads(theirs, grads)
        a.step()
        b.step()
        for p, q in zip(mine, theirs, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-14, msg=f"step {step + 1}")


@pytest.mark.parametrize("nesterov, wd", list(product((True, False), (0.0, 0.1))))
def test_muon_is_torchs(nesterov, wd):
    shapes = ((4, 6), (6, 4), (3, 3))
    mine, theirs = parameters(shapes), parameters(shapes)
    options = {"lr": 0.02, "momentum": 0.9, "nesterov": nesterov, "weight_decay": wd}
    a = build(ours.Muon, mine, options, ((0,), (1, 2)))
    b = build(torch.optim.Muon, theirs, options, ((0,), (1, 2)))
    for grads in gradients(shapes):
        set_grads(mine, grads)
        set_grads(theirs, grads)
        a.step()
        b.step()
        for p, q in zip(mine, theirs, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-14)


def test_muon_refuses_what_is_no_matrix():
    with pytest.raises(ValueError, match="for matrices"):
        ours.Muon([nn.Parameter(torch.ones(3))])


def test_nesterov_needs_momentum_and_no_dampening():
    p = nn.Parameter(torch.ones(3))
    for options in ({}, {"momentum": 0.9, "dampening": 0.1}):
        for cls in (ours.SGD, torch.optim.SGD):
            with pytest.raises(ValueError, match="Nesterov"):
                cls([p], lr=0.1, nesterov=True, **options)


@pytest.mark.parametrize("name", ["SGD", "AdaGrad", "RMSProp", "Adam", "AdamW"])
def test_torch_loads_our_state(name):
    """Names of state are torch's: a checkpoint of ours goes on in torch.optim."""
    theirs_cls = getattr(torch.optim, {"AdaGrad": "Adagrad", "RMSProp": "RMSprop"}.get(name, name))
    options = {"momentum": 0.9} if name == "SGD" else {}
    mine, theirs = parameters(SHAPES), parameters(SHAPES)
    a, b = getattr(ours, name)(mine, lr=0.1, **options), theirs_cls(theirs, lr=0.1, **options)
    everything = list(gradients(SHAPES, missing=False))
    for grads in everything[:10]:
        set_grads(mine, grads)
        set_grads(theirs, grads)
        a.step()
        b.step()
    state = copy.deepcopy(a.state_dict())
    if name in ("AdaGrad", "RMSProp"):  # torch counts their steps too, and never uses the count
        for entry in state["state"].values():
            entry["step"] = torch.tensor(10.0)
    saved_groups = b.state_dict()["param_groups"]
    b.load_state_dict({"state": state["state"], "param_groups": saved_groups})
    set_grads(mine, everything[10])
    set_grads(theirs, everything[10])
    a.step()
    b.step()
    for p, q in zip(mine, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["Adam", "ForeachAdam", "AdamW", "ForeachAdamW"])
def test_a_checkpoint_of_torchs_goes_on_in_ours(name):
    """Where parameters have taken different numbers of steps; what was saved is no number of ours."""
    theirs_cls = getattr(torch.optim, name.removeprefix("Foreach"))
    theirs = parameters(SHAPES)
    b = build(theirs_cls, theirs, {"lr": 0.1, "weight_decay": 0.1, "foreach": False})
    everything = list(gradients(SHAPES))
    for grads in everything[:10]:
        set_grads(theirs, grads)
        b.step()
    mine = [nn.Parameter(p.detach().clone()) for p in theirs]
    a = build(getattr(ours, name), mine, {"lr": 7.0})
    a.load_state_dict(through_a_file(b.state_dict()))
    for grads in everything[10:]:
        for params, optimizer in ((mine, a), (theirs, b)):
            set_grads(params, grads)
            optimizer.step()
        for p, q in zip(mine, theirs, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-14)
    for p, q in zip(mine, theirs, strict=True):
        assert torch.equal(a.state[p]["step"], b.state[q]["step"])
        assert a.state[p]["step"].dtype == b.state[q]["step"].dtype


CLASSES = [
    "SGD",
    "ForeachSGD",
    "AdaGrad",
    "ForeachAdaGrad",
    "RMSProp",
    "ForeachRMSProp",
    "Adam",
    "ForeachAdam",
    "AdamW",
    "ForeachAdamW",
]


@pytest.mark.parametrize("name", CLASSES)
def test_gradients_are_left_alone_and_no_graph_is_kept(name):
    params = parameters(((3, 2), (4,)))
    options = {"momentum": 0.9, "nesterov": True} if "SGD" in name else {}
    optimizer = getattr(ours, name)(params, weight_decay=0.1, maximize=True, **options)
    grads = next(gradients(((3, 2), (4,)), missing=False))
    set_grads(params, grads)
    places = [p.data_ptr() for p in params]
    optimizer.step()
    optimizer.step()
    assert [p.data_ptr() for p in params] == places
    assert all(torch.equal(p.grad, g) for p, g in zip(params, grads, strict=True))
    assert all(p.is_leaf and p.requires_grad for p in params)
    state = [t for entry in optimizer.state.values() for t in entry.values()]
    assert not any(isinstance(t, torch.Tensor) and t.requires_grad for t in state)


@pytest.mark.parametrize("name", [name for name in CLASSES if name.startswith("Foreach")])
@pytest.mark.parametrize("wd", [0.0, 0.1])
def test_operations_of_foreach_do_not_grow(name, wd):
    counts = {}
    for n in (2, 20):
        params = parameters([(3, 2)] * n)
        options = {"momentum": 0.9} if name in ("ForeachSGD", "ForeachRMSProp") else {}
        optimizer = getattr(ours, name)(params, weight_decay=wd, **options)
        set_grads(params, next(gradients([(3, 2)] * n, missing=False)))
        optimizer.step()
        with measure() as cost:
            optimizer.step()
        counts[n] = cost.kernels
    assert counts[2] == counts[20] <= 10


def test_newton_schulz_moves_singular_values_towards_one():
    torch.manual_seed(0)
    for shape in ((8, 8), (6, 20), (20, 6)):
        x = torch.randn(shape, dtype=torch.float64)
        y = ours.newton_schulz(x)
        assert y.shape == x.shape
        s = torch.linalg.svdvals(y)
        assert s.max() < 1.3
        assert s[torch.linalg.svdvals(x) > 0.05 * x.norm()].min() > 0.6
        u, _, vt = torch.linalg.svd(x, full_matrices=False)
        diagonal = u.T @ y @ vt.T  # the same singular vectors
        assert torch.allclose(diagonal, diagonal.diagonal().diag(), atol=1e-9)


def test_newton_schulz_is_torchs():
    from torch.optim._muon import (
        DEFAULT_A,
        DEFAULT_B,
        DEFAULT_C,
        EPS,
        _zeropower_via_newtonschulz,
    )

    torch.manual_seed(0)
    for shape in ((5, 9), (9, 5), (4, 4)):
        x = torch.randn(shape)
        theirs = _zeropower_via_newtonschulz(x, (DEFAULT_A, DEFAULT_B, DEFAULT_C), 5, EPS)
        assert torch.equal(ours.newton_schulz(x.bfloat16()), theirs)


def test_decay_groups_take_each_trainable_parameter_once():
    model = nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4), nn.Linear(4, 5))
    model[2].weight = model[0].weight
    model[1].bias.requires_grad_(False)
    decay, rest = ours.decay_groups(model, 0.1)
    assert [id(p) for p in decay["params"]] == [id(model[0].weight)]
    assert {id(p) for p in rest["params"]} == {id(model[1].weight), id(model[2].bias)}
    assert (decay["weight_decay"], rest["weight_decay"]) == (0.1, 0.0)
    torch.optim.AdamW([decay, rest])


def test_bytes_of_state():
    params = parameters(((3, 4), (5,)))
    n = 17 * 8
    expected = {"SGD": 0, "Adagrad": n + 2 * 4, "Adam": 2 * n + 2 * 4, "AdamW": 2 * n + 2 * 4}
    for name, bytes_ in expected.items():
        optimizer = getattr(torch.optim, name)(params, lr=0.1)
        set_grads(params, next(gradients(((3, 4), (5,)), missing=False)))
        optimizer.step()
        assert ours.optimizer_state_bytes(optimizer) == bytes_


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_takes_sparse_gradients_as_torch_does(momentum):
    """An embedding with sparse=True gives gradients for the rows that were looked up, and no others."""
    start = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    tables = [
        torch.nn.Embedding.from_pretrained(start.clone(), freeze=False, sparse=True)
        for _ in range(2)
    ]
    pair = [
        make(table.parameters(), lr=0.1, momentum=momentum)
        for make, table in zip((ours.SGD, torch.optim.SGD), tables, strict=True)
    ]
    for step in range(20):
        ids = torch.randint(0, 7, (4,), generator=torch.Generator().manual_seed(step))
        for optimizer, table in zip(pair, tables, strict=True):
            optimizer.zero_grad()
            table(ids).square().sum().backward()
            assert table.weight.grad.is_sparse
            optimizer.step()
    assert torch.equal(tables[0].weight, tables[1].weight)
