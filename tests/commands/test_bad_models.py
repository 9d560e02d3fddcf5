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


def net(change: str, before: str = "") -> str:
    """A file whose model is Net with this change."""
    return f"{before}\n\ndef net(shape, classes, depth=1):\n    net = Net()\n    {change}\n    return net"


def body(result: str, d: int = 64) -> str:
    """A file whose model has a body that returns this of x."""
    return net(
        "net.body = Body()", f"class Body(nn.Module):\n    def forward(self, x):\n        return {result}"
    ).replace("Net()\n", f"Net({d})\n")


def of(result: str) -> str:
    """A file whose model is this."""
    return f"def net(shape, classes, depth=1): return {result}"


PARTS = "a model must have the parts body and head, and all tensors in them, but what net.py:net returns has "
WHOLE = "return it as it was before TorchScript, torch.compile, quantisation or DataParallel"
LATE = """class Late(nn.Module):
    def forward(self, x):
        if self.training and not hasattr(self, 'scale'):
            self.scale = nn.Parameter(torch.ones(8))
        return x"""
ODD = "class Odd(Net):\n    def forward(self, x):\n        return self.head(F.relu(self.body(x) - 1))\n\n\n"
WRONG: list[tuple[str, str, str]] = [  # what follows GOOD in the file, the reference's NAME, what the line says
    (of("plain(nn.Linear(64, classes))"), "net", f"{PARTS}1.weight, 1.bias; put all in them, or name its last layer"),
    (of("Net().body"), "net", "an option head='2' after its name"),
    (net("net.scale = nn.Parameter(torch.ones(1))"), "net", f"{PARTS}scale"),
    (net("net.head = nn.Linear(9, classes)"), "net", "does not take the body's features [B, 8]: RuntimeError:"),
    (of("Net(classes=classes - 1)"), "net", "must return scores [B, 10], but returned a tensor of float32 [3, 9]"),
    (of("plain(nn.Linear(64, classes))"), "net(head='fc')", "unknown layer of net.py:net(head='fc') 'fc': known are 0"),
    (
        of("plain(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, classes), nn.Softmax(1))"), "net(head='3')",
        "forward of net.py:net(head='3') must be head(body(x))",
    ),
    (ODD + of("Odd()"), "net", "forward of net.py:net must be head(body(x)), but it does something else"),
    (body("x @ torch.ones(3, 3)"), "net", f"fails on images of 1×8×8: {{tmp}}/net.py:{HEADER + 3}: RuntimeError:"),
    (of("Net(classes.width)"), "net", f"net.py:{HEADER + 1}: AttributeError: 'int' object has no attribute 'width'"),
    ("def net(shape): return Net()", "net", "cannot be made for 10 classes of 1×8×8: TypeError: net()"),
    (of("Net()"), "net(dept=2)", "TypeError: net() got an unexpected keyword argument 'dept'"),
    (of("Net()"), "net(depth=two)", "options after a name must be keyword literals"),
    ("net = 3", "net", "a model must be a function (shape, classes, **options) that returns a torch.nn.Module, but"),
    ("net = Net()", "net", "but net.py:net is a Net"),
    (of("None"), "net", "must return a torch.nn.Module, but returned None"),
    (of("Net()"), "nat", "unknown name in {tmp}/net.py: 'nat': did you mean 'net'"),
    (net("net.body = nn.Identity()"), "net", "features [B, D] for B rows, but returned a tensor of float32"),
    (of("Net(0)"), "net", "body.1.weight of net.py:net is empty; give it a width of 1 or more"),
    (body("x.flatten(1) - x.flatten(1).mean(0)"), "net", "a row's features must depend on this row only"),
    (body("F.dropout(x.flatten(1))"), "net", "or from call to call"),
    (net("net.head.bias.data += random.random()", "import random"), "net", "a seed must determine the initialisation"),
    (net("net.body[1].weight.requires_grad = False"), "net", "body.1.weight of net.py:net has requires_grad=False"),
    (
        net("net.body.spare = nn.LazyLinear(3)\n    net.body.forward = lambda x: x.flatten(1)[:, :8]"), "net",
        "body.spare.weight of net.py:net must be real numbers on the CPU, of a size that is known before training",
    ),
    (net("net.body[1].register_buffer('turn', torch.ones(8) * 1j)"), "net", "turn of net.py:net must be real numb"),
    (net("net.head.bias = nn.Parameter(torch.ones(10, device='meta'))"), "net", "head.bias of net.py:net must be real"),
    (net("net.body.append(Late())", LATE), "net", "body.3.scale of net.py:net is created only in training"),
    (net("net.body = torch.jit.trace(net.body, torch.zeros(2, *shape))"), "net", WHOLE),
    (of("torch.jit.script(Net())"), "net", WHOLE),
    (of("torch.compile(Net())"), "net", WHOLE),
    (net("net.body[1].compile()"), "net", "but body.1 of net.py:net is a Linear: return it as it was"),
    (of("nn.DataParallel(Net())"), "net", "but net.py:net is a DataParallel: return it as it was"),
    (of("torch.ao.quantization.quantize_dynamic(Net(), {nn.Linear}, dtype=torch.qint8)"), "net", WHOLE),
    (net("net.head.weight.register_hook(lambda g: g * 0)"), "net", "head.weight of net.py:net has a hook"),
    (
        net("layer = nn.Linear(8, 8)\n    net.body.extend([layer, nn.ReLU(), layer])"), "net",
        "body.5.weight of net.py:net is the same tensor as body.3.weight, but tied tensors are not supported",
    ),
    (net("net.body[1].bias.data += float('nan')"), "net", "must return finite numbers, but returned nan or inf before"),
    (of("Net()"), "net --features 9", "all models need features of the same width, but net.py:net has 8"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "name", "words"), WRONG)
@pytest.mark.filterwarnings("ignore:.*deprecated")  # TorchScript, quantisation
@pytest.mark.usefixtures("nothing_starts")
def test_a_wrong_model_is_refused_in_one_line(
    code: str,
    name: str,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(GOOD + code + "\n")
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
