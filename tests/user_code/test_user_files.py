"""A user's files are known by name and content: what a reference is, what is carried, what is refused in one line."""

import gc
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.user_algorithms import as_in_another_process

from fedtune.core.errors import UserError
from fedtune.user_code import references, user_files


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    as_in_another_process(monkeypatch)


def write(folder: Path, **files: str) -> Path:
    """Files by name, 0 for a slash; the first one's path."""
    paths = [folder / f"{name.replace('0', '/')}.py" for name in files]
    for path, text in zip(paths, files.values(), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return paths[0]


def carried(files):
    """The files as another process gets them: nothing is left on disk."""
    user_files._files.clear(), user_files._code.clear()
    user_files.register(files)


@pytest.mark.parametrize(
    "text",
    ["a.py", "a.py:N", "x/a.py:N(b=1)", "rows.npz", "/tmp/rows.npz", "some/folder", "folder/", "a.py:", "a.py:("],
)
def test_a_file_or_a_path_is_a_reference(text):
    assert user_files.is_reference(text)


@pytest.mark.parametrize("text", ["gfpl", "cnn8-wide", "digits-dir0.1", "resnet18", "val_acc"])
def test_a_name_is_no_reference(text):
    assert not user_files.is_reference(text) and not user_files.is_own(text)


def test_a_folder_is_a_reference_unless_there_is_something_built_in_of_its_name(tmp_path, monkeypatch):
    (tmp_path / "digits").mkdir()
    monkeypatch.chdir(tmp_path)
    assert user_files.is_reference("digits") and not user_files.is_reference("digits", known=["digits"])


def test_the_canonical_name_has_neither_folder_nor_blanks(tmp_path):
    file = write(tmp_path, net="def n(**o): return o")
    name, _ = user_files.take(f"{file}:n( depth = 2,  kind='gru' )")
    assert name == "net.py:n(depth=2,kind='gru')"
    assert user_files.call_options(name) == {"depth": 2, "kind": "gru"} and user_files.is_own(name)
    assert user_files.load(name, "model")() == {}
    assert user_files.plain_name(name) == "net.py-n-depth=2-kind=-gru"


@pytest.mark.parametrize(
    ("text", "path", "member", "options"),
    [
        ("sensors.pytorch.npz", "sensors.pytorch.npz", "", ""),
        ("imgs.pytorch/", "imgs.pytorch/", "", ""),
        ("espoir.py/sensors.npz", "espoir.py/sensors.npz", "", ""),
        ("a.py:b/c.py:N", "a.py:b/c.py", "N", ""),
        ("a.py:N(x='b.py:M(1)')", "a.py", "N", "(x='b.py:M(1)')"),
        ("we=ird [1]/it's.py:N(y=(1, 2))", "we=ird [1]/it's.py", "N", "(y=(1, 2))"),
        ("notes.py:old.npz", "notes.py:old.npz", "", ""),
    ],
)
def test_a_reference_is_read_right_whatever_its_path_is_called(text, path, member, options):
    assert references.parsed(text) == (path, member, options)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a.py:N(x=(1,(2,3))),cnn8", ["a.py:N(x=(1,(2,3)))", "cnn8"]),
        ("a.py:N(a=1,b=2), gfpl ,c.py", ["a.py:N(a=1,b=2)", "gfpl", "c.py"]),
        ("a.py:N(x='a),b'),b.py", ["a.py:N(x='a),b')", "b.py"]),
        ("fedavg, fedprox", ["fedavg", "fedprox"]),
        ("it's.py,that's.py", ["it's.py", "that's.py"]),
    ],
)
def test_references_are_split_at_commas_outside_of_brackets(text, parts):
    assert user_files.split(text) == parts


