"""What a run writes while it trains: one line per epoch, metrics.csv, TensorBoard."""

import csv
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from tkpr import records
from tkpr.data.sparse import has_lists
from tkpr.training.logbook import Logbook, clock

NAMES = ["cat", "dog", "emu", "fox", "gnu", "hen"]
WHITE = 255


class Pictures:
    """Six black images, of which the second cannot be read, with labels of which one is unknown."""

    def __init__(self, *, kind=torch.uint8, unknown=False):
        generator = torch.Generator().manual_seed(3)
        self.targets = (torch.rand(6, 6, generator=generator) < 0.5).float()
        self.targets[:, 5] = 0  # of no image: it has no average precision
        self.unreadable = torch.tensor([0, 1, 0, 0, 0, 0]).bool()
        self.known, self.kind = None, kind
        if unknown:
            self.known = torch.ones(6, 6).bool()
            self.known[0, 0], self.targets[0, 0] = False, 0

    def __getitem__(self, row):
        return torch.zeros(3, 8, 8, dtype=self.kind), self.targets[row], row


class Board:
    """Takes what TensorBoard would be sent."""

    def __init__(self):
        self.scalars, self.images, self.histograms, self.flushed, self.closed = {}, {}, {}, 0, 0

    def add_scalar(self, name, value, epoch):
        self.scalars[name] = (value, epoch)

    def add_image(self, name, value, epoch):
        self.images[name] = (value, epoch)

    def add_histogram(self, name, values, epoch, bins):
        self.histograms[name] = (values.tolist(), epoch, bins)

    def flush(self):
        self.flushed += 1

    def close(self):
        self.closed += 1


@pytest.fixture
def board(monkeypatch):
    board = Board()

    def writer(folder, purge_step):
        board.folder, board.purge_step = folder, purge_step
        return board

    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter", writer)
    return board


def row(epoch, **more):
    measured = {"mAP@5": 0.75, "mAP@3": 0.5, "ranking_loss": 0.125}
    spent = {"seconds": 60.0, "images_per_second": 12.4, "lr": 0.1}
    return {"epoch": epoch, "train_loss": 0.25, **spent, **measured, **more}


def book_of(folder, *, enabled=True, history=(), **pictures):
    records.write(folder / "run.json", {"run": "1" * 32})
    data = SimpleNamespace(test=Pictures(**pictures), class_names=NAMES)
    return Logbook(folder, data, list(history), enabled=enabled)


LOGITS = torch.rand(6, 6, generator=torch.Generator().manual_seed(4))


def test_an_epoch_is_a_line_a_row_and_a_step(tmp_path, board, caplog):
    history = [row(1), row(2)]
    with book_of(tmp_path, history=history[:1]) as book, caplog.at_level("INFO", logger="tkpr"):
        book.write(history, LOGITS, total=4)
        assert board.closed == 0
    assert (board.purge_step, board.closed, board.flushed) == (2, 1, 1)
    assert caplog.messages == [
        "epoch 2/4  loss 0.2500  mAP@3 0.5000  ranking loss 0.1250  12 images/s  2:00 left"
    ]
    rows = list(csv.DictReader((tmp_path / "metrics.csv").open()))
    assert [one["epoch"] for one in rows] == ["1", "2"]
    assert {one["run"] for one in rows} == {"1" * 32}
    assert list(rows[0]) == [*row(1), "run"]
    train = {"train/train_loss": (0.25, 2), "train/lr": (0.1, 2)}
    train |= {"train/images_per_second": (12.4, 2)}
    test = {"test/mAP@5": (0.75, 2), "test/mAP@3": (0.5, 2), "test/ranking_loss": (0.125, 2)}
    found = {
        name: value
        for name, value in board.scalars.items()
        if not name.startswith("average_precision/")
    }
    assert found == train | test


def test_a_line_without_a_ranking_loss(tmp_path, board, caplog):
    one = row(1)
    del one["ranking_loss"]
    with book_of(tmp_path) as book, caplog.at_level("INFO", logger="tkpr"):
        book.write([one], LOGITS, total=1)
    assert caplog.messages == ["epoch 1/1  loss 0.2500  mAP@3 0.5000  12 images/s  0:00 left"]


