"""Progress on stderr: lines now and then where there is no terminal."""

from blockscale.cli import progress
from blockscale.cli.progress import Bar


def lines(capsys, **options):
    """What is said of a run of 300 bytes of which 100 were done earlier."""
    with Bar(**options) as bar:
        bar.start(300, 100)
        bar.advance("a", 50)
        bar.advance("b", 150)
        bar.say("careful")
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def test_lines_now_and_then(capsys, monkeypatch):
    now = iter([0.0, 0.0, 1.0, 10.0, 10.0, 10.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    assert lines(capsys) == [
        "going on: 100 B of 300 B were finished by an earlier run",
        "100% of 300 B, 20 B/s",
        "careful",
    ]


def test_quiet(capsys, monkeypatch):
    monkeypatch.setattr(progress, "_SECONDS", 0.0)
    assert len(lines(capsys)) == 4
    assert lines(capsys, quiet=True) == [
        "going on: 100 B of 300 B were finished by an earlier run",
        "careful",
    ]


def test_speed_is_of_this_run(monkeypatch):
    now = iter([0.0, 5.0, 7.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    bar = Bar(quiet=True)
    bar.start(1000, 600)
    bar.advance("a", 100)
    assert bar.speed == 50.0
