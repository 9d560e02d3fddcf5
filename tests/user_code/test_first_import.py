"""A user's file is imported in a child first, whose end is told; its words and what it changes are kept apart."""

import logging
import os
import signal
import subprocess
import sys
import threading
import warnings
from contextlib import suppress

import pytest
import torch
from support.user_algorithms import as_in_another_process

from fedtune.core.errors import UserError
from fedtune.user_code import first_import, user_files


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    as_in_another_process(monkeypatch)


@pytest.fixture(autouse=True)
def ctrl_c():
    """Ctrl-C is Python's own: a search in this process may have left Tune's."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def load(folder, text, **beside):
    for name, content in {"own": text, **beside}.items():
        (folder / f"{name}.py").write_text(content)
    return user_files.load(user_files.take(str(folder / "own.py"))[0], "algorithm")


CRASH = "import ctypes\nctypes.string_at(0)"
ENDS = {
    "import os\nos._exit(99)": "it ends the program while it is imported, with status 99",
    "import os\nos._exit(0)": "it ends the program while it is imported, with status 0",
    CRASH: r"by signal 11 \(Segmentation fault\), at own.py:2",
    "import os\nos.abort()": r"by signal 6 \(Aborted\), at own.py:2",
    "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)": r"by signal 9 \(Killed\)",
    "import os, signal\nos.killpg(0, signal.SIGTERM)": r"by signal 15 \(Terminated\)",
    "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)": r"by signal 9 \(Killed\)",
    "import helper": r"by signal 11 \(Segmentation fault\), at helper.py:2",
    "import atexit, os\natexit.register(os._exit, 7)": "with status 7",
    "import os\nos.fork()": "it forks while it is imported, so two processes would continue",
    "import signal, time\nsignal.signal(signal.SIGALRM, signal.SIG_DFL)\nsignal.setitimer(0, 0.01)\n"
    "time.sleep(1)": r"by signal 14 \(Alarm clock\)",
    "import sys, os\nsys.stdout.close(); os.close(1); os.close(2); os._exit(5)": "with status 5",
}


@pytest.mark.parametrize("text", ENDS)
def test_a_file_that_ends_the_process_is_refused_in_one_line(text, tmp_path, capfd):
    with pytest.raises(UserError, match=f"the algorithm cannot be loaded: {tmp_path}/own.py: .*{ENDS[text]}") as caught:
        load(tmp_path, text, helper=CRASH)
    assert str(caught.value).isprintable() and capfd.readouterr() == ("", "")


FINE = {
    "threads": "import threading\nthreading.Thread(target=print, daemon=True).start()",
    "a child of its own": "import os\npid = os.fork()\nif not pid: os._exit(3)\nos.waitpid(pid, 0)",
    "a program": "import subprocess\nsubprocess.run(['true'], check=True)",
    "products": "import torch\nw = torch.randn(400, 400) @ torch.randn(400, 400)",
}


@pytest.mark.parametrize("what", FINE)
def test_what_a_file_may_do(what, tmp_path):
    assert load(tmp_path, FINE[what] + "\nx = 3").x == 3


def test_a_file_is_run_once_here_and_once_in_a_child(tmp_path):
    text = f"with open({str(tmp_path / 'runs')!r}, 'a') as f: f.write('x')"
    for _ in range(3):
        load(tmp_path, text)
    assert (tmp_path / "runs").read_text() == "xx"


def test_what_came_from_elsewhere_was_looked_at_there(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text("x = 4")
    _, files = user_files.take(str(tmp_path / "own.py"))
    as_in_another_process(monkeypatch)
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("a worker forks"))
    user_files.register(files)
    assert user_files.load("own.py", "algorithm").x == 4


@pytest.mark.parametrize(
    "text", ["while True: pass", "import time\ntime.sleep(60)", "import threading\nthreading.Event().wait()"]
)
def test_one_that_never_ends_is_named_and_ctrl_c_ends_it(text, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(first_import, "PATIENCE", 0.05)
    forks, fork, say = [], os.fork, first_import.say
    monkeypatch.setattr(os, "fork", lambda: forks.append(fork()) or forks[-1])
    monkeypatch.setattr(first_import, "say", lambda line: say(line) or signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        load(tmp_path, text)
    assert f"note: {tmp_path}/own.py has been importing for 0 seconds; Ctrl-C ends it" in capsys.readouterr().err
    with pytest.raises(ChildProcessError):
        os.waitpid(forks[0], os.WNOHANG)


@pytest.mark.parametrize("number", (signal.SIGINT, signal.SIGTERM))
def test_an_interrupt_within_the_fork_is_not_lost(number, tmp_path, monkeypatch):
    """Python drops what is raised in a hook that runs there, such as that of `logging`."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    forks, fork = [], os.fork

    def interrupted():
        if forks.append(fork()) or forks[-1]:
            with suppress(KeyboardInterrupt):
                signal.raise_signal(number)
        return forks[-1]

    monkeypatch.setattr(os, "fork", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            load(tmp_path, "while True: pass")
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)
    with pytest.raises(ChildProcessError):
        os.waitpid(forks[0], os.WNOHANG)


