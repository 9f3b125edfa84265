"""The drawings of chapter 10: a ravine to walk in, and what corrections, decay, eps and Muon do."""

from collections.abc import Mapping
from math import cos, radians, sin
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from course_utils.reference import optimizers

from .interactive import Interactive
from .style import BLUE, FAINT, GREEN, INK, ORANGE, PINK, RED, SKY, Drawing, plot

# ------------------------------------------------------------------------------ the ravine

RATES = {
    "SGD": 0.09,
    "momentum": 0.02,
    "Nesterov": 0.02,
    "AdaGrad": 0.5,
    "RMSProp": 0.05,
    "Adam": 0.2,
}
CHOICES: dict[str, list[float]] = {
    "lr": [0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.09, 0.1, 0.11, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0],
    "beta1": [0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99],
    "beta2": [0.0, 0.5, 0.8, 0.9, 0.95, 0.99, 0.999],
    "kappa": [1, 2, 5, 10, 20, 50, 100],
    "angle": [0, 15, 30, 45, 60, 75, 90],
}
_STEPS = 100


def ravine(point: Tensor, kappa: float, angle: float) -> Tensor:
    """Half of u² + kappa·v², where u runs along the ravine and v across it, turned by `angle` degrees."""
    c, s = cos(radians(angle)), sin(radians(angle))
    u, v = c * point[0] + s * point[1], c * point[1] - s * point[0]
    return 0.5 * (u.square() + kappa * v.square())


def _made(method: str, params: list[Tensor], settings: dict[str, Any]) -> Optimizer:
    """The book's optimizer for one of the figure's methods."""
    lr, eps = settings["lr"], settings["eps"]
    beta1, beta2 = settings["beta1"], settings["beta2"]
    match method:
        case "SGD":
            return optimizers.SGD(params, lr=lr)
        case "momentum" | "Nesterov":
            return optimizers.SGD(
                params, lr, momentum=beta1, nesterov=method == "Nesterov" and beta1 > 0
            )
        case "AdaGrad":
            return optimizers.AdaGrad(params, lr=lr, eps=eps)
        case "RMSProp":
            return optimizers.RMSProp(params, lr=lr, alpha=beta2, eps=eps)
        case "Adam":
            return optimizers.Adam(params, lr=lr, betas=(beta1, beta2), eps=eps)
    raise ValueError(f"The ravine knows no method {method!r}. It knows: {', '.join(RATES)}.")


def ravine_path(settings: dict[str, Any]) -> Tensor:
    """(steps + 1, 2): the points that the book's own optimizer visits, in float64."""
    point = nn.Parameter(torch.tensor(settings["start"], dtype=torch.float64))
    optimizer = _made(settings["method"], [point], settings)
    points = [point.detach().clone()]
    for _ in range(settings["steps"]):
        optimizer.zero_grad()
        ravine(point, settings["kappa"], settings["angle"]).backward()
        optimizer.step()
        points.append(point.detach().clone())
    return torch.stack(points)


def optimizer_ravine(
    method: str = "SGD",
    lr: float | None = None,
    beta1: float = 0.9,
    beta2: float = 0.99,
    kappa: float = 20,
    angle: float = 0,
    start: tuple[float, float] = (-2.6, 1.0),
    step: int = 30,
) -> Interactive:
    """A path on the ravine ½(u² + kappa·v²), which the reader steps along, drags and compares.

    method: one of SGD, momentum, Nesterov, AdaGrad, RMSProp, Adam. lr: by default one that suits it.
    beta1: also momentum. beta2: also RMSProp's alpha. angle: of the ravine, in degrees. step: how
    much of the path is shown at first, of 100. Raises ValueError for an unknown method.
    """
    if method not in RATES:
        raise ValueError(f"The ravine knows no method {method!r}. It knows: {', '.join(RATES)}.")
    settings: dict[str, Any] = {
        "method": method,
        "lr": RATES[method] if lr is None else lr,
        "beta1": beta1,
        "beta2": beta2,
        "eps": 1e-8,
        "kappa": kappa,
        "angle": angle,
        "start": list(start),
        "steps": _STEPS,
    }
    choices = {key: sorted({*values, settings[key]}) for key, values in CHOICES.items()}
    alt = (
        "Optimizers on a ravine: the contours of a quadratic that is steep across and flat along, "
        "and the path of an optimizer from a start that you can move"
    )
    return Interactive(
        script="optimizer_ravine",
        alt=alt,
        text=_account(settings),
        data={
            "settings": settings,
            "rates": RATES | {method: settings["lr"]},
            "choices": choices,
            "step": step,
            "alt": alt,
        },
    )


def _account(settings: dict[str, Any]) -> str:
    """What the figure says, in words."""
    path = ravine_path(settings)
    values = [ravine(p, settings["kappa"], settings["angle"]).item() for p in path]
    lines = [
        "Optimizers on a ravine (interactive in JupyterLab and on the page)",
        f"loss = (u² + {settings['kappa']}·v²) / 2, turned by {settings['angle']} degrees",
        f"{settings['method']}, lr {settings['lr']}",
    ]
    for t in (0, 1, 2, 3, 10, 30, _STEPS):
        x, y = (0.0 if abs(value) < 1e-12 else value for value in path[t].tolist())
        lines.append(f"step {t:3}: at ({x:.4g}, {y:.4g}), loss {values[t]:.4g}")
    return "\n".join(lines)


# ------------------------------------------------------------------------------ Adam's parts