@pytest.mark.parametrize("folder", ["a,b", "x.py", "a:b", "k=v [min]", 'say "hi"', "(1", "net.py:N"])
@pytest.mark.parametrize("name", ["w.npz", "w.pytorch.npz", "a,b.npz", "pets/", "pets.py/", "net.py:N(x=2)"])
def test_whatever_a_path_is_called_it_is_taken_and_given_again(folder, name, tmp_path):
    place = tmp_path / folder / name.partition(":")[0]
    (place if name.endswith("/") else place.parent).mkdir(parents=True)
    if not name.endswith("/"):
        np.savez(place, x=[1]) if place.suffix == ".npz" else place.write_text("def N(x): return x")
    taken, files = user_files.take_each(str(tmp_path / folder / name))
    assert taken == name and user_files.is_own(taken) and len(files) == 1
    assert user_files.reference(taken).rstrip("/") == str(tmp_path / folder / name).rstrip("/")


def test_a_file_runs_from_its_content_with_the_modules_it_imports_from_its_folder(tmp_path):
    file = write(
        tmp_path,
        main="import low.deep as d\nfrom . import near\nfrom low import *\nimport plain.leaf\n"
        "def lazy():\n    from late import there\n    return there\nall = d.one + near.two + three + plain.leaf.six",
        low0__init__="from .other import three",
        low0deep="from near import one",
        low0other="three = 3",
        near="one, two = 1, 2\nimport main",
        late="there = 7",
        plain0leaf="six = 6",
        unused="raise ValueError",
    )
    _, files = user_files.take(str(file))
    names = {"main.py", "low/__init__.py", "low/deep.py", "low/other.py", "near.py", "late.py", "plain/leaf.py"}
    assert {f.name for f in files} == names and files[0].name == "main.py"
    for f in tmp_path.rglob("*.py"):
        f.unlink()
    carried(files)
    module = user_files.load("main.py", "algorithm")
    assert module.all == 12 and module.lazy() == 7
    assert user_files.load("main.py", "algorithm") is module
    assert not {"main", "near", "low", "late"} & set(sys.modules)


def test_the_modules_of_two_folders_do_not_hide_each_other_or_what_is_installed(tmp_path):
    texts = "import utils, random, numpy\nvalue = utils.value\nkept = random.random, numpy.array"
    for value in "ab":
        write(tmp_path / value, **{value: texts, "utils": f"value = {value!r}", "random": "raise ValueError"})
    of_a, of_b = (user_files.take(str(tmp_path / v / f"{v}.py"))[1] for v in "ab")
    assert {f.name for f in of_a} == {"a.py", "utils.py"}
    for files, value in ((of_a, "a"), (of_b, "b"), (of_a, "a")):
        user_files.register(files)
        assert user_files.load(f"{value}.py", "algorithm").value == value


def test_a_folder_may_have_a_module_called_as_one_of_our_packages(tmp_path):
    file = write(tmp_path, main="import analysis, fedtune.trainables\nx = analysis.x", analysis="x = 3")
    _, files = user_files.take(str(file))
    assert {f.name for f in files} == {"main.py", "analysis.py"} and user_files.load("main.py", "algorithm").x == 3


def test_a_file_that_was_edited_is_read_again(tmp_path):
    file = write(tmp_path, one="import two\nx = two.x", two="x = 1")
    user_files.take(str(file))
    assert user_files.load("one.py", "algorithm").x == 1
    write(tmp_path, two="x = 2")
    user_files.take(str(file))
    assert user_files.load("one.py", "algorithm").x == 2


def test_two_files_of_one_name_in_one_study_are_refused_unless_they_are_only_imported(tmp_path):
    one, same, other = (user_files.take(str(write(tmp_path / d, a=t)))[1] for d, t in zip("ijk", "112", strict=True))
    assert user_files.merged(one, same) == one
    with pytest.raises(UserError, match="files of one study need different names"):
        user_files.merged(one, other)
    taken = [user_files.take(str(write(tmp_path / d, **{d: "import a", "a": d})))[1] for d in "lm"]
    assert [f.name for f in user_files.merged(*taken)] == ["l.py", "a.py", "m.py", "a.py"]
    alike = [user_files.take(str(write(tmp_path / d, b="import c", c=f"x = {d!r}")))[1] for d in "no"]
    with pytest.raises(UserError, match="files of one study need different names: .*n/b.py and .*o/b.py"):
        user_files.merged(*alike)  # both are b.py, of which each imports another c.py


