//! The type of graphs.

use std::sync::Arc;

use once_cell::sync::OnceCell;
use trefoil::DType;
use trefoil::ops::graph::{Csr, CsrIo, EdgeGroups};

use super::groups::Groups;
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Operand, Tensor, same_device};
use crate::functional::index::range::{check_index, check_range};

const OP: &str = "Graph";

/// A graph whose nodes each have one self-loop, and the numbers of the edges that are no self-loops and of those that are.
#[derive(Debug)]
pub(super) struct Looped {
    pub(super) graph: Graph,
    pub(super) others: Tensor,
    pub(super) loops: Tensor,
}

#[derive(Debug)]
struct Lists {
    edge_index: Tensor,
    by_src: Groups,
    by_dst: Groups,
    /// CSR by source, whose entries point to those of the CSR by target; made when a sparse product is first differentiated.
    transpose: OnceCell<[Tensor; 3]>,
    /// The sources of the edges in the order of their targets; made when they are first asked for.
    sources: OnceCell<Groups>,
    /// The same edges with one self-loop for each node; made when it is first asked for.
    looped: OnceCell<Looped>,
    /// The graph of each source node, where it is not one graph.
    batch: Option<Groups>,
    /// The same for one graph, made when it is first asked for.
    single: OnceCell<Groups>,
}

/// A directed graph on a device: edges as PyTorch Geometric has them, and the lists by which operations find the edges of a node in either
/// direction, sorted once at construction. Messages go from the source (row 0 of `edge_index`) to the target (row 1). Edges may repeat and
/// count as often as they stand there; weights and features of edges are operands of the operations, in the order of `edge_index`. Clones
/// share the lists.
///
/// ```
/// use trefoil::{Registry, Selector, ops::graph::{Message, MessageReduce}};
/// use trefoil_nn::{Graph, Tensor};
///
/// let device = Registry::default().open(&"cpu".parse::<Selector>()?)?;
/// // 0 -> 1, 2 -> 1
/// let graph = Graph::new(&Tensor::from_slice(&device, &[0i64, 2, 1, 1], &[2, 2])?, 3)?;
/// let x = Tensor::from_slice(&device, &[1f32, 10., 100.], &[3, 1])?.with_grad();
/// let y = graph.message_passing(Message::CopyU, MessageReduce::Sum, Some(&x), None)?;
/// assert_eq!(y.to_vec::<f32>()?, [0., 101., 0.]);
/// # Ok::<(), trefoil_nn::NnError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Graph {
    lists: Arc<Lists>,
}

/// The memory of a transpose, for a backend call.
pub(super) struct TransposeOperands([Operand; 3]);

impl TransposeOperands {
    pub(super) fn groups(&self) -> Result<EdgeGroups<'_>> {
        let [rowptr, col, perm] = &self.0;
        Ok(EdgeGroups::new(rowptr.view()?).col(col.view()?).perm(perm.view()?))
    }
}

impl Graph {
    /// From the ends of the edges, i32 or i64 `[2, E]`, among `num_nodes` nodes. Waits for the device once, to examine the ends. Errors:
    /// `Invalid` for other dtypes and shapes, and for 2^31 nodes or edges and more;
    /// [`NnError::OutOfRange`](crate::NnError::OutOfRange) with the first edge that has an end out of range, and that end.
    pub fn new(edge_index: &Tensor, num_nodes: usize) -> Result<Graph> {
        Self::bipartite(edge_index, num_nodes, num_nodes)
    }

    /// From the ends of edges that go from one set of nodes to another, i32 or i64 `[2, E]`: row 0 is below `num_src`, row 1 below
    /// `num_dst`. Source `torch_geometric.nn.MessagePassing` with `size=(num_src, num_dst)`. Errors: as for [`new`](Graph::new).
    pub fn bipartite(edge_index: &Tensor, num_src: usize, num_dst: usize) -> Result<Graph> {
        check_index(OP, "edge_index", edge_index)?;
        let &[2, _] = edge_index.shape() else {
            return Err(invalid(OP, "edge_index", "shape [2, E]", format!("{:?}", edge_index.shape())));
        };
        for (row, limit, end) in [(0, num_src, "source"), (1, num_dst, "target")] {
            let ends = edge_index.detach().select(0, row)?;
            check_range(OP, &ends, limit, None, |at| format!("edge {at} ({end})"))?;
        }
        Self::build(edge_index.detach().copy()?, [num_src, num_dst], None)
    }

