"""Writes docs/BANDWIDTH.md: the share of a copy's speed that each operation bound by memory reaches.

    TREFOIL_BACKEND=cuda cargo bench --bench ops -- --quick > LOG
    python benches/bandwidth.py "one NVIDIA H200, 2026-11-30" LOG > docs/BANDWIDTH.md

LOG is what `cargo bench` prints; of several the later ones replace what the earlier ones measured. A page that was written before counts as one, so that
some operations can be measured alone:

    TREFOIL_BACKEND=cuda cargo bench --bench ops -- --quick "copy/flat|row_loss" > LOG
    python benches/bandwidth.py "one NVIDIA H200, 2026-11-30" docs/BANDWIDTH.md LOG > PAGE

`--pytorch LOG` adds the times that benches/bandwidth_pytorch.py printed; a page keeps those it has. Standard library only.
"""

import argparse
import pathlib
import re

TIME = re.compile(r"time:\s+\[[\d.]+ \S+ ([\d.]+) (\S+) ")
RATE = re.compile(r"thrpt:\s+\[[\d.]+ \S+ ([\d.]+) (\S+) ")
MICROSECONDS = {"ns": 1e-3, "µs": 1.0, "us": 1.0, "ms": 1e3, "s": 1e6}
BYTES = {"B/s": 1.0, "KiB/s": 2.0**10, "MiB/s": 2.0**20, "GiB/s": 2.0**30, "TiB/s": 2.0**40}
# The copy that all others are compared with.
COPY = ("copy", "flat", "f32")
# What passes between host and device, or only allocates.
CALLS = ("alloc", "read_bytes", "write_bytes")
# Bytes below which a problem is bound by the latency of a launch rather than by memory.
LEAST = 16e6

TITLE = """# Bandwidth

How near each operation that memory bounds comes to the speed of memory: the bytes that have to move at least once by the time, as a share of the same
of a flat copy ({copy} µs for {moved:.0f} MB, {speed:.2f} TB/s). Times are those between device events, in microseconds, launches included; the sizes
are those of `benches/problems`. Shares above 100 % are of operations that read more than they write, or find a part of their operands in a cache.
Written by `benches/bandwidth.py` from what `cargo bench --bench ops -- --quick` prints; {device}.

Products, attention and other operations that count floating-point operations are not here, nor what moves less than {least:.0f} MB or passes between
host and device, nor problems that are newer than the measurement. A small share need not be a fault: there are special functions, recurrences step by
step, and sorts, scattered sums and graphs that read memory in random order or several times.

Of {count} problems {fast} reach 85 %, {middle} 60 to 85 %, {slow} 30 to 60 %, {slowest} less.

Columns PyTorch: the same problem there in microseconds ({pytorch}; eager mode, of gradients the kernels of the
backward pass alone; `benches/bandwidth_pytorch.py`), where an operation or a line of few has it. Of {compared} times PyTorch's is the shorter in
{shorter}. Its sums by atomic additions (`scatter_reduce`, `grid_sample_bwd`) do not repeat bit by bit; those here do. Indices, `one_hot` and
`bernoulli` are wider there.

| operation | problem | f32 µs | of copy | PyTorch | bf16 µs | of copy | PyTorch |
|---|---|---|---|---|---|---|---|"""


def measured(log, rate=True):
    """(operation, problem, dtype) -> (microseconds, bytes that move at least, unless the log has none), in the order of the log."""
    rows, name, time = {}, None, None
    for line in log.splitlines():
        if line.startswith("ops/"):
            name = tuple(line.split()[0].split("/")[1:4])
        if m := TIME.search(line):
            time = float(m[1]) * MICROSECONDS[m[2]]
            if not rate:
                rows[name] = (time, None)
        if (m := RATE.search(line)) and m[2] in BYTES:
            rows[name] = (time, float(m[1]) * BYTES[m[2]] * time * 1e-6)
    return rows


def written(page):
    """The same of a page that was written before, PyTorch's times on it, and the version of these."""
    time, moved = (float(n) for n in re.search(r"\(([\d.]+) µs for (\d+) MB", page).groups())
    rows, pytorch = {COPY: (time, moved * 1e6)}, {}
    for line in page.splitlines():
        if not line.startswith("| `"):
            continue
        op, problem, *cells = (c.strip() for c in line.strip("|").split("|"))
        name, _, other = problem.partition(", ")
        for dtype, us, share, theirs in ((other or "f32", *cells[:3]), ("bf16", *cells[3:])):
            key = (op.strip("`"), name, dtype)
            if us and key != COPY:
                us = float(us.replace(",", ""))
                rows[key] = (us, float(share.strip(" %")) / 100 * us * rows[COPY][1] / time)
            if theirs:
                pytorch[key] = float(theirs.replace(",", ""))
    version = re.search(r"there in microseconds \(([^;]+);", page)
    return rows, pytorch, version and version[1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("device")
    parser.add_argument("logs", nargs="+")
    parser.add_argument("--pytorch")
    given = parser.parse_args()
    rows, page, pytorch, version = {}, {}, {}, None
    for log in given.logs:
        text = pathlib.Path(log).read_text(encoding="utf-8")
        if text.startswith("# "):
            page, pytorch, version = written(text)
            rows.update(page)
        else:
            rows.update(measured(text))
    if given.pytorch:
        text = pathlib.Path(given.pytorch).read_text(encoding="utf-8")
        version = text.splitlines()[0]
        pytorch.update({key: time for key, (time, _) in measured(text, rate=False).items()})
    copy = rows[COPY]
    speed = copy[1] / copy[0]
    # Shares of a page are rounded: the bytes of its small ones are not known well enough to be compared.
    shares = {k: b / t / speed for k, (t, b) in rows.items() if (b >= LEAST or k in page) and k[0] not in CALLS}
    fast, middle, slow = (sum(s >= least for s in shares.values()) for least in (0.85, 0.6, 0.3))
    counts = {"count": len(shares), "fast": fast, "middle": middle - fast, "slow": slow - middle}
    both = [(rows[k][0], pytorch[k]) for k in shares if k in pytorch]
    counts |= {"compared": len(both), "shorter": sum(theirs < ours for ours, theirs in both), "pytorch": version}
    text = {"copy": f"{copy[0]:.1f}", "moved": copy[1] / 1e6, "speed": speed / 1e6, "device": given.device}
    print(TITLE.format(slowest=len(shares) - slow, least=LEAST / 1e6, **counts, **text))

    def cells(key):
        theirs = f"{pytorch[key]:,.1f}" if key in pytorch else ""
        return f"{rows[key][0]:,.1f} | {100 * shares[key]:.0f} % | {theirs}" if key in shares else " |  | "

    for op, problem in dict.fromkeys(k[:2] for k in shares):
        # Integers and bytes take the first columns, with their type in the name.
        others = [k for k in shares if k[:2] == (op, problem) and k[2] not in ("f32", "bf16")]
        for key in others:
            print(f"| `{op}` | {problem}, {key[2]} | {cells(key)} |  |  |  |")
        if (op, problem, "f32") in shares or (op, problem, "bf16") in shares:
            print(f"| `{op}` | {problem} | {cells((op, problem, 'f32'))} | {cells((op, problem, 'bf16'))} |")


if __name__ == "__main__":
    main()
