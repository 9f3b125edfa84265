"""The loss curve of chapter 23: one picture, redrawn in place."""

from IPython.display import DisplayHandle

from course_utils.figures.gpt2 import LossCurve


def test_one_picture_is_shown_and_then_updated(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda *a, **k: shown.append("new") or handle)
    handle = DisplayHandle("curve")
    monkeypatch.setattr(handle, "update", lambda figure: shown.append(figure.axes[0].get_title()))
    curve = LossCurve(3, {"chance": 5.5}, every_s=1000)
    for step, loss in enumerate((5.0, 4.0, 3.0), start=1):
        curve(step, loss, validation=loss + 0.5 if step == 3 else None)
    assert shown == ["new", "step 3 of 3: loss 3.00"]
    assert curve.validation == [(3, 3.5)]
