//! Graphs with types of nodes and edges.

use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::gemm::Precision;
use trefoil::ops::graph::{Message, MessageReduce};

use super::cache::{GraphCache, Last, Seen, check_features, nodes_first, without_edges};
use super::convolutional::check_size;
use super::sage::check_aggregator;
use crate::core::error::{NnError, Result, invalid};
use crate::core::tensor::Tensor;
use crate::functional::{Graph, Groups};
use crate::layers::linear::dense::Dense;
use crate::module::{Init, InitContext, Layer, Param, Visitor, hooks};

const OP: &str = "HeterogeneousGraph";

/// A type of edges: between which types of nodes, by their position.
#[derive(Debug)]
struct Relation {
    /// Its part's name, as in PyTorch Geometric's `HeteroConv`.
    name: String,
    src: usize,
    dst: usize,
}

/// Matrices of whose sums the weights of relations are made.
#[derive(Debug)]
struct Bases {
    weight: Param,
    comp: Param,
}

/// What is made of a graph whose types stand in lists.
#[derive(Debug, Clone)]
struct Typed {
    /// The edges of each relation, with nodes numbered within their types.
    graphs: Vec<Graph>,
    /// The nodes of each type.
    nodes: Vec<Tensor>,
    /// The position of each node among all by type.
    back: Tensor,
}

/// Relational graph convolution of Schlichtkrull et al. (2018), `torch_geometric.nn.RGCNConv`, for nodes and edges of several types: act(W_t
/// x_i + b_t + the sum over the relations r of W_r m_r), t being the node's type and m_r the mean (sum, maximum) of the features of its
/// sources by edges of relation r, 0 without such edges.
///
/// [`forward_on`](HeterogeneousGraph::forward_on) takes features of any width for each type of node and a bipartite graph for each relation,
/// as `torch_geometric.nn.HeteroConv` does. Where all widths are the same, [`forward_all`](Layer::forward_all) takes one list of nodes and
/// edges with their types.
///
/// State: for each relation `convs.<source___relation___target>.lin_l.weight [out, in]`, or with bases `weight [bases, in, out]` and `comp
/// [relations, bases]`; for each type of nodes `lins.type.weight [out, in]`; all from U(-a, a) of Glorot and Bengio. `bias [types, out]` =
/// 0.
#[derive(Debug)]
pub struct HeterogeneousGraph {
    cx: InitContext,
    types: Vec<(String, usize)>,
    relations: Vec<Relation>,
    outputs: usize,
    aggregator: MessageReduce,
    act: Activation,
    /// One for each relation; none with bases.
    maps: Vec<Dense>,
    bases: Option<Bases>,
    own: Option<Vec<Dense>>,
    bias: Option<Param>,
    graphs: GraphCache,
    typed: Last<(Graph, Seen, Seen), Typed>,
}

/// A linear map without bias.
fn map(cx: &InitContext, inputs: usize, outputs: usize) -> Result<Dense> {
    Dense::new(cx, inputs, outputs)?.no_bias().init(Init::Glorot, Init::Zeros)
}

/// Error unless a name can be a part of the names of parameters and differs from those before it.
fn check_name(arg: &'static str, name: &str, before: bool) -> Result<()> {
    if name.is_empty() || name.contains('.') || before {
        let expected = "names that differ, without dots and not empty";
        return Err(invalid(OP, arg, expected, format!("`{name}`")));
    }
    Ok(())
}

