//! Recorded sequences of calls.

use std::fmt;

use crate::error::Result;

/// What is known of a [`Graph`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct GraphInfo {
    /// Calls that were recorded: launches and copies.
    pub recorded: usize,
    /// Calls that are not made because nobody reads what they write.
    pub unread: usize,
    /// Calls that are part of a kernel that serves several.
    pub fused: usize,
    /// Kernels and calls of vendor libraries that a replay makes; on the CPU backend operations.
    pub launches: usize,
    /// Copies on the device.
    pub copies: usize,
    /// Bytes of device memory that the graph reserves: what was allocated while it was recorded and is used by a replay, after rounding to size classes.
    pub bytes: usize,
    /// Why the host queues every launch of a replay, with the arguments that it prepared; `None` where the driver launches the whole graph.
    pub queued_by_host: Option<String>,
    /// What a replay calls, in order: names of kernels, those of fused calls in parentheses; on the CPU backend names of operations.
    pub calls: Vec<String>,
    /// What calls read that others wrote before them.
    pub edges: Vec<GraphEdge>,
}

/// What one call of a graph reads of what another wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct GraphEdge {
    /// The call that wrote, by its place in [`GraphInfo::calls`].
    pub from: usize,
    /// The call that reads.
    pub to: usize,
    /// Bytes that were written by the one, by no call in between, and may be read by the other: from the first to the last that an operand reaches;
    /// whole buffers where it is not known which part a kernel uses.
    pub bytes: u64,
}

impl GraphInfo {
    /// The graph as a picture in Graphviz's language DOT: a box for each call, which lists the members of a fused one, and an arrow for each of
    /// [`GraphInfo::edges`] with its bytes. `dot -Tsvg` draws it.
    pub fn dot(&self) -> String {
        let mut text = String::from("digraph recorded {\n  node [shape=box, fontname=\"sans-serif\"];\n");
        for (i, call) in self.calls.iter().enumerate() {
            let label = match call.strip_suffix(')').and_then(|c| c.split_once('(')) {
                Some((what, members)) => format!("{what}\\n{}", members.replace(", ", "\\n")),
                None => call.clone(),
            };
            text.push_str(&format!("  n{i} [label=\"{}\"];\n", label.replace('"', "'")));
        }
        for e in &self.edges {
            text.push_str(&format!("  n{} -> n{} [label=\"{}\"];\n", e.from, e.to, e.bytes));
        }
        text + "}\n"
    }
}

/// What a backend makes a [`Graph`] of.
pub trait BackendGraph: Send + Sync + fmt::Debug {
    /// Queues everything that was recorded.
    fn replay(&self) -> Result<()>;
    /// What is known of it.
    fn info(&self) -> &GraphInfo;
}

/// A recorded sequence of calls, from [`CaptureOps::capture_calls`](super::CaptureOps::capture_calls) or
/// [`BackendExt::capture`](crate::BackendExt::capture).
///
/// It reserves the memory that was allocated while it was recorded, also where the buffers are gone, and keeps buffers alive that were made before and
/// used in it. It can be replayed as often as wanted; the memory goes back to the handle's pool with the graph and the last buffer of the recording.
#[derive(Debug)]
pub struct Graph(Box<dyn BackendGraph>);

impl Graph {
    /// A graph of a backend.
    pub fn new(graph: impl BackendGraph + 'static) -> Self {
        Graph(Box::new(graph))
    }

    /// Queues the recorded calls anew on the stream of the handle that recorded them, behind what was queued there before. They read and write the same
    /// memory as in the recording: new inputs are copied into the buffers that it read, results are in those that it wrote, until the next replay.
    ///
    /// Nothing is allocated, compiled, uploaded or waited for. Indices out of range are reported as those of the recorded operations. Errors: `Capture`
    /// while a recording is under way on the handle; those of the driver.
    pub fn replay(&self) -> Result<()> {
        self.0.replay()
    }

    /// The graph as a picture, [`GraphInfo::dot`].
    pub fn dot(&self) -> String {
        self.info().dot()
    }

    /// What was recorded, and how it is replayed.
    pub fn info(&self) -> &GraphInfo {
        self.0.info()
    }
}
