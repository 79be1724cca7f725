"""PyTorch's times of the problems of benches/problems that it has too, in the format that benches/bandwidth.py reads.

    python benches/bandwidth_pytorch.py > PYTORCH_LOG
    python benches/bandwidth.py "one NVIDIA H200, 2026-11-30" --pytorch PYTORCH_LOG LOG > docs/BANDWIDTH.md

Eager mode, shapes and storage types of benches/problems, random normal inputs; medians of device events around several calls in a row, after a warm-up.
Gradients are those of `torch.autograd.grad` with the graph kept: the kernels of the backward pass alone. Names on the command line choose operations.
"""

import statistics
import sys

import torch
import torch.nn.functional as F

N = 1 << 26
ROWS = (16_384, 4_096)
CLASSES = (4_096, 50_304)
IMAGES = (64, 256, 56, 56)
PLANES = (1, 4_096, 112, 112)
BOTH = (torch.float32, torch.bfloat16)
NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.int64: "i64", torch.uint8: "u8"}


def normal(*shape, dtype=torch.float32):
    return torch.randn(*shape, device="cuda", dtype=dtype)


def ids(high, *shape):
    return torch.randint(high, shape, device="cuda")


def forward(f, *shapes):
    """f of normal tensors of these shapes."""
    return lambda dt: (lambda x: lambda: f(*x))([normal(*s, dtype=dt) for s in shapes])


def backward(f, *shapes):
    """The gradients of f by tensors of these shapes."""

    def prepared(dt):
        x = [normal(*s, dtype=dt).requires_grad_() for s in shapes]
        y = f(*x)
        dy = torch.randn_like(y)
        return lambda: torch.autograd.grad(y, x, dy, retain_graph=True)

    return prepared


def both(op, problem, f, *shapes, dtypes=(torch.float32,)):
    return [(op, problem, forward(f, *shapes), dtypes), (f"{op}_bwd", problem, backward(f, *shapes), dtypes)]


