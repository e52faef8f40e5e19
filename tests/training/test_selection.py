"""Early stopping and the epoch that counts, against histories made up for the purpose."""

import pytest

from tkpr.training.selection import best_epoch, counted_epoch, first_main_epoch, out_of_patience


def rows(name, *values):
    return [{"epoch": i, name: value} for i, value in enumerate(values, 1)]


def test_less_is_better_for_losses_and_more_for_the_rest():
    assert best_epoch(rows("train_loss", 3, 1, 2), "train_loss") == 2
    assert best_epoch(rows("ranking_loss", 3, 1, 2), "ranking_loss") == 2
    assert best_epoch(rows("mAP@3", 3, 1, 2), "mAP@3") == 1
    falling = rows("train_loss", 5, 4, 3, 2, 1)
    assert not out_of_patience(falling, "train_loss", patience=2)
    assert out_of_patience(rows("mAP@3", 5, 4, 3), "mAP@3", patience=2)


def test_the_first_among_equals_is_the_best():
    assert best_epoch(rows("mAP@3", 1, 2, 2), "mAP@3") == 2


def test_patience_starts_with_the_main_loss():
    history = rows("mAP@3", *[0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2])
    assert out_of_patience(history[:3], "mAP@3", patience=2)
    for length in range(9):
        assert not out_of_patience(history[:length], "mAP@3", patience=2, skip=6)
    longer = [*history, *rows("mAP@3", 0.1)]
    assert out_of_patience(longer, "mAP@3", patience=2, skip=6)
    assert best_epoch(longer, "mAP@3", skip=6) == 7


def test_without_patience_no_run_stops_and_its_last_epoch_counts():
    history = rows("mAP@3", 0.9, 0.1)
    config = {"trainer": {"warmup_epochs": 0, "patience": None}, "warmup": 1, "loss": 2}
    assert not out_of_patience(history, "mAP@3", patience=None)
    assert counted_epoch(history, "mAP@3", config) == 2
    config["trainer"]["patience"] = 5
    assert counted_epoch(history, "mAP@3", config) == 1
    config["trainer"]["warmup_epochs"] = 1
    assert counted_epoch(history, "mAP@3", config) == 2
    assert first_main_epoch(config | {"loss": 1}) == 0


def test_bad_requests_are_refused():
    with pytest.raises(ValueError, match="3 epochs, 3 of warm-up: none of the main loss"):
        best_epoch(rows("mAP@3", 1, 2, 3), "mAP@3", skip=3)
    with pytest.raises(ValueError, match="no measure 'mAP@9': there are epoch, mAP@3"):
        best_epoch(rows("mAP@3", 1), "mAP@9")
