"""Check finished suites.

    python generators/check.py SUITEDIR [--table TABLE.py]

1. structure: unique ids, every tensor present and used, shapes of accumulate inputs, finite tolerances;
2. every case whose kernel has a second formula (reference/) is evaluated again from the files in float64; the result has to meet the
   case's own tolerance;
3. with --table: the generators are run in plain float32 and have to meet the tolerance too, so a correct f32 implementation can pass.
"""
import collections, glob, json, os, sys, warnings
import numpy as np
from reference import NS, REFS
from core import REGISTRY, read_safetensors
import gen  # noqa: F401  (fills the registry)

warnings.filterwarnings("ignore")
np.seterr(all="ignore")
NUMERIC_LIMIT = 400          # largest input for which gradients are taken numerically


def logical(entry, name, tensors):
    "the input as a logical array: strided inputs are unfolded"
    kind, v = tensors[f"{entry['id']}|in|{name}"]
    st = entry["args"].get("strides", {}).get(name)
    if st:
        assert v.ndim == 1
        size = v.dtype.itemsize
        last = st["offset"] + sum((n - 1) * s for n, s in zip(st["shape"], st["strides"]))
        assert last < v.size, (entry["id"], name, "view leaves the buffer")
        v = np.lib.stride_tricks.as_strided(v[st["offset"]:], st["shape"], [s * size for s in st["strides"]])
    return v.astype(np.float64) if kind in ("f32", "f16", "bf16", "f64") else v


def compare(got, want, tol):
    "largest violation relative to the allowance (<= 1 passes)"
    got = np.asarray(got)
    if got.dtype.kind == "b":
        got = got.astype(np.uint8)
    if got.shape != want.shape:
        return f"shape {got.shape} instead of {want.shape}"
    if want.dtype.kind in "iu":
        bad = int((got.astype(np.int64) != want.astype(np.int64)).sum())
        return f"{bad} integers differ" if bad else 0.0
    got = got.astype(np.float64)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    err = np.where(same, 0, np.abs(got - want))
    if tol.get("exact"):
        return 0.0 if same.all() else f"not equal, largest difference {np.nanmax(err):.3g}"
    ok = same | (err <= tol["atol"] + tol["rtol"] * np.abs(want))
    if not ok.all():
        i = np.unravel_index(np.argmax(np.where(ok, -1, np.nan_to_num(err, nan=1e300, posinf=1e300))), err.shape) if err.ndim else ()
        return f"got {got[i]:.9g} want {want[i]:.9g}, allowed {tol['atol'] + tol['rtol'] * abs(want[i]):.3g} ({int((~ok).sum())} of {ok.size})"
    al = np.where(same, 1.0, tol["atol"] + tol["rtol"] * np.abs(want))
    return float((err / al).max()) if err.size else 0.0


