"""An error in a user's own code: a line that says what was being done, and Python's traceback from their line on."""

import signal

import pytest
from support.user_algorithms import as_in_another_process

from fedtune.core.errors import UserError
from fedtune.user_code import user_errors, user_files
from fedtune.user_code.command import guarded

HEAD = """
class Own(BaseException): pass
def around(error):
    error.__cause__ = error
    return error
def groups(): raise ExceptionGroup("several", [ValueError("a"), TypeError("b")])
def declared():
    from fedtune.core.errors import UserError
    raise UserError("a rule")
def f():
    """
LINE = len(HEAD.splitlines())
RAISED = {
    "raise StopIteration(3)": "StopIteration: 3",
    "raise SystemExit('bye')": "SystemExit: bye",
    "raise MemoryError": "MemoryError",
    "raise around(ValueError('x'))": "ValueError: x",
    "raise KeyError('k')": "KeyError: 'k'",
    "raise OSError(2, 'gone')": "FileNotFoundError: [Errno 2] gone",
    "groups()": "ExceptionGroup: several (2 sub-exceptions)",
    "1 / 0": "ZeroDivisionError: division by zero",
    r"raise ValueError('a\nb\x1b[2J')": r"ValueError: a b\x1b[2J",
}


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    as_in_another_process(monkeypatch)


def function(folder, body):
    """A function of a user's file that does this."""
    (folder / "own.py").write_text(HEAD + body + "\n")
    return user_files.load(user_files.take(f"{folder}/own.py:f")[0], "model")


@pytest.mark.parametrize("body", RAISED)
def test_an_error_is_a_line_with_its_place_and_their_traceback_below_it(body, tmp_path, capsys):
    f = function(tmp_path, body)

    def attributed(argv=None):
        with user_errors.reported():
            f()

    def calling(argv=None):
        with user_files.calling("own.py:f", "model"):
            f()

    for call in (attributed, calling):
        with pytest.raises(user_errors.UserCodeError) as caught:
            call()
        said, below = str(caught.value), caught.value.traceback.splitlines()
        assert f"{tmp_path}/own.py:" in said and RAISED[body] in said and said.isprintable() and len(said) < 1500
        assert any(f'File "{tmp_path}/own.py", line {LINE}, in f' in line for line in below)
        assert not any("fedtune/" in line or "/tests/" in line for line in below)
        assert guarded(call)([]) == 2
        first, *rest = capsys.readouterr().err.splitlines()
        assert first.startswith("error: ") and said in first and rest == below


def test_the_traceback_begins_with_their_first_line_and_goes_on_below_it(tmp_path, capsys):
    f = function(tmp_path, "import json\n    json.loads('x')")
    assert guarded(lambda argv=None: f())([]) == 2  # also where nothing says what was being done
    first, head, theirs, source, *rest = capsys.readouterr().err.splitlines()
    assert first.startswith(f"error: {tmp_path}/own.py:{LINE + 1}: JSONDecodeError: Expecting value")
    assert head == "Traceback (most recent call last):" and source == "    json.loads('x')"
    assert theirs == f'  File "{tmp_path}/own.py", line {LINE + 1}, in f'
    assert any("json/decoder.py" in line for line in rest) and rest[-1].startswith("json.decoder.JSONDecodeError")


def test_of_a_helper_that_fails_neither_we_nor_pythons_imports_are_shown(tmp_path):
    (tmp_path / "own.py").write_text("import helper")
    (tmp_path / "helper.py").write_text("\n1 / 0")
    with pytest.raises(UserError, match=f"the model cannot be loaded: {tmp_path}/helper.py:2: Zero") as caught:
        user_files.load(user_files.take(f"{tmp_path}/own.py")[0], "model")
    frames = [line for line in caught.value.traceback.splitlines() if line.startswith("  File")]
    assert frames == [f'  File "{tmp_path}/{f}.py", line {n}, in <module>' for f, n in (("own", 1), ("helper", 2))]


def test_a_wrong_declaration_is_a_line_alone(tmp_path, capsys):
    f = function(tmp_path, "declared()")

    def main(argv=None):
        with user_errors.reported("the algorithm cannot be made"):
            f()

    assert guarded(main)([]) == 2
    assert capsys.readouterr().err == f"error: the algorithm cannot be made: {tmp_path}/own.py:{LINE - 2}: a rule\n"


def test_ctrl_c_is_not_theirs_though_it_hits_a_line_of_theirs(tmp_path, capsys):
    f = function(tmp_path, "import signal; signal.raise_signal(signal.SIGALRM)")
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for call in (lambda argv=None: f(), lambda argv=None: _in(user_errors.reported(), f)):
            assert guarded(call)([]) == 130
            assert capsys.readouterr().err == "interrupted\n"
    finally:
        signal.signal(signal.SIGALRM, before)


def _in(context, f):
    with context:
        f()


def test_what_is_ours_is_ours():
    with pytest.raises(StopIteration):
        with user_errors.reported():
            next(iter(()))
    with pytest.raises(SystemExit):
        with user_errors.reported("x"):
            raise SystemExit


def test_a_stack_moves_no_cursor(tmp_path):
    f = function(tmp_path, r"raise ValueError('\x1b[2J' + 'a')")
    with pytest.raises(ValueError) as caught:
        f()
    stack = user_errors.stack(caught.value)
    assert all(line.isprintable() for line in stack.splitlines()) and f"{tmp_path}/own.py" in stack


def test_what_they_print_is_not_a_result(tmp_path, capsys):
    f = function(tmp_path, "print('loud')")
    with user_errors.reported():
        f()
    assert capsys.readouterr() == ("", "loud\n")
