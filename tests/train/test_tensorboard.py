"""TensorBoard files hold the events' numbers; its absence is one line."""

import sys

import pytest

from vitlab.train.tensorboard import tensorboard_writer


@pytest.mark.slow
def test_every_number_of_an_event_is_a_scalar(tmp_path):
    with tensorboard_writer(tmp_path) as log:
        for step in (1, 2):
            log.add("step", {"step": step, "loss": 0.5 * step, "skipped": False, "note": "text"})
        log.add("validation", {"step": 2, "top1": 0.75})
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert set(found.Tags()["scalars"]) == {"step/loss", "validation/top1"}
    assert [(event.step, event.value) for event in found.Scalars("step/loss")] == [(1, 0.5), (2, 1.0)]
    assert log.dropped == 0


def test_its_absence_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ModuleNotFoundError, match=r"vitlab\[log\]"), tensorboard_writer(tmp_path):
        pass


def test_a_log_that_cannot_be_written_is_counted_and_does_not_stop(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    with tensorboard_writer(tmp_path) as log:

        def full(*_):
            raise OSError("no space left")

        monkeypatch.setattr(log.writer, "add_scalar", full)
        log.add("step", {"step": 1, "loss": 1.0})
        assert log.dropped == 1