COUNTER = """
from utils import seen
calls = 0
def call():
    global calls
    calls += 1
    seen.append(calls)
    return calls, len(seen)
def later():
    from utils import name
    return name
"""


def test_each_execution_begins_anew_and_modules_have_their_folders_name(tmp_path):
    for folder in "ab":
        write(tmp_path / folder, **{f"own_{folder}": COUNTER, "utils": f"seen, name = [], {folder!r}"})
        user_files.take(f"{tmp_path}/{folder}/own_{folder}.py")
    runs = [user_files.Execution() for _ in range(2)]
    loaded = []
    for run in runs:
        with run.used():
            loaded.append([user_files.load(f"own_{folder}.py:call", "algorithm") for folder in "ab"])
            assert user_files.load("own_a.py:call", "algorithm") is loaded[-1][0]
    for a, b in loaded:
        assert [a(), a(), b()] == [(1, 1), (2, 2), (1, 1)]
    assert user_files.load("own_a.py:call", "algorithm")() == (1, 1)
    with runs[0].used():
        module = user_files.load("own_b.py", "algorithm")
    assert re.fullmatch(r"b@\d+\.own_b", module.__name__) and module.later() == "b"
    package, _, _ = module.__name__.partition(".")
    assert f"{package}.utils" in sys.modules and "utils" not in sys.modules
    del run, runs
    gc.collect()
    user_files.Execution()
    assert f"{package}.utils" not in sys.modules


def test_a_class_of_a_notebook_begins_anew_too(tmp_path):
    from ray import cloudpickle

    names = {"__name__": "__main__"}
    exec("calls = []\nclass Mine:\n    def call(self):\n        calls.append(0)\n        return len(calls)", names)
    name = user_files.of_class(names["Mine"], cloudpickle.dumps(names["Mine"]))
    assert user_files.load(name, "algorithm") is names["Mine"]
    counts = []
    for _ in range(2):
        with user_files.Execution().used():
            made = user_files.load(name, "algorithm")()
            counts.append([made.call(), made.call()])
    assert counts == [[1, 2], [1, 2]] and names["calls"] == []


@pytest.mark.parametrize(
    "change", ["set_default_dtype(torch.float64)", "set_default_device('meta')", "set_grad_enabled(False)"]
)
def test_a_file_that_changes_what_all_numbers_depend_on_is_refused(change, tmp_path):
    import torch

    file = write(tmp_path, own=f"import torch\ntorch.{change}")
    with pytest.raises(
        UserError, match="own.py changes PyTorch's default type, device or gradient mode while it is im"
    ):
        user_files.load(user_files.take(str(file))[0], "algorithm")
    assert torch.zeros(1).dtype == torch.float32 and torch.zeros(1).device.type == "cpu" and torch.is_grad_enabled()


def test_data_are_known_by_their_hash_and_place(tmp_path):
    np.savez(tmp_path / "rows.npz", x=np.zeros(3))
    name, (file,) = user_files.take(str(tmp_path / "rows.npz"))
    assert name == "rows.npz" and file.content is None and user_files.path_of(name) == tmp_path / "rows.npz"
    (tmp_path / "wards").mkdir()
    (tmp_path / "wards" / "a.png").write_bytes(b"1")
    name, (before,) = user_files.take(str(tmp_path / "wards"))
    assert name == "wards/" and user_files.path_of(name) == tmp_path / "wards"
    (tmp_path / "wards" / "a.png").rename(tmp_path / "wards" / "b.png")
    assert user_files.of_data(tmp_path / "wards").sha256 != before.sha256