    /// From ends that have been examined.
    pub(super) fn build(edge_index: Tensor, nodes: [usize; 2], batch: Option<Groups>) -> Result<Graph> {
        let [src, dst] = [edge_index.select(0, 0)?.contiguous()?, edge_index.select(0, 1)?.contiguous()?];
        let by_src = Groups::build(src.clone(), nodes[0], Some(&dst))?;
        let by_dst = Groups::build(dst, nodes[1], Some(&src))?;
        let lists = Lists {
            edge_index,
            by_src,
            by_dst,
            transpose: OnceCell::new(),
            sources: OnceCell::new(),
            looped: OnceCell::new(),
            batch,
            single: OnceCell::new(),
        };
        Ok(Graph { lists: Arc::new(lists) })
    }

    /// From a dense matrix `[num_dst, num_src]` in which an element `[i, j]` other than 0 is the weight of an edge from j to i; gives the
    /// graph and the weights `[E]`, through which gradients flow back. The product with the graph is then that with the matrix. Waits for
    /// the device, which alone knows E. Source `torch_geometric.utils.dense_to_sparse` of the transpose. Errors: `Invalid` for another
    /// rank.
    pub fn from_dense(adjacency: &Tensor) -> Result<(Graph, Tensor)> {
        let &[num_dst, num_src] = adjacency.shape() else {
            let got = format!("{:?}", adjacency.shape());
            return Err(invalid(OP, "adjacency", "shape [num_dst, num_src]", got));
        };
        let at = adjacency.detach().nonzero()?;
        let (dst, src) = (at.select(1, 0)?.contiguous()?, at.select(1, 1)?.contiguous()?);
        let weight = adjacency.index(&[&dst, &src])?;
        let edge_index = Tensor::stack(0, &[&src, &dst])?;
        Ok((Self::build(edge_index, [num_src, num_dst], None)?, weight))
    }

    /// The matrix `[num_dst, num_src]` with the weights `[E]` (floats) of the edges from j to i in `[i, j]`, repeated edges added up.
    /// Source `torch_geometric.utils.to_dense_adj`, transposed. Errors: `Invalid` for another number of weights.
    pub fn to_dense(&self, edge_weight: &Tensor) -> Result<Tensor> {
        self.check_edges("to_dense", "edge_weight", edge_weight)?;
        if edge_weight.rank() != 1 {
            let got = format!("{:?}", edge_weight.shape());
            return Err(invalid("to_dense", "edge_weight", "shape [E]", got));
        }
        let zeros =
            Tensor::zeros(edge_weight.device(), edge_weight.dtype(), &[self.num_dst(), self.num_src()])?;
        zeros.index_put(&[self.dst(), self.src()], edge_weight, true)
    }

    /// Several graphs as one without edges between them, whose nodes and edges are those of the graphs in order; [`batch`](Graph::batch)
    /// says which graph a node is of. Source `torch_geometric.data.Batch.from_data_list`. Errors: `Invalid` for no graph, bipartite ones,
    /// index dtypes that differ.
    pub fn from_graphs(graphs: &[&Graph]) -> Result<Graph> {
        let Some(first) = graphs.first() else {
            return Err(invalid("from_graphs", "graphs", "at least one graph", "none"));
        };
        let (device, dtype) = (first.edge_index().device(), first.edge_index().dtype());
        let (mut edges, mut of, mut nodes) = (vec![], vec![], 0usize);
        let mut count = 0usize;
        for g in graphs {
            same_device("from_graphs", first.edge_index(), g.edge_index())?;
            if g.edge_index().dtype() != dtype {
                let got = g.edge_index().dtype().name();
                return Err(invalid("from_graphs", "graphs", format!("indices in {}", dtype.name()), got));
            }
            let n = g.check_square("from_graphs")?;
            let offset = |t: &Tensor, by: usize| t.add(&Tensor::full(device, dtype, &[], by as f64)?);
            edges.push(offset(g.edge_index(), nodes)?);
            of.push(offset(g.batch()?.index(), count)?);
            (nodes, count) = (nodes + n, count + g.num_graphs());
        }
        let batch = Groups::build(Tensor::concat(0, &of.iter().collect::<Vec<_>>())?, count, None)?;
        Self::build(Tensor::concat(1, &edges.iter().collect::<Vec<_>>())?, [nodes, nodes], Some(batch))
    }