def draw_corrections(*betas: tuple[float, float], steps: int = 100) -> Drawing:
    """Length of Adam's step, in units of lr, for a constant gradient: with and without correction."""
    figure, ax = plot()
    ax.axhline(1.0, color=INK, linewidth=2.2, label="corrected, any betas")
    t = torch.arange(1, steps + 1, dtype=torch.float64)
    styles = ((RED, "-"), (BLUE, "--"), (GREEN, ":"))
    for (beta1, beta2), (colour, dash) in zip(betas, styles, strict=False):
        length = (1 - beta1**t) / (1 - beta2**t).sqrt()
        ax.plot(t, length, color=colour, linestyle=dash, label=f"uncorrected, ({beta1}, {beta2})")
    ax.set_xscale("log")
    ax.set_ylim(0, None)
    ax.set_xlabel("step t")
    ax.set_ylabel("length of the step / lr")
    ax.legend(frameon=False)
    return figure


def weights_left(
    name: str, scales: Tensor, lr: float, weight_decay: float, steps: int, copies: int = 64
) -> Tensor:
    """Mean of weights that began at 1, after steps on gradients of pure noise of these scales.

    name: a class of the reference. Result: (len(scales),).
    """
    generator = torch.Generator().manual_seed(0)
    p = nn.Parameter(torch.ones(len(scales), copies, dtype=torch.float64))
    optimizer = getattr(optimizers, name)([p], lr=lr, weight_decay=weight_decay)
    for _ in range(steps):
        noise = torch.randn(p.shape, generator=generator, dtype=torch.float64)
        p.grad = scales[:, None] * noise
        optimizer.step()
    return p.detach().mean(1)


def draw_decay(lr: float = 1e-3, weight_decay: float = 0.5, steps: int = 1000) -> Drawing:
    """How much of a weight the decay leaves, by the size of its gradients: L2 and decoupled."""
    scales = torch.logspace(-2, 2, 17, dtype=torch.float64)
    figure, ax = plot()
    for name, label, colour, mark in (
        ("Adam", "Adam: decay in the gradient (L2)", RED, "s"),
        ("AdamW", "AdamW: decoupled", BLUE, "o"),
    ):
        left = weights_left(name, scales, lr, weight_decay, steps)
        ax.plot(scales, left, color=colour, marker=mark, markersize=4, label=label)
    expected = (1 - lr * weight_decay) ** steps
    ax.axhline(expected, color=FAINT, linestyle=":", label="(1 − lr·weight_decay)ˢᵗᵉᵖˢ")
    ax.set_xscale("log")
    ax.set_xlabel("size of the gradients (noise around 0)")
    ax.set_ylabel("mean weight, from 1")
    ax.legend(frameon=False)
    return figure


def draw_eps(eps: float = 1e-8) -> Drawing:
    """Length of Adam's step over lr, by the size of a constant gradient: eps outside and inside."""
    g = torch.logspace(-12, 0, 200, dtype=torch.float64)
    figure, ax = plot()
    ax.plot(g, g / (g + eps), color=BLUE, label="√v̂ + eps (Adam)")
    ax.plot(g, g / (g.square() + eps).sqrt(), color=RED, linestyle="--", label="√(v̂ + eps)")
    for x, text in ((eps, "eps"), (eps**0.5, "√eps")):
        ax.axvline(x, color=FAINT, linestyle=":")
        ax.annotate(text, (x, 0.02), xytext=(4, 0), textcoords="offset points", color=INK)
    ax.set_xscale("log")
    ax.set_xlabel("size of the gradient")
    ax.set_ylabel("length of the step / lr")
    ax.legend(frameon=False, loc="upper left")
    return figure


def draw_newton_schulz(steps: int = 5) -> Drawing:
    """Where the iteration takes a singular value between 0 and 1, after each step."""
    figure, ax = plot()
    s = torch.linspace(0, 1, 401, dtype=torch.float64)
    y = s
    ax.axhspan(0.7, 1.2, color=FAINT, alpha=0.15, linewidth=0)
    styles = ((SKY, ":"), (GREEN, "-."), (ORANGE, "--"), (PINK, "--"), (BLUE, "-"))
    for k in range(1, steps + 1):
        y = 3.4445 * y - 4.7750 * y**3 + 2.0315 * y**5
        colour, dash = styles[(k - 1) % len(styles)]
        label = f"{k} step{'s' if k > 1 else ''}"
        ax.plot(
            s, y, color=colour, linestyle=dash, linewidth=2.2 if k == steps else 1.3, label=label
        )
    ax.plot(s, s, color=INK, linewidth=0.8, label="before")
    ax.set_xlabel("singular value, after division by the norm")
    ax.set_ylabel("singular value, after the steps")
    ax.legend(frameon=False, loc="lower right", ncols=2)
    return figure


def draw_sweep(losses: Mapping[str, Mapping[float, float]]) -> Drawing:
    """Final loss against the learning rate, a curve for each optimizer, its lowest point marked."""
    figure, ax = plot()
    for (name, row), (colour, dash) in zip(
        losses.items(), ((ORANGE, "--"), (BLUE, "-"), (GREEN, "-.")), strict=True
    ):
        ax.plot(list(row), list(row.values()), color=colour, linestyle=dash, marker="o", label=name)
        best = min(row, key=row.__getitem__)
        ax.annotate(
            f"{row[best]:.2f}", (best, row[best]), textcoords="offset points", xytext=(0, -14)
        )
    ax.set_xscale("log")
    ax.set_xlabel("learning rate")
    ax.set_ylabel("loss of the last ten steps, nats a byte")
    ax.legend(frameon=False)
    return figure
