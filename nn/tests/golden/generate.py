"""Writes the golden suites of layers beside this file: `python generate.py`, with PyTorch, PyTorch Geometric, geoopt
and safetensors; `python generate.py graph` writes those of one family. See case.py for the format."""

import pathlib
import sys

import torch

import attention
import capsule
import dense
import experts
import graph
import graph_aggregation
import image
import local_learning
import graph_blocks
import image
import mesh
import recurrent
import specialized
import sequence_models
import residual
import state_space
import utility

FAMILIES = (
    dense.core,
    attention.attention,
    recurrent.recurrent,
    image.pooling,
    image.normalization,
    attention.transformer,
    image.convolutional,
    image.upsampling,
    utility.utility,
    dense.dense_like,
    graph.graph,
    graph_aggregation.graph_aggregation,
    local_learning.local_learning,
    capsule.capsule,
    specialized.specialized,
    experts.experts,
    sequence_models.sequence_models,
    graph_blocks.graph_attention,
    mesh.mesh,
    residual.residual,
    state_space.state_space,
)

if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    # Parameters are drawn again from each case's own seed; this one settles what modules draw for themselves.
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    for family in FAMILIES:
        if sys.argv[1:] and family.__name__ not in sys.argv[1:]:
            continue
        family().write(pathlib.Path(__file__).parent)