impl HeterogeneousGraph {
    /// Types of nodes with their numbers of features, and types of edges as (source, relation, target), to `out_features` features of all
    /// nodes; by the mean, with bias and the node's own features. Errors: a size of 0, no types, names that are empty, have dots or stand
    /// twice, an edge type of unknown nodes.
    pub fn new(
        cx: &InitContext,
        node_types: &[(&str, usize)],
        edge_types: &[(&str, &str, &str)],
        out_features: usize,
    ) -> Result<Self> {
        check_size(OP, "out_features", out_features)?;
        check_size(OP, "node_types", node_types.len())?;
        check_size(OP, "edge_types", edge_types.len())?;
        for (i, &(name, n)) in node_types.iter().enumerate() {
            check_size(OP, "in_features", n)?;
            check_name("node_types", name, node_types[..i].iter().any(|t| t.0 == name))?;
        }
        let place = |name: &str| {
            node_types.iter().position(|t| t.0 == name).ok_or_else(|| {
                let known: Vec<&str> = node_types.iter().map(|t| t.0).collect();
                invalid(OP, "edge_types", format!("nodes of type {}", known.join(", ")), format!("`{name}`"))
            })
        };
        let mut relations = vec![];
        for (i, &(src, name, dst)) in edge_types.iter().enumerate() {
            check_name("edge_types", name, edge_types[..i].contains(&(src, name, dst)))?;
            let (src_at, dst_at) = (place(src)?, place(dst)?);
            let name = format!("convs.<{src}___{name}___{dst}>.lin_l");
            relations.push(Relation { name, src: src_at, dst: dst_at });
        }
        let maps = relations.iter().map(|r| map(cx, node_types[r.src].1, out_features));
        let own = node_types.iter().map(|&(_, n)| map(cx, n, out_features)).collect::<Result<_>>()?;
        Ok(HeterogeneousGraph {
            cx: cx.clone(),
            types: node_types.iter().map(|&(name, n)| (name.to_string(), n)).collect(),
            maps: maps.collect::<Result<_>>()?,
            bases: None,
            relations,
            outputs: out_features,
            aggregator: MessageReduce::Mean,
            act: Activation::Identity,
            own: Some(own),
            bias: Some(Init::Zeros.param(cx, &[node_types.len(), out_features], 1, 1)?),
            graphs: GraphCache::default(),
            typed: Last::default(),
        })
    }

    setters! {
        /// Sets the activation.
        activation: Activation => act;
    }

    /// Sets how the features of sources are combined. Errors: `Min`, which the layer does not have.
    pub fn aggregator(mut self, aggregator: MessageReduce) -> Result<Self> {
        self.aggregator = check_aggregator(OP, aggregator)?;
        Ok(self)
    }

    /// Makes the weights of the relations sums of `bases` matrices, W_r = sum over b of c_rb V_b. More of them than relations are allowed,
    /// with a warning in the log. Errors: 0, sources of different widths.
    pub fn num_bases(mut self, bases: usize) -> Result<Self> {
        check_size(OP, "num_bases", bases)?;
        let mut widths = self.relations.iter().map(|r| self.types[r.src].1);
        let inputs = widths.next().unwrap_or(0);
        if let Some(other) = widths.find(|&n| n != inputs) {
            let got = format!("{inputs} and {other} features");
            return Err(invalid(OP, "num_bases", "sources of one width", got));
        }
        let relations = self.relations.len();
        if bases > relations {
            log::warn!("{OP}: {bases} bases of {relations} relations save nothing");
        }
        self.maps.clear();
        self.bases = Some(Bases {
            weight: Init::Glorot.param(&self.cx, &[bases, inputs, self.outputs], inputs, self.outputs)?,
            comp: Init::Glorot.param(&self.cx, &[relations, bases], relations, bases)?,
        });
        Ok(self)
    }

    /// Without the nodes' own features.
    pub fn no_root_weight(mut self) -> Self {
        self.own = None;
        self
    }

    /// Without bias.
    pub fn no_bias(mut self) -> Self {
        self.bias = None;
        self
    }

    /// The new features of the nodes of each type: of one bipartite graph for each edge type, whose nodes are numbered within their types,
    /// and features `[N_t, in_t]`, or `[B, N_t, in_t]` of B samples, for each node type, both in the order of the constructor. Gradients
    /// flow to features and parameters; of equal maxima the first edge gets them. Errors: `Invalid` for shapes and dtypes that do not fit.
    pub fn forward_on(&self, graphs: &[Graph], x: &[Tensor]) -> Result<Vec<Tensor>> {
        self.check(graphs, x)?;
        let mixed = self.bases.as_ref().map(|b| self.mixed(b)).transpose()?;
        let own = |t: usize| match &self.own {
            Some(own) => hooks::layer(&self.own_name(t), &own[t], &x[t]).map(Some),
            None => Ok(None),
        };
        let mut sums = (0..x.len()).map(own).collect::<Result<Vec<_>>>()?;
        for (r, relation) in self.relations.iter().enumerate() {
            let m = nodes_first(&x[relation.src], |x| {
                graphs[r].message_passing(Message::CopyU, self.aggregator, Some(x), None)
            })?;
            let y = match &mixed {
                Some(w) => m.linear(&w.select(0, r)?.t()?, None, Activation::Identity, Precision::Ieee)?,
                None => hooks::layer(&relation.name, &self.maps[r], &m)?,
            };
            let sum = &mut sums[relation.dst];
            *sum = Some(match sum.take() {
                Some(sum) => sum.add(&y)?,
                None => y,
            });
        }
        let finish = |(t, sum): (usize, Option<Tensor>)| {
            let x = &x[t];
            let shape = [&x.shape()[..x.rank() - 1], &[self.outputs]].concat();
            let mut y = match sum {
                Some(sum) => sum,
                None => Tensor::zeros(x.device(), x.dtype(), &shape)?,
            };
            if let Some(b) = &self.bias {
                y = y.add(&b.get().select(0, t)?)?;
            }
            y.activation(self.act)
        };
        sums.into_iter().enumerate().map(finish).collect()
    }

