"""The first start on a machine: who compiles what, where it is kept, and who hears of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numba
import pytest
from numba.core import event

from inagg_link import first_start as compiling
from inagg_link.first_start import Unit, compile_all, find_cache, telling
from inagg_link.progress import Progress

REPOSITORY = Path(__file__).parents[2]
PATIENCE_S = 20.0


def compile_something() -> None:
    """As Numba says it."""
    start: Any = event.start_event
    end: Any = event.end_event
    start("numba:compile", data={})
    end("numba:compile", data={})


# --- where ---


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Nothing but temporary folders can be written; where those are."""
    monkeypatch.setattr(compiling, "can_write", lambda folder: False)
    monkeypatch.setattr(compiling, "package_is_warm", lambda: False)
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_where_nothing_can_be_written_the_cache_is_a_private_temporary_folder(
    nowhere: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The same each time, for processes that start later as well. And that is said."""
    settings: Any = numba.config
    folders = []
    for _ in range(2):
        settings.CACHE_DIR = ""
        find_cache()
        folders.append(Path(settings.CACHE_DIR))
    assert folders == [nowhere / f"inagg-cache-{os.getuid()}"] * 2
    assert folders[0].stat().st_mode & 0o777 == 0o700
    assert os.environ["NUMBA_CACHE_DIR"] == str(folders[0])
    assert str(folders[0]) in caplog.text
    assert "inagg warmup" in caplog.text


def test_where_the_package_was_warmed_up_nobody_is_told_to_do_so(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiling, "package_is_warm", lambda: True)
    find_cache()
    assert not caplog.text


@pytest.mark.parametrize("kind", ["open to others", "a link", "a file"])
def test_a_temporary_folder_that_others_can_write_to_is_not_used(nowhere: Path, kind: str) -> None:
    """What is in it would be run."""
    taken = nowhere / f"inagg-cache-{os.getuid()}"
    if kind == "open to others":
        taken.mkdir()
        taken.chmod(0o777)
    elif kind == "a link":
        (nowhere / "elsewhere").mkdir(mode=0o700)
        taken.symlink_to(nowhere / "elsewhere")
    else:
        taken.touch()
    find_cache()
    settings: Any = numba.config
    found = Path(settings.CACHE_DIR)
    assert found != taken
    assert found.stat().st_mode & 0o777 == 0o700


def test_without_temporary_files_no_folder_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: ["/proc"])
    assert not compiling.is_temporary(tmp_path)


def test_a_cache_that_was_asked_for_is_used(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "can_write", lambda folder: folder == Path("/asked/for"))
    monkeypatch.setattr(numba.config, "CACHE_DIR", "/asked/for")
    find_cache()
    settings: Any = numba.config
    assert settings.CACHE_DIR == "/asked/for"


def test_a_cache_that_was_asked_for_and_cannot_be_written_is_a_temporary_folder(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a container whose root is read-only."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", "/asked/for")
    find_cache()
    settings: Any = numba.config
    assert settings.CACHE_DIR == os.environ["NUMBA_CACHE_DIR"] == str(nowhere / f"inagg-cache-{os.getuid()}")
    assert "since NUMBA_CACHE_DIR, /asked/for, cannot be written" in caplog.text


def test_what_was_compiled_where_nothing_can_be_written_is_used(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an image that was warmed up."""
    warm = nowhere / "warm"
    (warm / "loops").mkdir(parents=True)
    (warm / "loops" / "serve.nbi").write_text("compiled")
    warm.chmod(0o777)
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(warm))
    find_cache()
    settings: Any = numba.config
    kept = Path(settings.CACHE_DIR)
    assert (kept / "loops" / "serve.nbi").read_text() == "compiled"
    assert kept.stat().st_mode & 0o077 == 0, "nobody else may write there"
    assert sorted(nowhere.iterdir()) == sorted([kept, warm])
    (kept / "loops" / "serve.nbi").write_text("of this machine")
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(warm))
    find_cache()
    assert (kept / "loops" / "serve.nbi").read_text() == "of this machine"


