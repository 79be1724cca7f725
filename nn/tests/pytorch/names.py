"""Writes names.txt beside this file: the public operators of the installed PyTorch, those that `torch.overrides` knows, without what is private,
in place (`name_`), or a method that is a function too. `python names.py`."""

import pathlib
import types
import warnings

import torch

MODULES = {
    "torch": torch,
    "F": torch.nn.functional,
    "linalg": torch.linalg,
    "special": torch.special,
    "fft": torch.fft,
}


def public(module):
    """Names of a module that are functions on tensors or make tensors."""
    known = {f for functions in torch.overrides.get_overridable_functions().values() for f in functions}
    for name in dir(module):
        f = getattr(module, name)
        if name.startswith("_") or name.endswith("_") or isinstance(f, (type, types.ModuleType)) or not callable(f):
            continue
        created = f in torch.overrides.get_ignored_functions() and module is torch
        if f in known or created or (isinstance(f, types.BuiltinFunctionType) and module is not torch):
            yield name


warnings.simplefilter("ignore")
names = {m: sorted(set(public(module))) for m, module in MODULES.items()}
methods = {n for n in dir(torch.Tensor) if not n.startswith("_") and not n.endswith("_")}
shared = set(names["torch"]) | set(names["linalg"]) | set(names["special"])
names["Tensor"] = sorted(methods - shared)
order = ("torch", "Tensor", "F", "linalg", "special", "fft")
lines = [f"{m}.{n}" for m in order for n in names[m]]
path = pathlib.Path(__file__).with_name("names.txt")
path.write_text(f"# PyTorch {torch.__version__.split('+')[0]}, by names.py\n" + "\n".join(lines) + "\n")
print(f"{path.name}: {len(lines)} names")
