"""What a record says of the code and the command that made a run."""

import pytest

from fedtune.runs import provenance


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("/somewhere/bin/fedtune", ["fedtune"]),
        ("/somewhere/fedtune/__main__.py", ["fedtune"]),
        ("/somewhere/fedtune/search.py", ["python", "-m", "fedtune.search"]),
    ],
)
def test_the_command_is_one_that_anyone_can_type(
    program: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [program, "--algo", "gfpl"])
    assert provenance.command_line() == [*words, "--algo", "gfpl"]
