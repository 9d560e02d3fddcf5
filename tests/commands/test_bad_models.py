"""Wrong models from files: one line that says what is wrong and where, status 2, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.commands import refusal

from fedtune import __main__ as console

GOOD = """
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self, d=8, classes=10):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, d), nn.ReLU())
        self.head = nn.Linear(d, classes)

    def forward(self, x):
        return self.head(self.body(x))


def plain(*layers):
    return nn.Sequential(nn.Flatten(), *layers)


"""
HEADER = GOOD.count("\n")

# what follows GOOD in the file -> (the reference's NAME, what the line says)
WRONG: dict[str, tuple[str, str]] = {
    "def net(shape, classes):\n    return plain(nn.Linear(64, classes))": (
        "net",
        "a model must have the parts body and head, but what net.py:net returns has 0, 1; name its last layer "
        "instead: net.py:net(head='1')",
    ),
    "def net(shape, classes):\n    net = Net()\n    net.head = nn.Linear(9, classes)\n    return net": (
        "net",
        "the head of net.py:net does not take the body's features [B, 8]: RuntimeError: mat1 and mat2 shapes",
    ),
    "def net(shape, classes):\n    return Net(classes=classes - 1)": (
        "net",
        "the head of net.py:net must return scores [B, 10], but returned float32 [3, 9]",
    ),
    "def net(shape, classes): return plain(nn.Linear(64, classes))": (
        "net(head='fc')",
        "unknown layer of net.py:net(head='fc') 'fc': known are 0, 1",
    ),
    "class Odd(Net):\n    def forward(self, x):\n        return self.head(F.relu(self.body(x) - 1))\n\n\n"
    "def net(shape, classes): return Odd()": (
        "net",
        "forward of net.py:net must be head(body(x)), but it does something else, which would be ignored",
    ),
    "class Body(nn.Module):\n    def forward(self, x):\n        return x @ torch.ones(3, 3)\n\n\n"
    "def net(shape, classes):\n    net = Net()\n    net.body = Body()\n    return net": (
        "net",
        f"the body of net.py:net fails on images of 1×8×8: {{tmp}}/net.py:{HEADER + 3}: RuntimeError:",
    ),
    "def net(shape, classes):\n    return Net(classes.width)": (
        "net",
        f"net.py:{HEADER + 2}: AttributeError: 'int' object has no attribute 'width'",
    ),
    "def net(shape): return Net()": (
        "net",
        "model net.py:net cannot be made for 10 classes of 1×8×8: TypeError: net() takes 1 positional argument but 2",
    ),
    "def net(shape, classes, depth=1): return Net()": (
        "net(dept=2)",
        "TypeError: net() got an unexpected keyword argument 'dept'",
    ),
    "def net(shape, classes, depth=1): return Net(depth)  #": (
        "net(depth=two)",
        "options after a name must be keyword literals",
    ),
    "net = 3": ("net", "a model must be a function (shape, classes, **options) that returns a torch.nn.Module, but"),
    "def net(shape, classes): return None": ("net", "must return a torch.nn.Module, but returned an instance"),
    "def nets(shape, classes): return Net()": ("net", "unknown name in {tmp}/net.py: 'net': did you mean 'nets'"),
    "def net(shape, classes):\n    net = Net()\n    net.body = nn.Identity()\n    return net": (
        "net",
        "the body of net.py:net must return features [B, D] for B rows, but returned float32 [3, 1, 8, 8] for 3 rows",
    ),
    "def net(shape, classes): return Net(0)": (
        "net",
        "body.1.weight of net.py:net is empty; give it a width of 1 or more",
    ),
    "class Body(nn.Module):\n    def forward(self, x):\n        return x.flatten(1) - x.flatten(1).mean(0)\n\n\n"
    "def net(shape, classes):\n    net = Net(64)\n    net.body = Body()\n    return net": (
        "net",
        "a row's features must depend on this row only, but those of net.py:net change with other rows",
    ),
    "class Body(nn.Module):\n    def forward(self, x):\n        return F.dropout(x.flatten(1))\n\n\n"
    "def net(shape, classes):\n    net = Net(64)\n    net.body = Body()\n    return net": (
        "net",
        "or from call to call",
    ),
    "import random\n\n\ndef net(shape, classes):\n    net = Net()\n    net.head.bias.data += random.random()\n"
    "    return net": (
        "net",
        "a seed must determine the initialisation, but two of net.py:net differ",
    ),
    "def net(shape, classes):\n    net = Net()\n    net.scale = nn.Parameter(torch.ones(1))\n    return net": (
        "net",
        "a model must have all tensors in body and head, but net.py:net has scale outside",
    ),
    "def net(shape, classes):\n    net = Net()\n    net.body[1].weight.requires_grad = False\n    return net": (
        "net",
        "body.1.weight of net.py:net has requires_grad=False",
    ),
    "def net(shape, classes):\n    net = Net(10)\n    net.head.bias = net.body[1].bias\n    return net": (
        "net",
        "head.bias of net.py:net is the same tensor as body.1.bias",
    ),
    "def net(shape, classes):\n    net = Net()\n    net.body.spare = nn.LazyLinear(3)\n"
    "    net.body.forward = lambda x: x.flatten(1)[:, :8]\n    return net": (
        "net",
        "body.spare.weight of net.py:net has no size before it is run",
    ),
    "class Late(nn.Module):\n    def forward(self, x):\n        if self.training and not hasattr(self, 'scale'):\n"
    "            self.scale = nn.Parameter(torch.ones(8))\n        return x\n\n\n"
    "def net(shape, classes):\n    net = Net()\n    net.body.append(Late())\n    return net": (
        "net",
        "body.3.scale of net.py:net is created only in training; create it in __init__",
    ),
    "def net(shape, classes):\n    net = Net()\n    net.body = torch.jit.trace(net.body, torch.zeros(2, *shape))\n"
    "    return net": (
        "net",
        "but body of net.py:net is a TorchScript module; return it as it was before torch.jit.script",
    ),
    "def net(shape, classes):\n    net = Net()\n    net.body[1].compile()\n    return net": (
        "net",
        "but body.1 of net.py:net is compiled by torch.compile; return it uncompiled",
    ),
    "def net(shape, classes): return nn.DataParallel(Net())": (
        "net",
        "but net.py:net is a DataParallel; return the module inside, its .module",
    ),
    "def net(shape, classes):\n"
    "    return torch.ao.quantization.quantize_dynamic(Net(), {nn.Linear}, dtype=torch.qint8)": (
        "net",
        "but body.1 of net.py:net is a quantised Linear; return it as it was before torch.ao.quantization",
    ),
    "def net(shape, classes):\n    net = Net()\n    net.body[1].register_buffer('turn', torch.ones(8) * 1j)\n"
    "    return net": (
        "net",
        "body.1.turn of net.py:net is complex; keep its real and its imaginary part as separate tensors",
    ),
    "def net(shape, classes):\n    net = Net()\n    net.head.weight.register_hook(lambda g: g * 0)\n    return net": (
        "net",
        "head.weight of net.py:net has a hook (register_hook), which would not be called",
    ),
    "def net(shape, classes):\n    net, layer = Net(), nn.Linear(8, 8)\n"
    "    net.body.extend([layer, nn.ReLU(), layer])\n    return net": (
        "net",
        "body.5.weight of net.py:net is the same tensor as body.3.weight, but tied tensors are not supported; "
        "call one layer twice in forward",
    ),
    "def net(shape, classes):\n    net = Net()\n    net.body[1].bias.data += float('nan')\n    return net": (
        "net",
        "the body of net.py:net must return finite numbers, but returned nan or inf before any training",
    ),
    "def net(shape, classes): return Net()  # fixed width": (
        "net --features 9",
        "all models need features of the same width, but net.py:net has 8 and --features has 9",
    ),
}


@pytest.mark.parametrize("code", WRONG)
@pytest.mark.filterwarnings("ignore:.*deprecated")  # TorchScript, quantisation
@pytest.mark.usefixtures("nothing_starts")
def test_a_wrong_model_is_refused_in_one_line(
    code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(GOOD + code + "\n")
    name, words = WRONG[code]
    line = refusal(console.main, f"search --algo fedavg --model net.py:{name}", capsys)
    assert words.replace("{tmp}", str(tmp_path)) in line
    assert [p.name for p in tmp_path.iterdir()] == ["net.py"]


def saved(path: Path, content: object) -> None:
    torch.save(content, path)


STATE = {"body.0.weight": torch.ones(3, 3), "head.weight": torch.ones(10, 64)}
WRONG_STARTS = {
    "--start-from {tmp}/none.pt": "--start-from takes FILE.pt or FILE.pt:part, but {tmp}/none.pt cannot be read: No",
    "--start-from {tmp}": "--start-from takes FILE.pt or FILE.pt:part, but {tmp} cannot be read: Is a directory",
    "--start-from {tmp}/text.pt": "text.pt has no weights that can be loaded without running code",
    "--start-from {tmp}/list.pt": "a state_dict, or a file from fedtune run --save, but list.pt holds a list",
    "--start-from {tmp}/state.pt:haed": "unknown part 'haed': did you mean 'head'",
    "--start-from {tmp}/state.pt:body": "body.0.weight is 3×3 in the file and 16×1×3×3 in the model",
    "--start-from {tmp}/state.pt:head": "head.bias is missing in the file",
    "--start fresh": "invalid choice: 'fresh'",
}


@pytest.mark.parametrize("command", ["search", "run"])
@pytest.mark.parametrize("arguments", WRONG_STARTS)
@pytest.mark.usefixtures("nothing_starts")
def test_a_wrong_start_is_refused_in_one_line(
    command: str, arguments: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "list.pt", [1, 2])
    saved(tmp_path / "state.pt", STATE)
    (tmp_path / "text.pt").write_text("no weights")
    before = sorted(tmp_path.rglob("*"))
    line = refusal(console.main, f"{command} --algo fedavg {arguments}".replace("{tmp}", str(tmp_path)), capsys)
    assert WRONG_STARTS[arguments].replace("{tmp}", str(tmp_path)) in line
    assert sorted(tmp_path.rglob("*")) == before