    fn own_name(&self, t: usize) -> String {
        format!("lins.{}", self.types[t].0)
    }

    /// The weights of the relations as sums of bases, `[relations, in, out]`.
    fn mixed(&self, bases: &Bases) -> Result<Tensor> {
        let (weight, comp) = (bases.weight.get(), bases.comp.get());
        let shape = [&comp.shape()[..1], &weight.shape()[1..]].concat();
        comp.matmul(&weight.flatten(1, 2)?)?.reshape(&shape)
    }

    /// Error unless graphs and features are those of the types.
    fn check(&self, graphs: &[Graph], x: &[Tensor]) -> Result<()> {
        for (arg, got, n) in
            [("graphs", graphs.len(), self.relations.len()), ("x", x.len(), self.types.len())]
        {
            if got != n {
                return Err(invalid(OP, arg, format!("one for each of {n} types"), format!("{got}")));
            }
        }
        let lead = |x: &Tensor| x.shape().split_last_chunk::<2>().map(|(lead, _)| lead.to_vec());
        for ((name, n), t) in self.types.iter().zip(x) {
            if !matches!(t.rank(), 2 | 3) || t.shape().last() != Some(n) || lead(t) != lead(&x[0]) {
                let expected = format!("shape [N, {n}] or [B, N, {n}] of `{name}`, all with the same B");
                return Err(invalid(OP, "x", expected, format!("shape {:?}", t.shape())));
            }
        }
        let nodes = |t: usize| x[t].shape()[x[t].rank() - 2];
        for (g, r) in graphs.iter().zip(&self.relations) {
            let (got, want) = ([g.num_src(), g.num_dst()], [nodes(r.src), nodes(r.dst)]);
            if got != want {
                let expected = format!("{} sources and {} targets of {}", want[0], want[1], r.name);
                return Err(invalid(OP, "graphs", expected, format!("{} and {}", got[0], got[1])));
            }
        }
        Ok(())
    }

    /// The nodes and edges of a graph by their types. Waits for the device, to examine the types and to learn how many there are of each.
    fn split(&self, graph: &Graph, node_type: &Tensor, edge_type: &Tensor) -> Result<Typed> {
        let sizes = [("node_type", node_type, graph.num_src()), ("edge_type", edge_type, graph.num_edges())];
        for (arg, t, n) in sizes {
            if t.shape() != [n] {
                return Err(invalid(OP, arg, format!("shape [{n}]"), format!("shape {:?}", t.shape())));
            }
        }
        let nodes = Groups::new(node_type, self.types.len())?;
        let edges = Groups::new(edge_type, self.relations.len())?;
        self.check_ends(graph, &node_type.to_dtype(DType::I64)?, edge_type)?;

        let (order, first) = (nodes.perm().to_dtype(DType::I64)?, nodes.rowptr().to_dtype(DType::I64)?);
        let places = Tensor::arange(order.device(), DType::I64, 0.0, 1.0, order.numel())?;
        let back = order.zeros_like()?.index_copy(0, &order, &places)?;
        // Within the nodes of a type.
        let local = back.sub(&first.index_select(0, nodes.index())?)?;
        let end = |nodes: &Tensor| local.index_select(0, &nodes.index_select(0, edges.perm())?);
        let ends = Tensor::stack(0, &[&end(graph.src())?, &end(graph.dst())?])?;

        let nodes = parts(&order, &nodes)?;
        let bipartite = |(r, ends): (&Relation, Tensor)| {
            Graph::bipartite(&ends, nodes[r.src].numel(), nodes[r.dst].numel())
        };
        let graphs =
            self.relations.iter().zip(parts(&ends, &edges)?).map(bipartite).collect::<Result<_>>()?;
        Ok(Typed { graphs, nodes, back })
    }