# ---- words


WORDS = {
    "print('loaded', 3)": "loaded 3",
    "print('one\\n\\ntwo\\nthree')": "one (and 2 more lines)",
    "import sys\nsys.stderr.write('to stderr\\n')": "to stderr",
    "import sys\nsys.stdout.buffer.write(b'bytes \\xff')": "bytes \\xff",
    "from sys import stdout\nstdout.reconfigure(encoding='utf-8')\nstdout.write('late')": "late",
    "import warnings\nwarnings.warn('old-fashioned')": "own.py:2: UserWarning: old-fashioned",
    "import logging\nlogging.warning('heard')": "WARNING:root:heard",
    "import logging\nlogging.getLogger('mine').error('not heard')": "not heard",
    "class A:\n    def __del__(self): 1 / 0\nA()": "own.py:2: ZeroDivisionError: division by zero, ignored by Python",
    "async def f(): pass\nf()": "RuntimeWarning: coroutine 'f' was never awaited",
    "print('\\x1b[31mred\\x1b[0m')": "\\x1b[31mred\\x1b[0m",
    "print('a' * 10**6)": "aaa…aaa",
    "for i in range(10**5): print(i)": "0 (and ",
}


@pytest.mark.parametrize("text", WORDS)
@pytest.mark.filterwarnings("default")
def test_what_a_file_says_is_a_note(text, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's
    load(tmp_path, text)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    notes = [line for line in lines if line.startswith("note: own.py prints while it is imported: ")]
    assert not out and len(notes) == 1 and WORDS[text] in notes[0] and all(line.isprintable() for line in lines)
    assert set(lines) - set(notes) <= {
        "note: own.py changes the logging of the process while it is imported; this is undone"
    }


def test_what_programs_and_c_print_does_not_stand_among_results(tmp_path, capfd):
    load(tmp_path, "import os\nos.write(1, b'raw')\nos.system('echo from a program')")
    out, err = capfd.readouterr()
    assert not out and "raw" in err and "from a program" in err


def test_a_handler_that_holds_stdout_writes_to_stderr_later(tmp_path, capsys):
    text = "import logging, sys\nlog = logging.getLogger('of own')\nlog.propagate = False\n"
    module = load(tmp_path, text + "log.addHandler(logging.StreamHandler(sys.stdout))\nfrom sys import stdout")
    module.log.warning("later")
    print("more", file=module.stdout)
    assert capsys.readouterr() == ("", "later\nmore\n")


# ---- changes


CHANGES = {
    "import os\nos.chdir('/')": "the current folder",
    "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)": "signal handlers",
    "import signal\nsignal.signal(signal.SIGUSR2, lambda *_: None)": "signal handlers",
    "import signal\nsignal.alarm(1000)": "the alarm timer",
    "import torch\ntorch.set_default_dtype(torch.float64)": "PyTorch's default type",
    "import torch\ntorch.set_num_threads(torch.get_num_threads() + 1)": "PyTorch's threads",
    "import torch\ntorch.set_grad_enabled(False)": "PyTorch's gradient mode",
    "import torch\ntorch.set_default_device('meta')": "PyTorch's default device",
    "import torch\ntorch.set_float32_matmul_precision('medium')": "PyTorch's matmul precision",
    "import builtins\nbuiltins.print = None": "Python's built-in functions",
    "import builtins\nbuiltins.sum = lambda *_: 0": "Python's built-in functions",
    "import logging\nlogging.basicConfig(level=logging.DEBUG, force=True)": "the logging of the process",
    "import logging\nlogging.disable()": "the logging of the process",
}
SILENT = (
    "import sys\nsys.stdout.close()\nsys.stderr.close()",
    "import os\nos.close(1)\nos.close(2)",
    "import sys\nsys.stdout = sys.stderr = None",
    "import os\nos.dup2(os.open(os.devnull, os.O_RDWR), 1)",
    "import sys\ndel sys.stdout",
    "import sys\nsys.modules['json'] = sys.modules['os'] = None",
    "import sys\nsys.path = None",
    "import sys\nsys.path.clear()",
    "import sys\nsys.setrecursionlimit(200)",
    "import sys\nsys.settrace(lambda *_: None)",
    "import sys\nsys.excepthook = None",
    "import warnings\nwarnings.simplefilter('error')",
)


def state():
    torch_s = torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled()
    torch_s += torch.get_default_device(), torch.get_float32_matmul_precision()
    signals = [signal.getsignal(n) for n in signal.valid_signals()], signal.getitimer(signal.ITIMER_REAL)[0] > 0
    root = logging.getLogger()
    logs = list(root.handlers), root.level, root.manager.disable
    standard = sys.stdin, sys.stdout, sys.stderr, [os.fstat(fd).st_ino for fd in (0, 1, 2)]
    python = list(sys.path), sys.getrecursionlimit(), sys.gettrace(), sys.excepthook, list(warnings.filters)
    modules = [*(sys.modules[n] for n in ("json", "os", "sys")), print, sum]
    return os.getcwd(), torch_s, signals, logs, standard, python, modules


@pytest.mark.parametrize("text", [*CHANGES, *SILENT])
@pytest.mark.parametrize("after", ["", "\n1 / 0"])
def test_what_a_file_changes_of_the_process_is_put_back(text, after, tmp_path, capsys):
    before = state()
    if after:
        with pytest.raises(UserError, match="own.py:.*ZeroDivisionError"):
            load(tmp_path, text + after)
    else:
        load(tmp_path, text)
    assert state() == before
    print("still there")
    out, err = capsys.readouterr()
    note = f"note: own.py changes {CHANGES.get(text)} while it is imported; this is undone\n"
    assert out == "still there\n" and err == (note if text in CHANGES else "")


def test_what_a_file_adds_to_the_path_stays_for_later_imports(tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "found_later_by_own.py").write_text("x = 5")
    try:
        module = load(
            tmp_path,
            f"import sys\nsys.path.append({str(tmp_path / 'more')!r})\n"
            "def f():\n    import found_later_by_own\n    return found_later_by_own.x",
        )
        assert module.f() == 5
    finally:
        sys.path.remove(str(tmp_path / "more"))
        sys.modules.pop("found_later_by_own")


def test_a_thread_may_load_a_file_too(tmp_path):
    found = []
    thread = threading.Thread(target=lambda: found.append(load(tmp_path, "x = 6").x))
    thread.start()
    thread.join()
    assert found == [6]


def test_a_process_without_standard_streams_imports_as_any_other(tmp_path) -> None:
    (tmp_path / "own.py").write_text("FINE = 1")
    name = f"user_files.take('{tmp_path}/own.py')[0]"
    code = f"from fedtune.user_code import user_files; user_files.load({name}, 'model').FINE"
    shell = ["sh", "-c", f'exec "{sys.executable}" -c "$0" <&- >&-', code]
    assert subprocess.run(shell, stderr=subprocess.PIPE, text=True).stderr == ""


PARENT = """
import os, sys, torch
torch.set_num_threads(3)
torch.nn.functional.conv2d(torch.randn(8, 3, 64, 64), torch.randn(8, 3, 3, 3))
from fedtune.user_code import user_files
from fedtune.core.errors import UserError
PARENT = os.getpid()
for file in sys.argv[1:]:
    try:
        print(user_files.load(user_files.take(file)[0], "model").FINE, torch.get_num_threads())
    except UserError as error:
        print(error)
"""
THREADED = {
    "threads": "import torch\ntorch.set_num_threads(2)\nFINE = 'threads'",
    "forked": "import ctypes, os, __main__\n"
    "if getattr(__main__, 'PARENT', os.getpid()) != os.getpid(): ctypes.string_at(0)\nFINE = 'forked'",
    "crashes": CRASH,
}


def test_a_fork_that_crashes_over_its_parents_threads_is_not_the_files_end(tmp_path):
    files = []
    for name, text in THREADED.items():
        files.append(tmp_path / f"{name}.py")
        files[-1].write_text(text)
    done = subprocess.run([sys.executable, "-c", PARENT, *map(str, files)], capture_output=True, text=True)
    fine, lone, crashed = done.stdout.splitlines()
    assert (fine, lone) == ("threads 3", "forked 3")
    assert crashed.endswith("by signal 11 (Segmentation fault), at crashes.py:2")
