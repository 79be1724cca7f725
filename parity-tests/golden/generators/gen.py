"""Build golden suites from a parameter table.

    python generators/gen.py TABLE.py OUTDIR      one SUITE.json + SUITE.safetensors per suite of the table
    python generators/gen.py --index INDEX.md     the table of kernel names, inputs, arguments and outputs

Needs PyTorch (CPU), torchvision and numpy. The result depends only on the table, the generators and the PyTorch version.
"""
import collections, importlib, importlib.util, json, os, sys
import torch
import core

for family in ("activation conv norm pool attention loss optimizer rnn utility graph binary unary reduce shape index create scan gemm language_model "
               "linalg").split():
    importlib.import_module(family)      # registers its kernels; their order is that of INDEX.md


def load_table(path):
    spec = importlib.util.spec_from_file_location("case_table", path)
    mod = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mod)
    return mod.T


def build_case(row, salt):
    "(JSON entry, tensors) of one row"
    c = core.evaluate(row, salt)
    c.check_names()
    args = dict(c.args)
    if c.strides:
        args["strides"] = c.strides
    entry = {"id": c.id, "kernel": row["kernel"], "dtype": c.dtype, "args": args, "in": c.order,
             "out": core.tolerances(c, row, salt)}
    if c.prev:
        entry["accumulate"] = sorted(c.prev)
    if c.error:
        entry["error"] = c.error
    tensors = {f"{c.id}|in|{n}": t for n, t in {**c.ins, **c.prev}.items()}
    for n, (v, _) in c.outs.items():
        tensors[f"{c.id}|out|{n}"] = v.double() if v.is_floating_point() else v
    return entry, tensors


def build(table_path, out):
    T = load_table(table_path)
    suites = collections.OrderedDict()
    for row in T.rows:
        suites.setdefault(core.REGISTRY[row["kernel"]].suite, []).append(row)
    total = 0
    for name, rows in suites.items():
        entries, tensors = [], {}
        for row in rows:
            e, t = build_case(row, T.salt)
            entries.append(e)
            tensors.update(t)
        base = os.path.join(out, name)
        with open(base + ".json", "w") as f:
            f.write("[\n" + ",\n".join(json.dumps(e, separators=(",", ":"), allow_nan=False) for e in entries) + "\n]\n")
        core.write_safetensors(base + ".safetensors", tensors)
        size = os.path.getsize(base + ".json") + os.path.getsize(base + ".safetensors")
        total += size
        print(f"{name:22s} {len(rows):5d} cases {len({r['kernel'] for r in rows}):4d} kernels {size / 1024:8.1f} KiB")
    print(f"total {len(T.rows)} cases, {len({r['kernel'] for r in T.rows})} kernels, {total / 2 ** 20:.2f} MiB")


def field(f):
    s = f["name"] + ("0, " + f["name"] + "1, ..." if f["list"] else "")
    if f["kind"] != "data":
        s += ":" + f["kind"]
    return f"[{s}]" if f["opt"] else s


def index(path):
    text = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "index_head.md")).read()
    groups = collections.OrderedDict()
    for k in core.REGISTRY.values():
        groups.setdefault(k.suite, []).append(k)
    lines = [text]
    for suite in sorted(groups):
        lines += [f"\n## {suite}\n", "| row | kernel | in (order; [optional]) | args (default) | out | note |", "|---|---|---|---|---|---|"]
        for k in groups[suite]:
            args = ", ".join(a if v == "required" else f"{a}={json.dumps(core.jsonable(v))}" for a, v in k.args.items())
            lines.append("| %s | `%s` | %s | %s | %s | %s |" % (k.sec, k.name, ", ".join(map(field, k.ins)) or "-", args or "-",
                                                           ", ".join(map(field, k.outs)), k.note.replace("|", "\\|")))
    open(path, "w").write("\n".join(lines) + "\n")
    print(len(core.REGISTRY), "kernel names")


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "--index":
        index(sys.argv[2])
    else:
        build(sys.argv[1], sys.argv[2])