def test_an_installation_that_cannot_be_written_to_compiles_all_the_same(tmp_path: Path) -> None:
    """By a user without a home, as in a container."""
    for source in ("protos/inagg_wire", "protos/inagg_link", "host/inagg_host"):
        copy = tmp_path / "site" / Path(source).name
        shutil.copytree(REPOSITORY / source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        for folder in (copy, *(path for path in copy.rglob("*") if path.is_dir())):
            (folder / "__pycache__").touch()  # a file, so that not even root can make the folder
    code = "from inagg_host.core.recovery import adapted; print(adapted(64, 64, 9, 0), adapted.__module__)"
    environment = {
        "PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "site"), "HOME": "/dev/null", "TMPDIR": str(tmp_path),
        "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert ran.stdout == "64 inagg_host.core.recovery\n", ran.stderr
    assert "set NUMBA_CACHE_DIR" in ran.stderr
    assert list((tmp_path / f"inagg-cache-{os.getuid()}").rglob("*.nbi"))


NO_FOLDERS = """
import tempfile
tempfile._candidate_tempdir_list = lambda: ["/proc"]  # where no file can be made
"""


def _without_temporary_files(folder: Path, code: str, **more: str) -> str:
    """What a process with a copy of the packages in ``folder`` says on standard error, that cannot write there."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), "HOME": "/dev/null", **more}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    arguments = [sys.executable, "-c", NO_FOLDERS + code]
    ran = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=120)
    assert ran.stdout == "64\n", ran.stderr
    return ran.stderr


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder of the packages, without compiled code."""
    for source in ("protos/inagg_wire", "protos/inagg_link", "host/inagg_host"):
        here = tmp_path / "site" / Path(source).name
        shutil.copytree(REPOSITORY / source, here, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "site"


COMPILE = "from inagg_host.core.recovery import adapted; print(adapted(64, 64, 9, 0))"


@pytest.mark.parametrize("asked", ["", "/proc/asked"])
def test_where_not_even_temporary_files_can_be_made_it_compiles_and_says_what_to_do(copy: Path, asked: str) -> None:
    for folder in [path for path in copy.rglob("*") if path.is_dir()]:
        (folder / "__pycache__").touch()  # a file, so that not even root can make the folder
    said = _without_temporary_files(copy, COMPILE, **({"NUMBA_CACHE_DIR": asked} if asked else {}))
    assert "no folder for temporary files can be written: mount something on /tmp" in said
    assert said.count("is full, or cannot be written: compiled code is not kept") == 1
    assert "Traceback" not in said


READ_ONLY = """
import os, pathlib
def no_folder(*_, **__):
    raise OSError(30, "Read-only file system")
tempfile.TemporaryFile = no_folder  # by which it is seen whether a folder can be written
os.access = lambda path, mode, **_: mode != os.W_OK
"""


def test_without_temporary_files_what_the_read_only_package_has_is_used_in_silence(copy: Path) -> None:
    warm = {"PYTHONPATH": str(copy), "PATH": os.environ["PATH"], "HOME": "/dev/null"}
    all_of_it = f"import numpy; from inagg_link.native import mixed; mixed(numpy.uint64(1)); {COMPILE}"
    subprocess.run([sys.executable, "-c", all_of_it], env=warm, check=True, stdout=subprocess.DEVNULL, timeout=120)
    used = "assert sum(adapted.stats.cache_hits.values()) == 1 and not adapted.stats.cache_misses"
    assert not _without_temporary_files(copy, f"{READ_ONLY}{COMPILE}; {used}")


# --- who ---


def test_processes_that_need_the_same_share_the_work(tmp_path: Path) -> None:
    """Each unit is compiled by one at a time; who comes later loads what the other has made. (Threads, here.)"""
    inside, most, calls = [0, 0, 0], [0, 0, 0], list[tuple[int, int]]()
    lock = threading.Lock()

    def work(turn: int, number: int) -> None:
        with lock:
            inside[number] += 1
            most[number] = max(most[number], inside[number])
            calls.append((turn, number))
        time.sleep(0.05)
        with lock:
            inside[number] -= 1

    sources = [tmp_path / str(number) for number in range(3)]
    for source in sources:
        source.touch()

    def run(turn: int) -> None:
        units = [Unit(str(source), lambda n=number: work(turn, n)) for number, source in enumerate(sources)]  # type: ignore[misc]
        compile_all(units, turn)

    threads = [threading.Thread(target=run, args=(turn,)) for turn in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert most == [1, 1, 1]
    assert sorted(calls) == [(turn, number) for turn in range(3) for number in range(3)]
    assert {number for _, number in calls[:3]} == {0, 1, 2}, "they begin with different ones"


# --- who hears of it ---


def test_whoever_asks_is_told_of_each_function_that_is_compiled() -> None:
    told: list[int] = []
    compile_something()
    with telling(told.append):
        compile_something()
        compile_something()
    compile_something()
    assert len(told) == 2
    assert told[1] == told[0] + 1


def test_nobody_is_told_anything_when_it_is_over_for_him() -> None:
    """Though another thread, such as another rank of the process, says something just then: his files are closed."""
    speaking, over, late = threading.Event(), threading.Event(), list[bool]()

    def slow(_: int) -> None:
        speaking.set()
        over.wait(0.2)

    with telling(slow):
        with telling(lambda _: late.append(over.is_set())):
            other = threading.Thread(target=compile_something)
            other.start()
            assert speaking.wait(PATIENCE_S)
        over.set()
        other.join(PATIENCE_S)
    assert late == [False]


def test_who_waits_for_another_process_says_that_it_lives(tmp_path: Path) -> None:
    source, gate, told = tmp_path / "source", threading.Event(), threading.Event()
    source.touch()
    unit = Unit(str(source), lambda: (gate.wait(PATIENCE_S), None)[1])
    other = threading.Thread(target=compile_all, args=([unit],))
    other.start()
    time.sleep(0.05)
    with telling(lambda _: told.set()):
        thread = threading.Thread(target=compile_all, args=([unit],))
        thread.start()
        assert told.wait(PATIENCE_S)
        gate.set()
        thread.join(PATIENCE_S)
    other.join(PATIENCE_S)


def test_progress_is_said_at_the_beginning_and_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, said = [100.0], list[str]()
    monkeypatch.setattr("inagg_link.progress.time.monotonic", lambda: now_s[0])
    progress = Progress(said.append, "rank 3's loops")
    begun = progress._first
    for second in range(12):
        now_s[0] = 100.0 + second
        progress(begun + second)
    assert said == [
        "compiling rank 3's loops for this machine, once: that takes about half a minute",
        "compiling rank 3's loops: 6 functions so far",
        "compiling rank 3's loops: 11 functions so far",
    ]


def test_who_only_waits_says_so_if_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that load what is in the cache take turns, too: of that nobody needs to hear."""
    now_s, said = [100.0], list[str]()
    monkeypatch.setattr("inagg_link.progress.time.monotonic", lambda: now_s[0])
    progress = Progress(said.append, "rank 3's loops")
    for second in range(60):
        now_s[0] = 100.0 + second
        progress(progress._first)
    assert said == ["waiting for another process of this machine, which loads or compiles rank 3's loops"]


def test_of_processes_that_compile_together_one_speaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else people read the same as often as there are ranks. When it is done, the next one may."""
    voice = tmp_path / "voice"  # other processes of this machine may be compiling, too
    voice.touch()
    monkeypatch.setattr(compiling, "__file__", str(voice))
    said: list[str] = []
    with compiling.saying(said.append, "rank 0's loops"):
        compile_something()
        with compiling.saying(said.append, "rank 1's loops"):
            compile_something()
    assert len(said) == 1
    assert "rank 0's" in said[0]
    with compiling.saying(said.append, "rank 1's loops"):
        compile_something()
    assert "rank 1's" in said[1]
