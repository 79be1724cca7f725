"""A second formula for every kernel that has one: plain numpy and scipy in f64, independent of the generators."""
from reference import (activation, conv, norm, pool, attention, loss, optimizer, utility, rnn, gemm, graph, elementwise,
                       reduce, shape, index, scan, language_model, state_space, linalg)  # noqa: F401
from reference.base import NS, REFS  # noqa: F401
