"""Golden suites from the samples of PyTorch's operator database (torch.testing, `op_db`).

    python opinfo/write.py OUTDIR [OPERATOR...]     (from parity-tests/golden; PyTorch on the CPU, numpy, expecttest)

For every operator whose meaning a kernel of the library has, the samples in f32, f16 and bf16 become cases of that kernel and of its gradient.
The modules beside this one hold the mappings, one per family of operators. The result depends only on them and on the version of PyTorch.
"""
import collections, itertools, json, os, sys, warnings
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "generators"), HERE]
import torch
from torch.testing._internal.common_methods_invocations import op_db
import core, gen                                                               # noqa: F401  (gen fills the registry of kernels)
import harness
import map_elementwise, map_index, map_linalg, map_loss, map_movement, map_nn, map_reduce   # noqa: F401

SMALL, LARGE, LARGEST = 200, 1024, 4096     # elements of all tensors of a sample: preferred, taken if there are too few, taken if there is no other
SAMPLES = 7                         # per operator and storage type
DRAWN = 260                         # samples looked at


def tensors_of(raw):
    flat = torch.utils._pytree.tree_leaves([raw.input, raw.args, raw.kwargs])
    return [t for t in flat if isinstance(t, torch.Tensor)]


def shape_of(raw):
    "what makes two samples alike: everything but the values"
    def one(v):
        return (str(v.dtype), tuple(v.shape), v.stride()) if isinstance(v, torch.Tensor) else repr(v)
    return repr(torch.utils._pytree.tree_map(one, [raw.input, list(raw.args), raw.kwargs]))


def draw(op, dtype):
    "samples of different form, both lists of the database; 16-bit ones are drawn in f32 where the operator knows no other"
    found, seen = [], set()
    for source in (op.sample_inputs, op.reference_inputs):
        for t in (harness.SAMPLED[dtype], torch.float32):
            harness.seed_all(f"{op.full_name}|{dtype}")
            try:
                part = list(itertools.islice(source("cpu", t, requires_grad=False), DRAWN))
                break
            except Exception:                                                  # noqa: BLE001
                part = []
        for raw in part:
            key = shape_of(raw)
            if key not in seen:
                seen.add(key)
                found.append(raw)
    return found


def spread(found, count):
    "the order in which samples are taken: small ones evenly spread over the list, an empty one, then larger ones; and those that only stand in"
    size = [sum(t.numel() for t in tensors_of(r)) for r in found]
    small = [i for i, n in enumerate(size) if 0 < n <= SMALL]
    step = max(1, len(small) // count)
    first = small[::step]
    rest = [i for i in small if i not in first]
    empty = [i for i, n in enumerate(size) if n == 0][:1]
    large = sorted((n, i) for i, n in enumerate(size) if SMALL < n <= LARGE)
    last = sorted((n, i) for i, n in enumerate(size) if LARGE < n <= LARGEST)
    return first + rest + empty + [i for _, i in large], [i for _, i in last]


def entry_cases(name, op, reasons):
    "the cases of one operator"
    suite, fn, dtypes = harness.MAP[name]
    done = []
    for dtype in dtypes:
        found = draw(op, dtype)
        order, last = spread(found, SAMPLES)
        reasons[f"larger than {LARGE} elements"] += len(last)
        taken = []
        for i in order + last:
            if len(taken) >= SAMPLES or (taken and i in last):
                break
            try:
                part = list(harness.cases(fn, op, found[i], dtype, f"{name}/{dtype}_{len(taken)}", 7919 * i + 1, reasons))
            except harness.Skip as e:
                reasons[str(e)] += 1
                continue
            except Exception as e:                                             # noqa: BLE001
                reasons[f"{name}: {type(e).__name__} {str(e)[:70]}"] += 1
                continue
            if part:
                taken.append(i)
                done += part
    return suite, done


def write(out, suites):
    total = 0
    for name in sorted(suites):
        tensors, base = {}, os.path.join(out, name)
        for _, t in suites[name]:
            tensors.update(t)
        with open(base + ".json", "w") as f:
            lines = [json.dumps(e, separators=(",", ":"), allow_nan=False) for e, _ in suites[name]]
            f.write("[\n" + ",\n".join(lines) + "\n]\n")
        core.write_safetensors(base + ".safetensors", tensors)
        size = os.path.getsize(base + ".json") + os.path.getsize(base + ".safetensors")
        total += size
        ops = {e["id"].split("/")[0] for e, _ in suites[name]}
        kernels = {e["kernel"] for e, _ in suites[name]}
        print(f"{name:14s} {len(ops):4d} operators {len(kernels):4d} kernels {len(suites[name]):6d} cases {size / 1024:8.1f} KiB")
    ops = {e["id"].split("/")[0] for s in suites.values() for e, _ in s}
    print(f"total {len(ops)} operators, {sum(map(len, suites.values()))} cases, {total / 2 ** 20:.2f} MiB")


def main():
    out, only = sys.argv[1], sys.argv[2:]
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    ops = {}
    for op in op_db:
        ops.setdefault(op.full_name, op)
    suites, reasons = collections.defaultdict(list), collections.Counter()
    for name in only or harness.MAP:
        suite, done = entry_cases(name, ops[name], reasons)
        suites[suite] += done
        if not done:
            print("no case:", name)
    write(out, suites)
    for text, n in reasons.most_common():
        if n:
            print(f"left out {n:5d}: {text}")


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":       # some samplers of PyTorch go through a set of strings
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})
    main()
