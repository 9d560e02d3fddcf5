"""What ends a command's process in a user's function is one line that names their file."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from fedtune.user_code import command, process_exit, user_errors, user_files

@command.guarded
def main(argv=None):
    name, _ = user_files.take(f"{argv[0]}/own.py:rows")
    rows = user_files.load(name, "data set")
    with user_files.calling(name, "data set"):
        rows()
    with user_errors.attribute_errors():
        rows()
    return 0

process_exit.watch(user_errors.PATHS)
sys.exit(main(sys.argv[1:]))
"""
FAILED = "error: the data set own.py:rows failed: "
ENDED = f"{FAILED}it ended the program, or the program was killed meanwhile\n"
CALLS = {
    "os._exit(0)": (2, FAILED + "{}:6: SystemExit: it ends the program\n"),
    "sys.exit(0)": (2, FAILED + "{}:6: SystemExit: it ends the program\n"),
    "ctypes.string_at(0)": (-11, FAILED + "{}:6: it ends the program: Segmentation fault\n"),
    "os.abort()": (-6, FAILED + "{}:6: it ends the program: Aborted\n"),
    "os.kill(os.getpid(), 9)": (-9, ENDED),
    "ctypes.CDLL(None)._exit(3)": (3, ENDED),
    "threading.Thread(target=lambda: os._exit(0)).start(); time.sleep(60)": (2, ENDED),
    "threading.Thread(target=os._exit, args=(4,)).start(); time.sleep(60)": (4, ENDED),
    "calls and os._exit(0)": (2, "error: {}:6: SystemExit: it ends the program\n"),
    "calls and ctypes.string_at(0)": (-11, "error: {}:6: it ends the program: Segmentation fault\n"),
    "os.fork() or os._exit(0)": (0, ""),  # a child of theirs is theirs to end
    "(pid := os.fork()) or os.kill(os.getpid(), 9); os.waitpid(pid, 0)": (0, ""),
}


@pytest.mark.parametrize("call", CALLS)
def test_who_ends_the_process_in_a_function_is_named(call, tmp_path):
    calls = f"import ctypes, os, sys, threading, time\ncalls = []\n\n\ndef rows():\n    {call}\n    calls.append(0)\n"
    (tmp_path / "own.py").write_text(calls)
    done = subprocess.run([sys.executable, "-c", PROGRAM, tmp_path], capture_output=True, text=True, cwd="/")
    status, line = CALLS[call]
    assert (done.returncode, done.stderr) == (status, line.format(tmp_path / "own.py"))


def test_the_program_ends_by_exit_as_ever_where_no_line_is_theirs(tmp_path):
    (tmp_path / "own.py").write_text("def rows():\n    pass\n")
    program = PROGRAM + "import os; os._exit(7)"
    program = program.replace("sys.exit(main(sys.argv[1:]))", "main(sys.argv[1:])")
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, cwd="/")
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")
