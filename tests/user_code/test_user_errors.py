"""Whatever a user's own code raises is theirs, with the line of their file, and is said in one line that shows well."""

import signal

import pytest
from support.user_algorithms import as_in_another_process

from fedtune.core.errors import UserError
from fedtune.user_code import user_errors, user_files
from fedtune.user_code.command import guarded

HEAD = """
class Mute(Exception):
    def __str__(self): raise ValueError("no words")
class Leaves(Exception):
    def __str__(self): raise SystemExit(3)
class Own(BaseException): pass
class Nameless(type):
    @property
    def __name__(cls): raise ValueError("no name")
class Unnamed(Exception, metaclass=Nameless): pass
class Seventh(Exception, metaclass=type("Seven", (type,), {"__name__": 7})): pass
def around(error):
    error.__cause__ = error
    return error
def deep(n=0): return deep(n + 1)
def warned():
    import warnings
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.warn("old")
def failed(): assert False
def groups(): raise ExceptionGroup("several", [ValueError("a"), TypeError("b")])
def exits():
    import argparse
    argparse.ArgumentParser().parse_args(["--nothing"])
def f():
    """
LINE = len(HEAD.splitlines())
RAISED = {
    "raise StopIteration": "StopIteration",
    "raise StopIteration(3)": "StopIteration: 3",
    "raise StopAsyncIteration": "StopAsyncIteration",
    "raise GeneratorExit": "GeneratorExit",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
    "raise KeyboardInterrupt('no')": "KeyboardInterrupt: no",
    "raise SystemExit": "SystemExit: it ends the program",
    "raise SystemExit('bye')": "SystemExit: it ends the program",
    "quit()": "SystemExit: it ends the program",
    "raise MemoryError": "MemoryError",
    "raise RecursionError": "RecursionError: it calls itself endlessly",
    "raise Own('mine')": "Own: mine",
    "raise Mute": "Mute",
    "raise Leaves": "Leaves",
    "raise Unnamed('x')": "Unnamed: x",
    "raise Seventh('x')": "Seventh: x",
    "raise around(ValueError('x'))": "ValueError: x",
    "raise UserWarning('x')": "UserWarning: x",
    "raise KeyError('k')": "KeyError: 'k'",
    "raise OSError(2, 'gone')": "FileNotFoundError: [Errno 2] gone",
    "raise UnicodeDecodeError('utf-8', b'', 0, 1, 'x')": "UnicodeDecodeError",
    "raise BaseExceptionGroup('both', [KeyboardInterrupt(), ValueError()])": "BaseExceptionGroup: both",
    "next(iter(()))": "StopIteration",
    "1 / 0": "ZeroDivisionError: division by zero",
    r"raise ValueError('a\nb\rc\x1b[2Jd\u202ee\0f\x9bg')": r"ValueError: a b c\x1b[2Jd\u202ee\x00f\x9bg",
    "raise ValueError('ab ' * 40_000)": " … ",
    "raise ValueError('a' * 100_000)": "aaa…aaa",
    r"raise type('\x1b[31mRed' + 'x' * 9999, (Exception,), {})('y')": r"\x1b[31mRedxxx",
}
ELSEWHERE = {
    "deep()": "RecursionError: it calls itself endlessly",
    "warned()": "UserWarning: old",
    "failed()": "AssertionError",
    "groups()": "ExceptionGroup: several (2 sub-exceptions)",
    "exits()": "SystemExit: it ends the program",
}


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    as_in_another_process(monkeypatch)


def function(folder, body):
    """A function of a user's file that does this."""
    (folder / "own.py").write_text(HEAD + body + "\n")
    return user_files.load(user_files.take(f"{folder}/own.py:f")[0], "model")