@pytest.mark.parametrize("unknown", [False, True])
def test_classes_and_ranks_on_the_board(unknown, tmp_path, board):
    """Average precision by scikit-learn; ranks counted one by one."""
    with book_of(tmp_path, unknown=unknown) as book:
        book.write([row(1)], LOGITS, total=1)
    test, readable = book.data.test, [0, 2, 3, 4, 5]
    for label, name in enumerate(NAMES[:5]):
        rows = [one for one in readable if test.known is None or test.known[one, label]]
        expected = average_precision_score(test.targets[rows, label], LOGITS[rows, label])
        assert board.scalars[f"average_precision/{name}"] == (pytest.approx(expected), 1)
    assert "average_precision/hen" not in board.scalars
    ranks = []
    for one in readable:
        known = [c for c in range(6) if test.known is None or test.known[one, c]]
        order = sorted(known, key=lambda label, one=one: -LOGITS[one, label])
        ranks += [place for place, label in enumerate(order, 1) if test.targets[one, label]]
    found, epoch, bins = board.histograms["rank_of_relevant_labels"]
    assert (sorted(found), epoch, bins) == (sorted(ranks), 1, 6)


def test_four_images_that_can_be_read_are_shown(tmp_path, board):
    with book_of(tmp_path) as book:
        book.write([row(1)], LOGITS, total=1)
    assert list(board.images) == [f"predictions/{one}" for one in (0, 2, 3, 4)]
    drawn, epoch = board.images["predictions/0"]
    assert (drawn.shape, epoch) == ((3, 256 + 6 * 14 + 4, 256), 1)  # labels and five predictions
    assert drawn[:, :256].max() == 0
    assert drawn[:, 256].min() == WHITE
    assert (drawn[:, -4:] == WHITE).mean() > 0.9
    assert not np.array_equal(drawn, board.images["predictions/3"][0])


@pytest.mark.parametrize("axis", [1, 2])
def test_a_picture_fills_its_part_of_the_sheet(axis, tmp_path, board):
    """One half black, one white, enlarged: what is left of the middle mirrors what is right."""
    picture = torch.zeros(3, 8, 8, dtype=torch.uint8)
    picture.narrow(axis, 4, 4).fill_(WHITE)
    sheet = book_of(tmp_path).annotate(picture, torch.zeros(6), torch.zeros(6))
    line = sheet[0, :256, :256].astype(int).mean(2 - axis)
    np.testing.assert_allclose(line, WHITE - line[::-1], rtol=0, atol=1.5)


def test_features_are_not_shown(tmp_path, board):
    with book_of(tmp_path, kind=torch.float32) as book:
        book.write([row(1)], LOGITS, total=1)
    assert not board.images


def test_a_picture_names_its_labels_and_its_best_predictions(tmp_path, board, monkeypatch):
    written = []

    class Draw:
        def __init__(self, sheet):
            self.sheet = sheet

        def text(self, place, text, fill):
            written.append((place, text, fill))

    monkeypatch.setattr("PIL.ImageDraw.Draw", Draw)
    book = book_of(tmp_path)
    picture = torch.zeros(3, 8, 4, dtype=torch.uint8)
    picture[0] = 200
    target, logits = torch.tensor([0, 1, 0, 0, 1, 0]), torch.tensor([0.0, 2, -1, 1, -3, -2])
    sheet = book.annotate(picture, target, logits)
    assert [text for _, text, _ in written] == [
        *("labels: dog, gnu", "1. dog 0.88", "2. fox 0.73", "3. cat 0.50", "4. emu 0.27"),
        "5. hen 0.12",
    ]
    assert [fill for *_, fill in written] == ["black", "green", *["firebrick"] * 4]
    heights = [place[1] for place, *_ in written]
    assert len({place[0] for place, *_ in written}) == 1
    assert heights[0] >= 256
    assert set(np.diff(heights)) == {14}
    assert heights[-1] + 14 <= sheet.shape[1]
    assert sheet[:, 100, 100].tolist() == [200, 0, 0]
    few = book.annotate(picture, target[:2], logits[:2])
    assert sheet.shape[1] - few.shape[1] == 3 * 14


def test_only_the_first_process_writes(tmp_path, board):
    with book_of(tmp_path, enabled=False) as book:
        book.write([row(1)], LOGITS, total=1)
        book.write_csv([row(1)])
    assert not hasattr(board, "folder")
    assert not (tmp_path / "metrics.csv").exists()


def test_of_lists_of_labels_only_the_measures_are_written(tmp_path, board, monkeypatch):
    book = book_of(tmp_path)
    assert not has_lists(book.data.test)
    monkeypatch.setattr("tkpr.training.logbook.has_lists", lambda _: True)
    book.write([row(1)], LOGITS, total=1)
    assert not board.histograms
    assert not board.images
    assert board.flushed == 1
    assert board.scalars["test/mAP@3"] == (0.5, 1)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (59.6, "1:00"), (3599, "59:59"), (3600, "1:00:00"), (90061, "25:01:01")],
)
def test_a_duration(seconds, text):
    assert clock(seconds) == text
