# SPDX-License-Identifier: BSD-3-Clause
"""Programs in forks of a Python that has imported torch behave as in a Python of their own."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.support import fresh


def test_what_it_prints_and_how_it_ends(tmp_path: Path) -> None:
    code = "import sys, os; print(sys.argv[1:], os.getcwd()); print('no', file=sys.stderr)"
    done = fresh.run(code, "a", Path("b"), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"['a', 'b'] {tmp_path}\n")
    assert done.stderr == "no\n"


@pytest.mark.parametrize(
    ("code", "expected", "error"),
    [
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit('a reason')", 1, "a reason\n"),
        ("import sys; sys.exit()", 0, ""),
        ("import os; os._exit(4)", 4, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, ""),
        ("import atexit; atexit.register(print, 'late')", 0, ""),
    ],
)
def test_exit_codes(code: str, expected: int, error: str) -> None:
    done = fresh.run(code)
    assert (done.returncode, done.stderr) == (expected, error)
    assert done.stdout == ("late\n" if "atexit" in code else "")


def test_interrupted_it_ends_as_python_does() -> None:
    done = fresh.run("import os, signal; print(1); os.kill(os.getpid(), signal.SIGINT)")
    assert (done.returncode, done.stdout) == (-signal.SIGINT, "1\n")
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"


def test_an_error_is_a_traceback_and_check_raises_it() -> None:
    assert fresh.run("1 / 0").stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"
    with pytest.raises(AssertionError, match=r"exit code 1\n(.*\n)*ZeroDivisionError"):
        fresh.run("1 / 0", check=True)


def test_nothing_is_left_for_the_next() -> None:
    first = "import sys, os, blockscale; os.environ['B'] = '2'; print('torch' in sys.modules)"
    assert fresh.run(first, env=os.environ | {"A": "1"}).stdout == "True\n"
    second = "import sys, os; print('blockscale' in sys.modules, *{'A', 'B'} & {*os.environ})"
    assert fresh.run(second, check=True).stdout == "False\n"
    assert fresh.run("import os; print(os.environ['A'])", env={"A": "5"}).stdout == "5\n"


def test_one_that_has_imported_ours() -> None:
    code = "import sys; print('blockscale' in sys.modules, 'tests.support.fresh' in sys.modules)"
    assert fresh.run(code, ready=fresh.WITH_OURS).stdout == "True False\n"


def test_more_is_imported_in_forks_of_one_process() -> None:
    code = "import os, sys; print(os.getsid(0), *sorted({*sys.modules} & {'here', 'there'}))"
    here, there = (f"import sys; sys.modules[{name!r}] = sys" for name in ("here", "there"))
    ways = (*fresh.TORCH, here), (*fresh.TORCH, here, there), (*fresh.TORCH, there), fresh.TORCH
    found = [fresh.run(code, ready=way).stdout.split() for way in (*ways, ways[0])]
    assert [each[1:] for each in found] == [["here"], ["here", "there"], ["there"], [], ["here"]]
    assert len({each[0] for each in found}) == 1


def test_what_cannot_be_imported_is_an_error_and_the_next_program_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fresh, "_server", None)  # not the one that has imported torch
    running = fresh.begin("while True: pass", ready=("",))
    with pytest.raises(RuntimeError, match="the process that tests fork has ended: it says why"):
        fresh.run("print(1)", ready=("", "1 / 0"))
    with pytest.raises(RuntimeError, match="the process that tests fork has ended"):
        running.end()
    assert fresh.run("print(1)", ready=("",), check=True).stdout == "1\n"


def test_warnings() -> None:
    code = "import warnings; warnings.warn('careful')"
    assert "careful" in fresh.run(code).stderr
    assert fresh.run(code, warn="ignore").stderr == ""
    assert fresh.run(code, warn="error").returncode == 1


def test_several_at_once_in_any_order(tmp_path: Path) -> None:
    """The first waits for what the second writes."""
    waits = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)"
    writes = "import sys, pathlib; pathlib.Path(sys.argv[1]).touch()"
    jobs = [fresh.begin(code, tmp_path / "there") for code in (waits, writes)]
    fresh.end_all(jobs)


def test_its_processor_time_is_counted() -> None:
    before = fresh.spent()
    fresh.run("import time\nwhile time.process_time() < 0.1: pass")
    assert fresh.spent() > before


def work(rank: int, folder: str) -> None:
    Path(folder, str(rank)).write_text(f"{rank}")
    while len(list(Path(folder).iterdir())) < 2:  # each waits for the other
        time.sleep(0.01)


def test_ranks(tmp_path: Path) -> None:
    fresh.ranks(work, tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def waits_for_rank_1(rank: int, folder: str) -> None:
    assert not rank, f"of {folder}"
    while True:
        time.sleep(0.01)


def test_a_rank_that_fails_ends_those_that_wait_for_it(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=rf"exit code 1\n(.*\n)*AssertionError: of {tmp_path}"):
        fresh.ranks(waits_for_rank_1, tmp_path, 2)


def test_its_process() -> None:
    job = fresh.begin("import os; print(os.getpid())\nwhile True: pass")
    os.kill(job.pid(), signal.SIGTERM)
    assert job.end().returncode == -signal.SIGTERM


def test_stopped() -> None:
    jobs = [fresh.begin(code) for code in ("while True: pass", "pass", "while True: pass")]
    assert jobs[1].end().returncode == 0
    jobs[2].stop()
    jobs[0].stop()
    assert fresh.run("print(1)").stdout == "1\n"


def test_a_rank_that_fails(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"FileNotFoundError"):
        fresh.ranks(work, tmp_path / "nowhere", 1)
