//! Graphs whose nodes are the items.

use std::path::Path;

use trefoil::DType;

use super::{Arrays, CsvOptions, Dataset, FixedInputs, HostTensor, Label, Targets, read_csv};
use crate::core::error::{At, NnError, Result};
use crate::core::limits;
use crate::core::tensor::{Device, Tensor};

/// How the files of a graph are read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GraphOptions {
    /// Whether the first line of each file names the columns; `None`: it does if none of its cells is a number.
    pub header: Option<bool>,
    /// Between cells.
    pub separator: char,
    /// Whether each edge stands for both directions.
    pub undirected: bool,
    /// Whether the third column of the edges is their weight.
    pub weighted: bool,
    /// Factor of the features of nodes.
    pub scale: f32,
}

impl Default for GraphOptions {
    fn default() -> Self {
        GraphOptions { header: None, separator: ',', undirected: false, weighted: false, scale: 1.0 }
    }
}

/// One graph in host memory: its edges, and features of its nodes. Nodes are numbered from 0.
#[derive(Debug, Clone, PartialEq)]
pub struct GraphData {
    nodes: usize,
    edge_index: HostTensor,
    edge_weight: Option<HostTensor>,
    features: Option<HostTensor>,
}

/// A whole number of a cell, where readers give floats.
fn node(path: &Path, item: usize, value: f32, nodes: Option<usize>) -> Result<i64> {
    // Above 2^24, floats leave numbers out.
    let limit = nodes.map_or(1 << 24, |n| n.min(1 << 24));
    if value >= 0.0 && value.fract() == 0.0 && (value as usize) < limit {
        return Ok(value as i64);
    }
    let expected = format!("the number of a node, 0 to {}", limit as i64 - 1);
    Err(NnError::data(path, At::Item(item as u64), expected, format!("{value}")))
}

fn table(path: &Path, options: &GraphOptions, label: Label, scale: f32) -> Result<Dataset> {
    read_csv(path, &CsvOptions { header: options.header, label, scale, separator: options.separator })
}

impl GraphData {
    /// A graph of CSV files. `edges`: source and target in each line, with weights if asked for; further columns are not read. `features`: a
    /// line for each node; without the file, nodes are told apart by one-hot ids, and there are as many as the edges name. Errors: those
    /// of [`read_csv`]; [`NnError::Data`] with the edge that has an end which is no node.
    pub fn read_csv(edges: &Path, features: Option<&Path>, options: &GraphOptions) -> Result<Self> {
        let features = match features {
            Some(path) => {
                let table = table(path, options, Label::None, options.scale)?;
                let shape = [table.len(), table.item_shape()[0]];
                Some(HostTensor::from_slice(table.features(), &shape)?)
            }
            None => None,
        };
        let nodes = features.as_ref().map(|f| f.shape[0]);
        let table = table(edges, options, Label::None, 1.0)?;
        let (width, wanted) = (table.item_shape()[0], if options.weighted { 3 } else { 2 });
        if width < wanted {
            let what = format!("expected {wanted} columns, found {width}");
            return Err(NnError::Table { path: edges.into(), row: 1, column: width + 1, what });
        }
        let (mut sources, mut targets, mut weights) = (vec![], vec![], vec![]);
        for (i, line) in table.features().chunks_exact(width).enumerate() {
            let (a, b) = (node(edges, i, line[0], nodes)?, node(edges, i, line[1], nodes)?);
            let turned = (options.undirected && a != b).then_some((b, a));
            for (source, target) in std::iter::once((a, b)).chain(turned) {
                limits::push(&mut sources, source)?;
                limits::push(&mut targets, target)?;
                if options.weighted {
                    limits::push(&mut weights, line[2])?;
                }
            }
        }
        let count = sources.len();
        let mut ends = sources;
        limits::reserve(&mut ends, count)?;
        ends.extend(targets);
        Ok(GraphData {
            nodes: nodes.unwrap_or(ends.iter().max().map_or(0, |&n| n as usize + 1)),
            edge_index: HostTensor::from_slice(&ends, &[2, count])?,
            edge_weight: options.weighted.then(|| HostTensor::from_slice(&weights, &[count])).transpose()?,
            features,
        })
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Number of edges, both directions of undirected ones.
    pub fn edges(&self) -> usize {
        self.edge_index.shape[1]
    }

    /// Nodes of the graph with their classes, from a CSV file with the number of a node and its class in each line, in its order: items whose
    /// features are the nodes' numbers. Nodes without a line have no class that is known. Errors: those of [`read_csv`];
    /// [`NnError::Data`] with the line (from 0) of what is no node, or one that stands twice.
    pub fn labels(&self, path: &Path, options: &GraphOptions) -> Result<Arrays> {
        let table = table(path, options, Label::LastClass, 1.0)?;
        let (mut ids, mut seen) = (vec![], vec![]);
        limits::reserve(&mut seen, self.nodes)?;
        seen.resize(self.nodes, false);
        for (i, line) in table.features().chunks_exact(table.item_shape()[0]).enumerate() {
            let id = node(path, i, line[0], Some(self.nodes))?;
            if std::mem::replace(&mut seen[id as usize], true) {
                return Err(NnError::data(path, At::Item(i as u64), "each node once", format!("{id} again")));
            }
            limits::push(&mut ids, id)?;
        }
        let classes = match table.targets() {
            Targets::Classes(classes) => limits::copy(classes)?,
            Targets::Values { .. } => vec![],
        };
        Arrays::new(
            HostTensor::from_slice(&ids, &[ids.len()])?,
            HostTensor::from_slice(&classes, &[ids.len()])?,
        )
    }

    /// What a network reads, on a device, floats in `dtype`: `x`, the features of the nodes `[N, F]`, `edge_index [2, E]` and, where edges
    /// have weights, `edge_weight [E]`.
    pub fn inputs(&self, device: &Device, dtype: DType) -> Result<Vec<(&'static str, Tensor)>> {
        let upload = |t: &HostTensor| t.to_device(device)?.to_dtype(dtype);
        let x = match &self.features {
            Some(features) => upload(features)?,
            None => Tensor::eye(device, dtype, self.nodes)?,
        };
        let mut all = vec![("x", x), ("edge_index", self.edge_index.to_device(device)?)];
        if let Some(weight) = &self.edge_weight {
            all.push(("edge_weight", upload(weight)?));
        }
        Ok(all)
    }
}

impl FixedInputs for GraphData {
    fn fixed_inputs(&self, device: &Device, dtype: DType) -> Result<Vec<(&'static str, Tensor)>> {
        self.inputs(device, dtype)
    }
}
