"""Writes the small files that tests/suite/files and tests/suite/data read. Needs torch, safetensors and numpy; run in this folder.

Tensors hold simple closed forms of their position, so that the tests can state the expected numbers."""

import gzip
import json
import struct

import numpy as np
import torch
from safetensors.torch import save_file


def fill(module):
    """Element i of the k-th tensor (in the order of names) becomes k + i / 8, exact in every float dtype used here."""
    state = module.state_dict()
    for k, name in enumerate(sorted(state)):
        t = state[name]
        if t.is_floating_point():
            t.copy_((k + torch.arange(t.numel(), dtype=torch.float64) / 8).reshape(t.shape))
        else:
            t.fill_(k + 1)
    return {n: t.contiguous() for n, t in state.items()}


nn = torch.nn
model = nn.ModuleDict(
    {
        "linear": nn.Linear(3, 2),
        "conv": nn.Conv2d(2, 3, 3),
        "bn": nn.BatchNorm2d(3),
        "ln": nn.LayerNorm(4),
        "lstm": nn.LSTM(3, 2, batch_first=True),
        "mha": nn.MultiheadAttention(4, 2, batch_first=True),
    }
)
save_file(fill(model), "layers.safetensors", metadata={"format": "pt"})

# A model that this crate has end to end, its input and its output.
torch.manual_seed(1)
mlp = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
x = torch.linspace(-1, 1, 12).reshape(4, 3)
save_file(mlp.state_dict(), "mlp.safetensors", metadata={"format": "pt"})
save_file({"x": x, "y": mlp(x).detach()}, "mlp_io.safetensors")

# Every dtype.
values = torch.tensor([0, 1, 2, 100])
types = {
    "bool": torch.bool, "u8": torch.uint8, "i8": torch.int8, "i16": torch.int16, "u16": torch.uint16, "i32": torch.int32,
    "u32": torch.uint32, "i64": torch.int64, "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32,
    "f64": torch.float64, "u64": torch.uint64, "f8": torch.float8_e4m3fn,
}
save_file({n: values.to(t) for n, t in types.items()} | {"negative": torch.tensor([-3], dtype=torch.int8)},
          "dtypes.safetensors")

# The layout of a sharded Hugging Face model.
state = {f"model.{n}": t for n, t in mlp.state_dict().items()}
shards = {f"model-0000{i + 1}-of-00002.safetensors": [n for n in state if n.startswith(p)]
          for i, p in enumerate(["model.0.", "model.2."])}
for file, names in shards.items():
    save_file({n: state[n] for n in names}, f"sharded/{file}", metadata={"format": "pt"})
total = sum(t.numel() * t.element_size() for t in state.values())
index = {"metadata": {"total_size": total}, "weight_map": {n: f for f, ns in shards.items() for n in ns}}
with open("sharded/model.safetensors.index.json", "w") as f:
    json.dump(index, f, indent=2)

# What `torch.save` writes, and wrote before PyTorch 1.6.
torch.save({"weight": torch.zeros(1)}, "weights.pt")
torch.save({"weight": torch.zeros(1)}, "weights_pickled.pt", _use_new_zipfile_serialization=False)

# NumPy: 2 x 3, element i is i - 2 (i for unsigned types).
a = np.arange(6).reshape(2, 3)
arrays = {n: (a if n[0] in "ub" else a - 2).astype(t) for n, t in {
    "f2": "<f2", "f4": "<f4", "f8": "<f8", "i1": "i1", "i2": "<i2", "i4": "<i4", "i8": "<i8", "u1": "u1", "u2": "<u2",
    "u4": "<u4", "bool": "?", "big": ">f4", "big_int": ">i8"}.items()}
arrays["fortran"] = np.asfortranarray(arrays["f4"])
arrays["scalar"] = np.array(7.5)
arrays["u8x"] = a.astype("<u8")
arrays["text"] = np.array(["a", "b"])
np.savez_compressed("arrays.npz", **arrays)
np.savez("stored.npz", x=arrays["f4"], y=np.array([1, 0]))
np.save("fortran.npy", arrays["fortran"])

# IDX, as MNIST has it: three images of 2 x 2, element i is i; labels 2, 0, 1.
images = struct.pack(">I3I", 0x00000803, 3, 2, 2) + bytes(range(12))
labels = struct.pack(">II", 0x00000801, 3) + bytes([2, 0, 1])
open("images.idx", "wb").write(images)
with gzip.GzipFile("labels.idx.gz", "wb", mtime=0) as f:
    f.write(labels)
open("floats.idx", "wb").write(struct.pack(">I2I6f", 0x00000D02, 2, 3, *[i / 2 for i in range(6)]))

# State dictionaries as programs save them: nested, with what is no tensor beside them, views of one storage, and every dtype; and the same tensors,
# as whole ones, in safetensors. The malicious one would write a file where it is unpickled.
torch.manual_seed(2)
base = torch.randn(4, 6)
saved = {
    "model": mlp.state_dict(),
    "views": {"transposed": base.t(), "rows": base[1:3], "column": base[:, 2], "part": base[1:, 1:4], "scalar": torch.tensor(2.5)},
    "parameter": torch.nn.Parameter(torch.randn(3, dtype=torch.float64)),
    "types": {n: values.to(types[n]) for n in ["bool", "u8", "i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64", "u16"]},
    "list": [torch.ones(2), torch.zeros(2, 0)],
    "optimizer": torch.optim.SGD(mlp.parameters(), 0.1).state_dict(),
    "epoch": 3, "rate": 0.1, "name": "a run", "none": None, "long": 1 << 70, "set": {1, 2}, "shape": torch.Size([2, 3]),
}
torch.save(saved, "nested.pt")
torch.save(saved, "nested_protocol4.pt", pickle_protocol=4)


def flat(at, value):
    if isinstance(value, torch.Tensor):
        return {at: value.detach().contiguous().clone()}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else []
    return {k: t for key, v in items for k, t in flat(f"{at}.{key}" if at else str(key), v).items()}


save_file(flat("", saved), "nested.safetensors")


class Malicious:
    def __reduce__(self):
        return open, ("malicious_was_here", "w")


torch.save({"weight": torch.ones(2), "trap": Malicious()}, "malicious.pt")
torch.save(mlp, "module.pt")

# GGUF, by the package of llama.cpp (`pip install gguf`), and what its own dequantization gives.
try:
    import gguf
except ImportError:
    gguf = None
if gguf is not None:
    rng = np.random.default_rng(3)
    plain = {"f32": rng.standard_normal((2, 3)).astype(np.float32), "f16": rng.standard_normal((4,)).astype(np.float16)}
    wide = rng.standard_normal((3, 64)).astype(np.float32)
    writer = gguf.GGUFWriter("weights.gguf", "test")
    writer.add_string("general.name", "a test")
    writer.add_array("tokenizer.ggml.tokens", ["a", "bc"])
    writer.add_float32("test.rate", 0.5)
    expected = {}
    for name, t in plain.items():
        writer.add_tensor(name, t)
        expected[name] = torch.from_numpy(t)
    for name in ["Q8_0", "Q4_0", "BF16", "Q5_0"]:
        kind = gguf.GGMLQuantizationType[name]
        packed = gguf.quantize(wide, kind)
        writer.add_tensor(name, packed, raw_dtype=kind)
        expected[name] = torch.from_numpy(gguf.dequantize(packed, kind).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file(expected, "weights_gguf.safetensors")
