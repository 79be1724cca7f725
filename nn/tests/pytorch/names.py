"""Writes names.txt beside this file: the public operators of the installed PyTorch on tensors, without those in place (`name_`), those of one
backend or engine alone, copying forms of views, symbolic shapes, and settings; of methods and properties of tensors those that are no functions
of torch, torch.linalg and torch.special too. `python names.py`."""

import inspect
import pathlib
import re
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
INTERNAL = re.compile(
    r"(cudnn|miopen|mkldnn|fbgemm|native|quantized|sym|autocast|clear_autocast|get|set|import|parse|are|batch_norm|has_torch"
    r"|fused|merge|init|unify|use|thread|sspaddmm|saddmm|dsmm|hsmm|hspmm|smm|q|is_anomaly|is_autocast|is_deterministic|is_warn|is_vulkan"
    r"|is_inference_mode|is_distributed|is_storage)_|"
    r".*_(copy|inverse)$|(sspaddmm|saddmm|dsmm|hsmm|hspmm|smm|fork|wait|typename|save|load|seed|initial_seed|compile|cond|vmap|is_tensor)$"
)
PROPERTIES = {"T", "mT", "H", "mH", "shape", "dtype", "device", "grad", "requires_grad", "is_leaf", "ndim", "data", "layout", "itemsize", "nbytes"}
# Names that the pattern takes and that are operators.
KEPT = {"batch_norm"}


def public(module):
    """Names of the functions of a module on tensors, or that make tensors."""
    known = {f for functions in torch.overrides.get_overridable_functions().values() for f in functions}
    known |= {f for f in torch.overrides.get_ignored_functions() if module is torch}
    for name in dir(module):
        f = getattr(module, name)
        if name.startswith("_") or name.endswith("_") or isinstance(f, (type, types.ModuleType)) or not callable(f):
            continue
        if INTERNAL.match(name) and name not in KEPT:
            continue
        here = inspect.isfunction(f) and f.__module__ == module.__name__ and module is torch.nn.functional
        if f in known or here or (isinstance(f, types.BuiltinFunctionType) and module is not torch):
            yield name


def methods(shared):
    for name in dir(torch.Tensor):
        operator = callable(getattr(torch.Tensor, name)) or name in PROPERTIES
        private = name.startswith("_") or name.endswith("_") or name in shared
        if operator and not private:
            yield name


warnings.simplefilter("ignore")
names = {m: sorted(set(public(module))) for m, module in MODULES.items()}
names["Tensor"] = sorted(methods(set(names["torch"]) | set(names["linalg"]) | set(names["special"])))
order = ("torch", "Tensor", "F", "linalg", "special", "fft")
lines = [f"{m}.{n}" for m in order for n in names[m]]
path = pathlib.Path(__file__).with_name("names.txt")
path.write_text(f"# PyTorch {torch.__version__.split('+')[0]}, by names.py\n" + "\n".join(lines) + "\n")
print(f"{path.name}: {len(lines)} names")
