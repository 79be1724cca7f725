//! Graphs that layers keep from one call to the next.

use std::sync::Mutex;

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::functional::Graph;

/// What was made of the last key.
#[derive(Debug)]
pub(in crate::layers) struct Last<K, V>(Mutex<Option<(K, V)>>);

impl<K, V> Default for Last<K, V> {
    fn default() -> Self {
        Last(Mutex::default())
    }
}

impl<K, V: Clone> Last<K, V> {
    /// The value of a key: the last one, if its key is the same, or a new one.
    pub(in crate::layers) fn get(
        &self,
        same: impl FnOnce(&K) -> bool,
        make: impl FnOnce() -> Result<(K, V)>,
    ) -> Result<V> {
        let mut last = self.0.lock().unwrap_or_else(|p| p.into_inner());
        if let Some((key, value)) = &*last
            && same(key)
        {
            return Ok(value.clone());
        }
        let (key, value) = make()?;
        *last = Some((key, value.clone()));
        Ok(value)
    }
}

/// A tensor of indices as it was when something was made of it.
#[derive(Debug)]
pub(in crate::layers) struct Seen(Tensor, u64);

impl Seen {
    pub(in crate::layers) fn new(t: &Tensor) -> Self {
        Seen(t.detach(), t.version())
    }

    /// Whether a tensor is the same memory, unchanged.
    pub(in crate::layers) fn is(&self, t: &Tensor) -> bool {
        self.0.shares_storage(t) && self.0.layout() == t.layout() && self.1 == t.version()
    }
}

/// The graph of the edges that came last, by the edges and the number of nodes, so that a graph which comes again and again is sorted once.
#[derive(Debug, Default)]
pub(super) struct GraphCache(Last<(Seen, usize), Graph>);

impl GraphCache {
    fn graph(&self, edge_index: &Tensor, nodes: usize) -> Result<Graph> {
        self.0.get(
            |(seen, n)| seen.is(edge_index) && *n == nodes,
            || Ok(((Seen::new(edge_index), nodes), Graph::new(edge_index, nodes)?)),
        )
    }

    /// The inputs of a layer of graphs: features `[N, F]` or `[B, N, F]`, the graph of its edges `[2, E]`, and up to `more` other tensors.
    pub(super) fn inputs<'a>(
        &self,
        kind: &'static str,
        inputs: &'a [Tensor],
        more: usize,
    ) -> Result<(&'a Tensor, Graph, &'a [Tensor])> {
        let [x, edge_index, rest @ ..] = inputs else {
            let got = format!("{} tensors", inputs.len());
            return Err(invalid(kind, "inputs", "features and edge_index", got));
        };
        if rest.len() > more {
            let expected = format!("at most {} tensors", 2 + more);
            return Err(invalid(kind, "inputs", expected, format!("{}", inputs.len())));
        }
        let nodes = x.shape().iter().rev().nth(1).copied().unwrap_or(0);
        Ok((x, self.graph(edge_index, nodes)?, rest))
    }
}

/// Refuses a call without edges.
pub(super) fn without_edges(kind: &'static str) -> Result<Tensor> {
    let expected = "features and edge_index (`forward_all`), or a graph (`forward_on`)";
    Err(invalid(kind, "inputs", expected, "features alone"))
}

/// Error unless x is `[N, F]` or `[B, N, F]` with the nodes of the graph and this many features.
pub(super) fn check_features(kind: &'static str, x: &Tensor, graph: &Graph, features: usize) -> Result<()> {
    let nodes = graph.num_dst();
    match *x.shape() {
        [n, f] | [_, n, f] if n == nodes && n == graph.num_src() && f == features => Ok(()),
        _ => {
            let expected = format!("shape [{nodes}, {features}] or [B, {nodes}, {features}]");
            Err(invalid(kind, "x", expected, format!("shape {:?}", x.shape())))
        }
    }
}

/// Error unless the edges of the graph have this many features each.
pub(super) fn check_edge_attr(
    kind: &'static str,
    edge_attr: &Tensor,
    graph: &Graph,
    features: usize,
) -> Result<()> {
    let expected = [graph.num_edges(), features];
    if edge_attr.shape() != expected {
        let got = format!("shape {:?}", edge_attr.shape());
        return Err(invalid(kind, "edge_attr", format!("shape {expected:?}"), got));
    }
    Ok(())
}

/// Runs `f` on features with the nodes on the first axis: `[N, F]` as they are, `[B, N, F]` as `[N, B, F]`.
pub(super) fn nodes_first(x: &Tensor, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    match x.rank() {
        3 => f(&x.transpose(0, 1)?)?.transpose(0, 1),
        _ => f(x),
    }
}