    /// The same graph as a batch of several: `batch` holds the graph of each source node. Errors: `Invalid` unless there is one for each.
    pub fn with_batch(&self, batch: &Groups) -> Result<Graph> {
        same_device("with_batch", self.edge_index(), batch.index())?;
        if batch.len() != self.num_src() {
            let expected = format!("the graphs of {} nodes", self.num_src());
            return Err(invalid("with_batch", "batch", expected, format!("{}", batch.len())));
        }
        let l = &*self.lists;
        let lists = Lists {
            edge_index: l.edge_index.clone(),
            by_src: l.by_src.clone(),
            by_dst: l.by_dst.clone(),
            transpose: l.transpose.clone(),
            sources: l.sources.clone(),
            looped: OnceCell::new(),
            batch: Some(batch.clone()),
            single: OnceCell::new(),
        };
        Ok(Graph { lists: Arc::new(lists) })
    }

    /// The ends of the edges, `[2, E]`.
    pub fn edge_index(&self) -> &Tensor {
        &self.lists.edge_index
    }

    /// The source of each edge, `[E]`.
    pub fn src(&self) -> &Tensor {
        self.by_src().index()
    }

    /// The target of each edge, `[E]`.
    pub fn dst(&self) -> &Tensor {
        self.by_dst().index()
    }

    /// The edges by their source.
    pub fn by_src(&self) -> &Groups {
        &self.lists.by_src
    }

    /// The edges by their target.
    pub fn by_dst(&self) -> &Groups {
        &self.lists.by_dst
    }

    /// Number of edges.
    pub fn num_edges(&self) -> usize {
        self.by_dst().len()
    }

    /// Number of nodes that edges come from.
    pub fn num_src(&self) -> usize {
        self.by_src().size()
    }

    /// Number of nodes that edges go to.
    pub fn num_dst(&self) -> usize {
        self.by_dst().size()
    }

    /// Number of edges into each node, i64 `[num_dst]`. Source `torch_geometric.utils.degree`.
    pub fn in_degree(&self) -> Result<Tensor> {
        self.by_dst().counts()
    }

    /// Number of edges out of each node, i64 `[num_src]`.
    pub fn out_degree(&self) -> Result<Tensor> {
        self.by_src().counts()
    }

    /// Number of graphs in a batch; 1 unless the graph was made from several.
    pub fn num_graphs(&self) -> usize {
        self.lists.batch.as_ref().map_or(1, Groups::size)
    }

    /// The graph of each source node, `[num_src]`: what a pooling of nodes groups by.
    pub fn batch(&self) -> Result<&Groups> {
        let l = &*self.lists;
        match &l.batch {
            Some(b) => Ok(b),
            None => l.single.get_or_try_init(|| {
                let zeros = Tensor::zeros(l.edge_index.device(), l.edge_index.dtype(), &[self.num_src()])?;
                Groups::build(zeros, 1, None)
            }),
        }
    }

    /// The weight 1 for each edge, `[E]`.
    pub fn unit_weights(&self, dtype: DType) -> Result<Tensor> {
        Tensor::ones(self.edge_index().device(), dtype, &[self.num_edges()])
    }

    /// Whether both are clones of one graph.
    pub fn is(&self, other: &Graph) -> bool {
        Arc::ptr_eq(&self.lists, &other.lists)
    }