def check_suite(base, stats, close):
    entries, tensors = json.load(open(base + ".json")), read_safetensors(base + ".safetensors")
    assert len({e["id"] for e in entries}) == len(entries), base
    used, problems = set(), []
    for e in entries:
        k = REGISTRY[e["kernel"]]
        stats["cases"] += 1
        names = list(e["in"]) + list(e.get("accumulate", []))
        for n in names:
            used.add(f"{e['id']}|in|{n}")
        for n, tol in e["out"].items():
            used.add(f"{e['id']}|out|{n}")
            assert tol.get("exact") is True or (np.isfinite(tol["rtol"]) and np.isfinite(tol["atol"]) and tol["atol"] >= 0), e["id"]
        for n in e["args"]:
            assert n in k.args or n == "strides", (e["id"], n)
        for n, d in k.args.items():
            assert d != "required" or n in e["args"], (e["id"], "argument missing", n)
        assert bool(e.get("error")) != bool(e["out"]), e["id"]
        for n in e.get("accumulate", []):
            assert tensors[f"{e['id']}|in|{n}"][1].shape == tensors[f"{e['id']}|out|{n}"][1].shape, e["id"]
        if e.get("error"):
            stats["error cases"] += 1
            continue
        f = REFS.get(e["kernel"])
        if f is None:
            stats["no second formula"] += 1
            stats.setdefault("kernels without", set()).add(e["kernel"])
            continue
        v = NS({n: logical(e, n, tensors) for n in e["in"]})
        if getattr(f, "numeric", False) and max([t.size for t in v.values()] + [0]) > NUMERIC_LIMIT:
            stats["too large for differences"] += 1
            continue
        a = NS({**{n: d for n, d in k.args.items() if d != "required"}, **e["args"]})
        if k.fn.__name__ not in ("x",):
            v["_dtype"] = e["dtype"]
        if e["kernel"].startswith(("gradient_clip", "gemm_grouped", "concat", "stack", "meshgrid", "cartesian")):
            v.pop("_dtype")
        try:
            got = f(a, v)
        except Exception as err:                                              # noqa: BLE001
            problems.append(f"{e['id']}: second formula failed, {type(err).__name__} {err}")
            continue
        stats["second formula"] += 1
        for n, tol in e["out"].items():
            want = tensors[f"{e['id']}|out|{n}"][1]
            if n not in got or got[n] is None:
                problems.append(f"{e['id']}: second formula has no {n}")
                continue
            g = np.asarray(got[n])
            if n in e.get("accumulate", []):
                g = g + tensors[f"{e['id']}|in|{n}"][1].astype(np.float64)
            if want.dtype.kind == "f" and e["dtype"] in ("f32", "f16", "bf16"):
                kind = k.out_kind.get(n, "data")
                kind = e["dtype"] if kind == "data" else kind
                top = {"f32": 3.4028235677973366e38, "f16": 65520.0, "bf16": 3.3961775292304601e38}.get(kind, np.inf)
                g = np.where(np.abs(g.astype(np.float64)) >= top, np.copysign(np.inf, g.astype(np.float64)), g)
                if tol.get("exact") and kind == "f32":                        # exact results that were rounded to storage
                    g = g.astype(np.float32).astype(np.float64) if want.size and np.array_equal(want, want.astype(np.float32), equal_nan=True) else g
            r = compare(g, want, tol)
            stats["outputs"] += 1
            if isinstance(r, str):
                problems.append(f"{e['id']} {n}: {r}")
            else:
                close.append((r, f"{e['id']} {n}"))
    extra = set(tensors) - used
    assert not extra, (base, sorted(extra)[:5])
    missing = used - set(tensors)
    assert not missing, (base, sorted(missing)[:5])
    return problems


def check_f32(table):
    import torch
    import core
    torch.set_num_threads(1)
    T, n, problems = gen.load_table(table), 0, []
    for row in T.rows:
        if row["params"].get("err") or row["params"].get("dtype", "f32") != "f32":
            continue
        c = core.evaluate(row, T.salt)
        nat = core.evaluate(row, T.salt, torch.float32, swallow=True)
        if nat is None or c.notorch:
            continue
        n += 1
        tol = core.tolerances(c, row, T.salt)
        for o, (v, _) in c.outs.items():
            g = nat.outs[o][0]
            ok = core.accepted(g, v, tol[o]) if v.is_floating_point() else g.long() == v.long()
            if not ok.all():
                problems.append(f"{row['id']} {o}: {int((~ok).sum())} of {ok.numel()} elements of the f32 run fail")
    print(f"f32 runs: {n} cases, {len(problems)} outputs fail")
    return problems


def main():
    root, stats, problems, close = sys.argv[1], collections.Counter(), [], []
    size = 0
    for j in sorted(glob.glob(os.path.join(root, "*.json"))):
        problems += check_suite(j[:-5], stats, close)
        size += os.path.getsize(j) + os.path.getsize(j[:-5] + ".safetensors")
    without = stats.pop("kernels without", set())
    print(f"{root}: " + ", ".join(f"{k} {v}" for k, v in stats.items()) + f", {size / 2 ** 20:.2f} MiB")
    if without:
        print("kernels without a second formula:", " ".join(sorted(without)))
    close.sort(reverse=True)
    print("closest to their limit:", "; ".join(f"{n} {r:.2f}" for r, n in close[:8]))
    if "--table" in sys.argv:
        problems += check_f32(sys.argv[sys.argv.index("--table") + 1])
    for p in problems:
        print("DISAGREE", p)
    print("OK" if not problems else f"{len(problems)} disagreements")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
