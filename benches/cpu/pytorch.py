"""Times training steps on the CPU, trefoil's and PyTorch's in turns, and prints medians with their ratio.

Usage: python pytorch.py [--trefoil PROGRAM] [--candle PROGRAM] [--burn PROGRAM] [--rounds N] [--threads N] [--only TEXT] [--json FILE]

The steps are those of cases.json: clear gradients, forward, cross-entropy, backward, update. A ratio is another's time divided by trefoil's. All use
the same number of threads; rounds alternate, so that what else the machine does meets all. Memory is the peak of a process that runs some steps, in
MB, beyond that of one that runs the first case, the smallest. --candle, --burn: the programs of the folders of
these names (`cargo build --release` there).
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as F
from torch import nn

HERE = pathlib.Path(__file__).parent
OTHERS = ("candle", "burn")


def mlp(c):
    sizes = [c["in"], *c["hidden"], c["out"]]
    layers = [l for a, b in zip(sizes, sizes[1:]) for l in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1]), torch.randn(c["batch"], c["in"]), torch.randint(0, c["out"], (c["batch"],))


def cnn(c):
    channels, side, layers = [c["in"], *c["channels"]], c["h"], []
    for i, (a, b) in enumerate(zip(channels, channels[1:])):
        layers += [nn.Conv2d(a, b, 3, padding=1), *([nn.BatchNorm2d(b)] if c.get("batch_norm") else []), nn.ReLU()]
        if i + 2 == len(channels) or not c.get("pool_last"):
            layers.append(nn.MaxPool2d(2))
            side //= 2
    layers += [*([nn.Dropout(c["dropout"])] if "dropout" in c else []), nn.Flatten()]
    sizes = [channels[-1] * side * side, *c.get("hidden", []), c["classes"]]
    layers += [l for a, b in zip(sizes, sizes[1:]) for l in (nn.Linear(a, b), nn.ReLU())][:-1]
    x = torch.randn(c["b"], c["in"], c["h"], c["h"])
    return nn.Sequential(*layers), x, torch.randint(0, c["classes"], (c["b"],))


class LstmLm(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.e = nn.Embedding(c["vocab"], c["d"])
        self.r = nn.LSTM(c["d"], c["d"], c["layers"], batch_first=True)
        self.o = nn.Linear(c["d"], c["vocab"])

    def forward(self, ids):
        return self.o(self.r(self.e(ids))[0]).flatten(0, 1)


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.f1, self.f2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, d))
        return x + self.f2(F.gelu(self.f1(self.n2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, c):
        super().__init__()
        d = c["d"]
        self.te, self.pe = nn.Embedding(c["vocab"], d), nn.Embedding(c["t"], d)
        self.blocks = nn.Sequential(*(Block(d, c["h"]) for _ in range(c["layers"])))
        self.n, self.head = nn.LayerNorm(d), nn.Linear(d, c["vocab"], bias=False)
        self.head.weight = self.te.weight

    def forward(self, ids):
        return self.head(self.n(self.blocks(self.te(ids) + self.pe.weight[: ids.shape[1]]))).flatten(0, 1)


class Basic(nn.Module):
    """Two convolutions around which the input passes."""

    def __init__(self, a, b, stride):
        super().__init__()
        self.c1, self.n1 = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b)
        self.c2, self.n2 = nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b)
        self.down = nn.Sequential()
        if stride > 1 or a != b:
            self.down = nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b))

    def forward(self, x):
        y = F.relu(self.n1(self.c1(x)))
        return F.relu(self.n2(self.c2(y)) + self.down(x))


def resnet(c):
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    widths = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
    blocks = [Basic(*w) for a, b, s in widths for w in ((a, b, s), (b, b, 1))]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, c["classes"])]
    x = torch.randn(c["b"], 3, c["h"], c["h"])
    return nn.Sequential(*stem, *blocks, *head), x, torch.randint(0, c["classes"], (c["b"],))


def language(model):
    def make(c):
        ids = torch.randint(0, c["vocab"], (c["b"], c["t"] + 1))
        return model(c), ids[:, :-1].contiguous(), ids[:, 1:].flatten()

    return make


def adam(p):
    return torch.optim.Adam(p, 1e-3, fused=True)


def adamw(p):
    return torch.optim.AdamW(p, 1e-3, fused=True)


CASES = {
    "train_mlp": (mlp, adam),
    "train_cnn": (cnn, adam),
    "train_lstm_lm": (language(LstmLm), adam),
    "train_gpt": (language(Gpt), lambda p: torch.optim.AdamW(p, 1e-4, fused=True)),
    "train_resnet": (resnet, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, fused=True)),
}


def torch_step(c):
    make, optimizer = CASES[c["op"]]
    model, x, y = make(c)
    opt = (adamw if c.get("adamw") else optimizer)(model.parameters())

    def step():
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()

    return step


def microseconds(step, seconds=1.0):
    for _ in range(3):
        step()
    times, start = [], time.perf_counter()
    while len(times) < 5 or time.perf_counter() - start < seconds:
        t = time.perf_counter()
        step()
        times.append(time.perf_counter() - t)
    return statistics.median(times) * 1e6


def run_trefoil(program, case, threads, out):
    cases = pathlib.Path(out.parent, "cases.json")
    cases.write_text(json.dumps([case]))
    return [program, "bench", cases, "--backend", "cpu", "--json", out, "--budget", "1"], threaded(threads)


def threaded(threads):
    return {**os.environ, "RAYON_NUM_THREADS": str(threads)}


def trefoil(program, case, threads):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "out.json")
        command, env = run_trefoil(program, case, threads, out)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=env)
        return json.loads(out.read_text())[case["id"]]["host_us"]


def other(program, case, threads):
    """Microseconds by candle or Burn; not a number without a program, and for a case that it does not have."""
    if not program:
        return float("nan")
    done = subprocess.run([program, HERE / "cases.json", case["id"]], check=True, capture_output=True, env=threaded(threads))
    return json.loads(done.stdout).get(case["id"], float("nan"))


MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def peak(command, env):
    """Megabytes of a process at most; started by a small one, since a process inherits the peak of the one that starts it."""
    done = subprocess.run([sys.executable, "-c", MEASURE, *command], check=True, capture_output=True, env=env)
    return int(done.stdout) / 1024


def peaks(program, case, threads):
    """Megabytes of trefoil and of PyTorch at most."""
    with tempfile.TemporaryDirectory() as folder:
        ours = peak(*run_trefoil(program, case, threads, pathlib.Path(folder, "out.json")))
    theirs = [sys.executable, __file__, "--steps-of", case["id"], "--threads", str(threads)]
    return ours, peak(theirs, dict(os.environ))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--trefoil", default="target/release/trefoil")
    ap.add_argument("--candle")
    ap.add_argument("--burn")
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--only", default="")
    ap.add_argument("--json")
    ap.add_argument("--steps-of", help=argparse.SUPPRESS)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    cases = json.loads((HERE / "cases.json").read_text())
    if a.steps_of:
        step = next(torch_step(c) for c in cases if c["id"] == a.steps_of)
        for _ in range(5):
            step()
        return
    results, resting = {}, peaks(a.trefoil, cases[0], a.threads)
    print(f"PyTorch {torch.__version__}, {a.threads} threads, medians of {a.rounds} rounds")
    heads = "".join(f" {name + ' us':>11} {'ratio':>6}" for name in ("PyTorch", *OTHERS))
    print(f"{'step':<10} {'trefoil us':>11}{heads} {'MB':>7} {'PyTorch':>7}")
    for case in cases:
        if a.only not in case["id"]:
            continue
        step, rounds = torch_step(case), []
        for _ in range(a.rounds):
            both = trefoil(a.trefoil, case, a.threads), microseconds(step)
            rounds.append((*both, *(other(getattr(a, name), case, a.threads) for name in OTHERS)))
        ours, theirs, *others = (statistics.median(times) for times in zip(*rounds))
        memory = [most - least for most, least in zip(peaks(a.trefoil, case, a.threads), resting)]
        results[case["id"]] = {"trefoil_us": ours, "pytorch_us": theirs, "trefoil_mb": memory[0], "pytorch_mb": memory[1]}
        results[case["id"]] |= {f"{name}_us": us for name, us in zip(OTHERS, others) if us == us}
        times = "".join(f" {us:>11.1f} {us / ours:>6.2f}" for us in (theirs, *others))
        print(f"{case['id']:<10} {ours:>11.1f}{times} {memory[0]:>7.0f} {memory[1]:>7.0f}", flush=True)
    if a.json:
        pathlib.Path(a.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