def depthwise(side, stride=1):
    return lambda x, w, b: F.conv2d(x, w, b, stride, side // 2, groups=256)


def convolution(name, side, stride=1, dtypes=(torch.float32,)):
    return both("conv", name, depthwise(side, stride), (64, 256, 28, 28), (256, 1, side, side), (256,), dtypes=dtypes)


def kinds_of_row_losses():
    """Losses of rows that torch.nn.functional has in one or a few calls."""
    target = ids(CLASSES[1], CLASSES[0])
    weight = torch.rand(CLASSES[1], device="cuda") + 0.5

    def triplet(a, p, n):
        return F.triplet_margin_loss(a, p, n)

    def kl(x, t):
        return F.kl_div(x, t, reduction="batchmean")

    def focal(x):
        ce = F.cross_entropy(x, target, reduction="none")
        return ((1 - torch.exp(-ce)) ** 2 * ce).mean()

    def nll(x):
        return F.nll_loss(x, target, weight)

    def gaussian(x, t, v):
        return F.gaussian_nll_loss(x, t, v * v + 0.5)

    rows = both("row_loss", "triplet", triplet, ROWS, ROWS, ROWS, dtypes=BOTH)
    rows += both("row_loss", "kl", kl, CLASSES, CLASSES, dtypes=BOTH)
    rows += both("row_loss", "multiclass_focal", focal, CLASSES)
    rows += both("row_loss", "nll_weighted", nll, CLASSES)
    rows += both("row_loss", "gaussian_nll", gaussian, (N,), (N,), (N,))
    return rows


def ctc(x):
    b, s, c = 64, 64, x.shape[2]
    steps = torch.full((b,), x.shape[0], dtype=torch.long)
    labels = torch.full((b,), s, dtype=torch.long)
    target = torch.arange(b * s).reshape(b, s) * 7 % (c - 1)
    return F.ctc_loss(x, target.cuda(), steps, labels, blank=c - 1)


def indexed(f, high, *shape):
    """f of a matrix, a matrix of zeros and indices below `high` of this shape."""

    def prepared(dt):
        x, y, i = normal(*ROWS, dtype=dt), torch.zeros(ROWS, device="cuda", dtype=dt), ids(high, *shape)
        return lambda: f(x, y, i)

    return prepared


def scattered(f):
    return indexed(f, ROWS[1], *ROWS)


def by_rows(f):
    return indexed(f, ROWS[0], ROWS[0])


def embedding(x):
    return F.embedding(TOKENS, x)


TOKENS = ids(50_257, 32_768)


def problems():
    def swiglu(g, u):
        return F.silu(g) * u

    def rope(x):
        c, s = COS.to(x.dtype), SIN.to(x.dtype)
        a, b = x.chunk(2, -1)
        return x * c + torch.cat((-b, a), -1) * s

    def rms(x, w):
        return F.rms_norm(x, (ROWS[1],), w)

    def layer(x, w, b):
        return F.layer_norm(x, (ROWS[1],), w, b)

    def group(x, w, b):
        return F.group_norm(x, 32, w, b)

    def pool(kind, *a):
        return lambda x: kind(x, *a)

    grid = torch.randn(16, 256, 256, 2, device="cuda")
    mask = torch.rand(N // 4, device="cuda") < 0.5
    edges = torch.randn(1024, device="cuda").sort().values
    table = [
        ("copy", "flat", forward(torch.clone, (N,)), BOTH[:1]),
        *both("unary", "exp", torch.exp, (N,), dtypes=BOTH),
        ("unary", "neg_transposed", forward(lambda x: x.t().neg().contiguous(), ROWS), BOTH[:1]),
        *both("binary", "mul", torch.mul, (N,), (N,), dtypes=BOTH),
        ("binary", "add_bias_row", forward(torch.add, ROWS, (ROWS[1],)), BOTH),
        *both("activation", "gelu", F.gelu, (N,), dtypes=BOTH),
        *both("gated", "swiglu", swiglu, (N,), (N,), dtypes=BOTH),
        ("strided_copy", "transpose", forward(lambda x: x.t().contiguous(), ROWS), BOTH),
        ("concat", "two_halves", forward(lambda a, b: torch.cat((a, b), 1), ROWS, ROWS), BOTH[:1]),
        ("pad", "constant", forward(lambda x: F.pad(x, (1, 1, 1, 1)), ROWS), BOTH[:1]),
        ("flip", "rows", forward(lambda x: x.flip(1), ROWS), BOTH[:1]),
        ("roll", "rows", forward(lambda x: x.roll(3, 1), ROWS), BOTH[:1]),
        ("random", "normal", forward(lambda x: x.normal_(), (N,)), BOTH),
        ("bernoulli", "tensor", lambda dt: (lambda p: lambda: torch.bernoulli(p))(torch.rand(N, device="cuda")), BOTH[:1]),
        ("permutation", "flat", lambda dt: lambda: torch.randperm(N >> 4, device="cuda"), (torch.int64,)),
        ("dropout", "no_mask", forward(lambda x: F.dropout(x, 0.1), (N,)), BOTH),
        ("dropout_bwd", "regenerated", backward(lambda x: F.dropout(x, 0.1), (N,)), BOTH[:1]),
        ("reduce", "sum_rows", forward(lambda x: x.sum(1), ROWS), BOTH),
        ("reduce", "sum_columns", forward(lambda x: x.sum(0), ROWS), BOTH),
        ("reduce", "var_rows", forward(lambda x: x.var(1), ROWS), BOTH[:1]),
        ("reduce", "logsumexp_rows", forward(lambda x: x.logsumexp(1), ROWS), BOTH[:1]),
        ("reduce_bwd", "max_rows", backward(lambda x: x.amax(1), ROWS), BOTH[:1]),
        ("arg_reduce", "max_rows", forward(lambda x: x.max(1), ROWS), BOTH[:1]),
        *both("softmax", "rows", lambda x: x.softmax(1), ROWS, dtypes=BOTH),
        *both("softmax", "columns", lambda x: x.softmax(0), ROWS),
        *both("softmax", "vocabulary", lambda x: x.log_softmax(1), (CLASSES[0], CLASSES[1] - 47)),
        ("softmax", "one_row", forward(lambda x: x.softmax(1), (1, N)), BOTH[:1]),
        *both("softmax", "long_rows", lambda x: x.softmax(1), ((1 << 27) // 40_000, 40_000)),
        ("index_select", "rows", by_rows(lambda x, y, i: x.index_select(0, i)), BOTH),
        ("index_add", "rows", by_rows(lambda x, y, i: y.index_add_(0, i, x)), BOTH),
        ("gather", "rows", scattered(lambda x, y, i: x.gather(1, i)), BOTH[:1]),
        ("scatter", "rows", scattered(lambda x, y, i: y.scatter_(1, i, x)), BOTH[:1]),
        ("scatter_reduce", "sum_rows", scattered(lambda x, y, i: y.scatter_reduce_(1, i, x, "sum")), BOTH[:1]),
        ("masked_select", "half", forward(lambda x: x.masked_select(mask), (N // 4,)), BOTH[:1]),
        ("nonzero", "half", lambda dt: lambda: mask.nonzero(), (torch.uint8,)),
        ("one_hot", "classes", lambda dt: (lambda i: lambda: F.one_hot(i, CLASSES[1]))(ids(CLASSES[1], CLASSES[0])), BOTH[:1]),
        *both("loss", "mse_mean", F.mse_loss, (N,), (N,), dtypes=BOTH),
        *both("cross_entropy", "ids", (lambda t: lambda x: F.cross_entropy(x, t))(ids(CLASSES[1], CLASSES[0])), CLASSES, dtypes=BOTH),
        *kinds_of_row_losses(),
        *both("seq_loss", "ctc", ctc, (512, 64, 512)),
        *convolution("depthwise_3x3", 3, dtypes=BOTH),
        *convolution("depthwise_7x7", 7),
        *convolution("depthwise_9x9", 9),
        *convolution("depthwise_3x3_stride2", 3, 2),
        *convolution("depthwise_5x5_stride2", 5, 2),
        *both("row_norm", "layer", layer, ROWS, (ROWS[1],), (ROWS[1],), dtypes=BOTH),
        *both("row_norm", "rms", rms, ROWS, (ROWS[1],)),
        *both("group_norm", "32_groups", group, IMAGES, (256,), (256,)),
        ("group_norm", "32_groups_swish", forward(lambda x: F.silu(F.group_norm(x, 32)), IMAGES), BOTH),
        ("group_norm", "large_groups", forward(lambda x: F.group_norm(x, 2), (16_384, 16, 2048)), BOTH[:1]),
        ("instance_norm", "plain", forward(F.instance_norm, IMAGES), BOTH[:1]),
        ("batch_norm", "odd_channels", forward(lambda x: F.batch_norm(x, None, None, training=True), (64 * 28 * 28, 509)), BOTH[:1]),
        *both("l2_normalize", "rows", lambda x: F.normalize(x, dim=1), ROWS),
        ("l2_normalize", "columns", forward(lambda x: F.normalize(x, dim=0), ROWS), BOTH[:1]),
        *both("max_pool", "3x3s2", pool(F.max_pool2d, 3, 2, 1), PLANES, dtypes=BOTH),
        *both("max_pool", "3x3s1", pool(F.max_pool2d, 3, 1, 1), PLANES),
        ("max_pool", "5x5s1", forward(pool(F.max_pool2d, 5, 1, 2), PLANES), BOTH[:1]),
        ("avg_pool", "global", forward(pool(F.adaptive_avg_pool2d, 1), PLANES), BOTH),
        *both("interpolate", "nearest_3", lambda x: F.interpolate(x, scale_factor=3), (1, 1024, 128, 128)),
        *both("interpolate", "linear", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (1, 1024, 128, 128), dtypes=BOTH),
        ("interpolate", "linear_3", forward(lambda x: F.interpolate(x, scale_factor=3, mode="bilinear"), (1, 1024, 128, 128)), BOTH[:1]),
        ("interpolate", "cubic", forward(lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), (1, 1024, 128, 128)), BOTH[:1]),
        *both("grid_sample", "linear", lambda x: F.grid_sample(x, grid.to(x.dtype), align_corners=False), (16, 16, 256, 256)),
        ("rope", "half", forward(rope, (4, 2048, 64, 128)), BOTH),
        ("embedding_bwd", "tokens", backward(embedding, (50_257, 768)), BOTH),
        ("cumsum", "rows", forward(lambda x: x.cumsum(1), ROWS), BOTH),
        ("cumsum", "columns_reverse", forward(lambda x: x.flip(0).cumsum(0).flip(0), ROWS), BOTH),
        ("cumsum", "one_row", forward(lambda x: x.cumsum(0), (N,)), BOTH[:1]),
        ("sort", "one_row", forward(lambda x: x.sort(), (N,)), BOTH),
        ("sort", "short_rows", forward(lambda x: x.sort(1, descending=True), (ROWS[0] * 4, ROWS[1] // 4)), BOTH[:1]),
        ("topk", "classes_50", forward(lambda x: x.topk(50), CLASSES), BOTH),
        ("topk", "experts_2", forward(lambda x: x.topk(2), (ROWS[0] * 4, 64)), BOTH[:1]),
        ("topk", "one_row_64", forward(lambda x: x.topk(64), (N,)), BOTH[:1]),
        ("search_sorted", "1024_edges", forward(lambda x: torch.searchsorted(edges, x), (N,)), BOTH[:1]),
        *both("similarity", "cosine_rows", lambda a, b: F.cosine_similarity(a, b), ROWS, ROWS, dtypes=BOTH),
    ]
    return table


def measure(f):
    """Microseconds of a call: the least, the median and the most of five."""
    for _ in range(3):
        f()
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    f()
    end.record()
    end.synchronize()
    calls = max(1, min(20, int(4 / max(begin.elapsed_time(end), 0.02))))
    times = []
    for _ in range(5):
        begin.record()
        for _ in range(calls):
            f()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / calls)
    return min(times), statistics.median(times), max(times)


def main():
    wanted = sys.argv[1:]
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}")
    for op, problem, prepared, dtypes in problems():
        if wanted and op not in wanted:
            continue
        for dt in dtypes:
            name = f"ops/{op}/{problem}/{NAMES[dt]}"
            try:
                low, middle, high = measure(prepared(dt if dt.is_floating_point else torch.float32))
            except RuntimeError as e:
                print(f"{name}: {str(e).splitlines()[0]}", file=sys.stderr)
                continue
            print(f"{name} time:   [{low:.2f} µs {middle:.2f} µs {high:.2f} µs]")
            torch.cuda.empty_cache()


COS, SIN = (f(torch.rand(2048, 1, 128, device="cuda")) for f in (torch.cos, torch.sin))

if __name__ == "__main__":
    main()