    /// The same graph with every edge turned around. Source `MessagePassing(flow="target_to_source")`.
    pub fn reverse(&self) -> Result<Graph> {
        let l = &*self.lists;
        let square = self.num_src() == self.num_dst();
        let lists = Lists {
            edge_index: Tensor::stack(0, &[self.dst(), self.src()])?,
            by_src: l.by_dst.clone(),
            by_dst: l.by_src.clone(),
            transpose: OnceCell::new(),
            sources: OnceCell::new(),
            looped: OnceCell::new(),
            batch: l.batch.clone().filter(|_| square),
            single: OnceCell::new(),
        };
        Ok(Graph { lists: Arc::new(lists) })
    }

    /// The number of nodes. Errors: `Invalid` for a bipartite graph.
    pub(super) fn check_square(&self, op: &'static str) -> Result<usize> {
        match (self.num_src(), self.num_dst()) {
            (a, b) if a == b => Ok(a),
            (a, b) => {
                let got = format!("{a} sources and {b} targets");
                Err(invalid(op, "graph", "one set of nodes", got))
            }
        }
    }

    /// Error unless a tensor has a row for each edge and lives on the graph's device.
    pub(super) fn check_edges(&self, op: &'static str, arg: &'static str, t: &Tensor) -> Result<()> {
        same_device(op, self.edge_index(), t)?;
        if t.shape().first() != Some(&self.num_edges()) {
            let expected = format!("shape [{}, ..], a row for each edge", self.num_edges());
            return Err(invalid(op, arg, expected, format!("shape {:?}", t.shape())));
        }
        Ok(())
    }

    /// Error unless a tensor has a row for each of `nodes` nodes and lives on the graph's device.
    pub(super) fn check_nodes(
        &self,
        op: &'static str,
        arg: &'static str,
        t: &Tensor,
        nodes: usize,
    ) -> Result<()> {
        same_device(op, self.edge_index(), t)?;
        if t.shape().first() != Some(&nodes) {
            let expected = format!("shape [{nodes}, ..], a row for each node");
            return Err(invalid(op, arg, expected, format!("shape {:?}", t.shape())));
        }
        Ok(())
    }

    /// The sources of the edges in the order of their targets, that of [`by_dst`](Graph::by_dst): made when they are first asked for.
    pub fn sources_by_dst(&self) -> Result<&Groups> {
        self.lists.sources.get_or_try_init(|| {
            let [rowptr, _, perm] = self.transposed()?;
            let Some(sources) = self.by_dst().col() else {
                return Err(invalid("Graph", "graph", "edges by target", "none"));
            };
            Ok(Groups::sorted(sources, self.num_src(), rowptr, perm))
        })
    }

    /// Where the graph with self-loops is kept.
    pub(super) fn looped(&self) -> &OnceCell<Looped> {
        &self.lists.looped
    }

    /// The CSR by source of the CSR by target.
    pub(super) fn transpose(&self) -> Result<TransposeOperands> {
        let lists = self.transposed()?;
        Ok(TransposeOperands([0, 1, 2].map(|i| lists[i].operand())))
    }

    /// The memory of [`transpose`](Graph::transpose): row pointers, targets, and places in the CSR by target.
    fn transposed(&self) -> Result<&[Tensor; 3]> {
        self.lists.transpose.get_or_try_init(|| {
            let (index, e) = (self.edge_index(), self.num_edges());
            let list = |n: usize| Tensor::empty(index.device(), index.dtype(), &[n]);
            let (rowptr, col, perm) = (list(self.num_src() + 1)?, list(e)?, list(e)?);
            let from = self.by_dst().rowptr().operand();
            let source = self.by_dst().col().map(Tensor::operand);
            let (r, c, p) = (rowptr.operand(), col.operand(), perm.operand());
            let mut io = CsrIo::new(from.view()?);
            io.col = source.as_ref().map(Operand::view).transpose()?;
            (io.rowptr, io.out_col, io.perm) =
                (Some(r.view_mut()?), Some(c.view_mut()?), Some(p.view_mut()?));
            index.device().csr(Csr::Transpose, io)?;
            Ok([rowptr, col, perm])
        })
    }
}