def test_a_vanished_file_of_code_is_taken_as_it_was_registered(tmp_path):
    file = write(tmp_path, gone="import beside\nx = beside.x", beside="x = 5")
    before = user_files.take(str(file))
    file.unlink()
    assert user_files.take(str(file)) == before
    assert user_files.load("gone.py", "algorithm").x == 5


@pytest.mark.parametrize(
    "text, line, said",
    [
        ("def f(:\n  pass", 1, "invalid syntax"),
        ("x = 1\nimport nowhere_to_be_found", 2, "No module named 'nowhere_to_be_found'"),
        ("import sys\n\nsys.exit(0)", 3, "SystemExit: 0"),
        ("def f():\n  f()\nf()", 2, "RecursionError"),
        ("\n1 / 0", 2, "ZeroDivisionError: division by zero"),
        ("import helper", 1, "broken"),
        ("from helper2 import missing", 1, "cannot import name"),
    ],
)
def test_what_fails_in_a_users_file_is_told_with_its_line(tmp_path, text, line, said):
    path = write(tmp_path, bad=text, helper="raise OSError('broken')", helper2="")
    with pytest.raises(UserError) as error:
        user_files.load(user_files.take(str(path))[0], "algorithm")
    assert said in str(error.value) and "\n" not in str(error.value)
    file = "helper" if text == "import helper" else "bad"
    assert f"{path.parent / file}.py:{line}" in str(error.value)


@pytest.mark.parametrize(
    "text, said",
    [
        ("nowhere.py", "No such file"),
        ("nowhere/", "No such file"),
        ("good.py:", "must be followed by a name"),
        ("good.py:1a", "must be followed by a name"),
        ("good.py:f(1)", "keyword literals"),
        ("good.py:f(a=open)", "keyword literals"),
        ("good.py:f(**{})", "keyword literals"),
        ("latin.py", "utf-8"),
        ("null.py", "is not valid Python"),
    ],
)
def test_what_is_no_reference_to_code_is_refused(tmp_path, text, said):
    write(tmp_path, good="def f(): pass")
    (tmp_path / "latin.py").write_bytes("x = 'é'".encode("latin-1"))
    (tmp_path / "null.py").write_bytes(b"x = '\0'")
    with pytest.raises(UserError, match=said):
        user_files.take(f"{tmp_path}/{text}")


def test_a_folder_called_as_code_is_data(tmp_path):
    (tmp_path / "folder.py").mkdir()
    name, _ = user_files.take(f"{tmp_path}/folder.py")
    assert name == "folder.py/"
    with pytest.raises(UserError, match="this algorithm needs a Python file, but got 'folder.py/'"):
        user_files.load(name, "algorithm")


def test_a_name_that_is_not_there_is_told_with_the_nearest(tmp_path):
    path = write(tmp_path, some="import os\ndef variant(): pass")
    with pytest.raises(UserError, match="did you mean 'variant'"):
        user_files.load(user_files.take(f"{path}:varient")[0], "model")


def test_neither_torch_nor_ray_is_loaded_for_it():
    code = "import fedtune.user_code.user_files, sys; print('torch' in sys.modules, 'ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ)
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_what_a_file_draws_while_it_is_imported_is_the_same_in_each_run_and_moves_no_stream(tmp_path):
    import random

    import torch

    file = write(
        tmp_path, own="import random, torch, numpy\nx = random.random(), numpy.random.rand(), torch.rand(1).item()"
    )
    name, drawn = user_files.take(str(file))[0], set()
    for seed in (1, 2):
        random.seed(seed), np.random.seed(seed), torch.manual_seed(seed)
        before = random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().tolist()
        with user_files.Execution().used():
            drawn.add(user_files.load(name, "model").x)
        assert before == (random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().tolist())
    assert len(drawn) == 1


def test_links_that_lead_back_by_others_are_refused(tmp_path):
    for name, to in (("a", "b"), ("b", "a")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.png").touch()
        (tmp_path / name / "link").symlink_to(tmp_path / to)
    with pytest.raises(UserError, match="link cannot be read: it is a link to a folder that contains it"):
        user_files.take(f"{tmp_path}/")
