"""Suites of kernels that the copied suites do not have, with the same machinery.

    python own/write.py OUTDIR     (from parity-tests/golden; PyTorch on the CPU, numpy, scipy)
"""
import os, sys
HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.dirname(HERE)
sys.path[:0] = [GOLDEN, os.path.join(GOLDEN, "generators")]
import torch
import gen
import own.loss, own.optimizer, own.edges, own.rules, own.functions, own.fields, own.splatting, own.ldl, own.mesh  # noqa: F401

if __name__ == "__main__":
    torch.set_num_threads(1)
    gen.build(os.path.join(HERE, "cases.py"), sys.argv[1])