@pytest.mark.parametrize("body", RAISED | ELSEWHERE)
def test_whatever_their_code_raises_is_theirs_with_its_line_wherever_it_is_called(body, tmp_path, capsys):
    f = function(tmp_path, body)
    what = (RAISED | ELSEWHERE)[body]
    place = f"{tmp_path}/own.py:" + ("" if body in ELSEWHERE else f"{LINE}: ")

    def blamed():
        with user_errors.attribute_errors():
            f()

    def calling():
        with user_files.calling("own.py:f", "model"):
            f()

    for call in (blamed, calling):
        with pytest.raises(UserError) as caught:
            call()
        said = str(caught.value)
        assert place in said and what in said and said.isprintable() and len(said) < 1500
    for main in (lambda argv=None: f(), lambda argv=None: blamed()):
        assert guarded(main)([]) == 2
        out, err = capsys.readouterr()
        line = err.splitlines()[-1]
        assert line.startswith("error: ") and place in line and line.isprintable() and not out


@pytest.mark.parametrize("body", RAISED)
def test_the_same_as_the_file_is_loaded(body, tmp_path):
    (tmp_path / "own.py").write_text(HEAD + "pass\n" + body + "\n")
    with pytest.raises(UserError, match=r"the algorithm cannot be loaded: .*/own\.py:\d+: ") as caught:
        user_files.load(user_files.take(f"{tmp_path}/own.py")[0], "algorithm")
    assert RAISED[body] in str(caught.value) and str(caught.value).isprintable()


def test_ctrl_c_is_not_theirs_though_it_hits_a_line_of_theirs(tmp_path, capsys):
    f = function(tmp_path, "import signal; signal.raise_signal(signal.SIGALRM)")
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for call in (lambda argv=None: f(), lambda argv=None: _in(user_errors.attribute_errors(), f)):
            assert guarded(call)([]) == 130
            assert capsys.readouterr().err == "interrupted\n"
    finally:
        signal.signal(signal.SIGALRM, before)


def _in(context, f):
    with context:
        f()


@pytest.mark.parametrize("error", ["StopIteration", "StopAsyncIteration"])
def test_what_ends_a_generator_of_ours_keeps_its_name(error, tmp_path):
    f = function(tmp_path, f"raise {error}('mine')")
    with pytest.raises(RuntimeError) as caught:
        list(f() for _ in "a") if error == "StopIteration" else _drained(f)
    assert user_errors.describe(caught.value) == f"{tmp_path}/own.py:{LINE}: {error}: mine"


def _drained(f):
    async def each():
        f()
        yield

    each().asend(None).send(None)


def test_what_is_ours_is_ours():
    with pytest.raises(StopIteration):
        with user_errors.attribute_errors():
            next(iter(()))
    with pytest.raises(SystemExit):
        with user_errors.reported("x"):
            raise SystemExit


def test_a_stack_is_shown_as_it_is_and_not_without_end(tmp_path):
    f = function(tmp_path, r"raise ValueError('\x1b[2J' + 'a' * 10**5 + '\n' * 10**4)")
    with pytest.raises(ValueError) as caught:
        f()
    stack = user_errors.stack(caught.value)
    assert all(line.isprintable() for line in stack.splitlines()) and len(stack) < 20_000
    assert f"{tmp_path}/own.py" in stack


@pytest.mark.filterwarnings("default")
def test_what_a_function_says_when_it_is_called_stands_on_stderr_in_lines(tmp_path, capsys):
    text = (
        "import warnings, gc\n    print('loud')\n    warnings.warn('old')\n    class A:\n"
        "        def __del__(self): 1 / 0\n    A()\n    async def g(): pass\n    g()\n    gc.collect()"
    )
    f = function(tmp_path, text)

    def main(argv=None):
        for context in (user_errors.attribute_errors(), user_files.calling("own.py:f", "data set")):
            with context:
                f()
        print("result")
        return 0

    assert guarded(main)([]) == 0
    out, err = capsys.readouterr()
    assert out == "result\n" and err.count("loud\n") == 2
    lines = [line for line in err.splitlines() if line != "loud"]
    assert {line.partition(": ")[0] for line in lines} == {"warning"}
    said = [f"own.py:{LINE + 2}: UserWarning: old", f"own.py:{LINE + 4}: ZeroDivisionError: ", "was never awaited"]
    assert all(any(s in line for line in lines) for s in said)