    /// Error unless the ends of each edge are of the types that its relation connects.
    fn check_ends(&self, graph: &Graph, node_type: &Tensor, edge_type: &Tensor) -> Result<()> {
        let [src, dst]: [Vec<i64>; 2] = [|r: &Relation| r.src as i64, |r: &Relation| r.dst as i64]
            .map(|of| self.relations.iter().map(of).collect());
        for (end, ends, types) in [("source", graph.src(), src), ("target", graph.dst(), dst)] {
            let types = Tensor::from_slice(node_type.device(), &types, &[types.len()])?;
            let (want, got) = (types.index_select(0, edge_type)?, node_type.index_select(0, ends)?);
            let wrong = want.ne(&got)?;
            if wrong.numel() == 0 || wrong.any(&[0], false)?.item::<u8>()? == 0 {
                continue;
            }
            let at = wrong.to_vec::<u8>()?.iter().position(|&w| w != 0).unwrap_or(0);
            let name = |t: &Tensor| Ok::<_, NnError>(&self.types[t.select(0, at)?.item::<i64>()? as usize].0);
            let expected = format!("edge {at} of a type whose {end} is `{}`", name(&got)?);
            return Err(invalid(OP, "edge_type", expected, format!("one whose {end} is `{}`", name(&want)?)));
        }
        Ok(())
    }
}

/// The parts of the last axis that belong to each group, where it is sorted by group.
fn parts(sorted: &Tensor, groups: &Groups) -> Result<Vec<Tensor>> {
    let starts = groups.rowptr().to_dtype(DType::I64)?.to_vec::<i64>()?;
    starts.windows(2).map(|w| sorted.narrow(-1, w[0] as usize, (w[1] - w[0]) as usize)).collect()
}

impl Layer for HeterogeneousGraph {
    fn forward(&self, _: &Tensor) -> Result<Tensor> {
        without_edges(OP)
    }

    /// `[x, edge_index, node_type, edge_type]`: features `[N, in]` or `[B, N, in]` of all nodes, the ends of all edges, and the types `[N]`
    /// and `[E]` by their positions in the constructor, i32 or i64. Waits for the device when another graph comes, to sort it by types.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let width = self.types[0].1;
        if let Some((name, n)) = self.types.iter().find(|t| t.1 != width) {
            let expected = format!("{width} features of all types of nodes (or call `forward_on`)");
            return Err(invalid(OP, "node_types", expected, format!("{n} of `{name}`")));
        }
        let (x, graph, rest) = self.graphs.inputs(OP, inputs, 2)?;
        let [node_type, edge_type] = rest else {
            let got = format!("{} tensors", inputs.len());
            return Err(invalid(OP, "inputs", "x, edge_index, node_type and edge_type", got));
        };
        check_features(OP, x, &graph, width)?;
        let typed = self.typed.get(
            |(g, nodes, edges)| g.is(&graph) && nodes.is(node_type) && edges.is(edge_type),
            || {
                let key = (graph.clone(), Seen::new(node_type), Seen::new(edge_type));
                Ok((key, self.split(&graph, node_type, edge_type)?))
            },
        )?;
        if self.types.len() == 1 {
            return self.forward_on(&typed.graphs, std::slice::from_ref(x));
        }
        let of_type = |nodes: &Tensor| x.index_select(-2, nodes);
        let y =
            self.forward_on(&typed.graphs, &typed.nodes.iter().map(of_type).collect::<Result<Vec<_>>>()?)?;
        let y = Tensor::concat(-2, &y.iter().collect::<Vec<_>>())?;
        Ok(vec![y.index_select(-2, &typed.back)?])
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        for (relation, map) in self.relations.iter().zip(&self.maps) {
            v.child(&relation.name, map);
        }
        if let Some(b) = &self.bases {
            v.param("weight", &b.weight);
            v.param("comp", &b.comp);
        }
        for (t, own) in self.own.iter().flatten().enumerate() {
            v.child(&self.own_name(t), own);
        }
        if let Some(b) = &self.bias {
            v.param("bias", b);
        }
    }
}
