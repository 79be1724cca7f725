//! Graphs: operations along edges against dense formulas and finite differences, on every device; what a graph refuses.

use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::graph::{EdgeOp, GroupReduce, Message, MessageReduce};
use trefoil_nn::{Device, Graph, Groups, NnError, Tensor};

use crate::common::everywhere::{everywhere_with, values};
use crate::common::{close, cpu, devices, f32s, gradcheck, id, noise, tensor};

/// Sources and targets of 9 edges among 6 nodes: a repeated edge, a self-loop, and node 4, which no edge touches.
const EDGES: [i64; 18] = [0, 1, 2, 0, 3, 3, 5, 1, 1, 1, 0, 1, 2, 2, 3, 0, 5, 5];
const NODES: usize = 6;

fn graph(d: &Device) -> Graph {
    Graph::new(&Tensor::from_slice(d, &EDGES, &[2, 9]).unwrap(), NODES).unwrap()
}

/// 7 edges from 3 nodes to 5.
fn bipartite(d: &Device) -> Graph {
    let ends = [2i32, 0, 2, 1, 0, 1, 2, 4, 1, 1, 0, 4, 4, 0];
    Graph::bipartite(&Tensor::from_slice(d, &ends, &[2, 7]).unwrap(), 3, 5).unwrap()
}

fn same(x: f64) -> f64 {
    x
}

fn dense(g: &Graph, x: &Tensor) -> Tensor {
    g.to_dense(&g.unit_weights(x.dtype()).unwrap()).unwrap()
}

/// Both results on the CPU in f64.
fn agree(what: &str, got: &Tensor, want: &Tensor) {
    assert_eq!(got.shape(), want.shape(), "{what}");
    close(&values(got), &values(want), 1e-12, what);
}

#[test]
fn rows_of_groups_and_rows_in_their_order() {
    let of = |d: &Device| {
        Groups::new(&Tensor::from_slice(d, &[2i64, 0, 2, 2, 0, 4, 4], &[7]).unwrap(), 5).unwrap()
    };
    everywhere_with("spread", &[&[5, 2, 3]], of, same, |t, groups| groups.spread(&t[0]));
    everywhere_with("ordered", &[&[7, 3]], of, same, |t, groups| groups.ordered(&t[0]));
    let (groups, x, rows) = (of(&cpu()), tensor(&cpu(), &[5, 3], 1), tensor(&cpu(), &[7, 3], 2));
    agree("spread", &groups.spread(&x).unwrap(), &x.index_select(0, groups.index()).unwrap());
    agree("ordered", &groups.ordered(&rows).unwrap(), &rows.index_select(0, groups.perm()).unwrap());
    assert!(groups.spread(&rows).unwrap_err().to_string().contains("[5, ..]"));
    assert!(groups.ordered(&x).unwrap_err().to_string().contains("7 positions in axis 0"));
    // Sources in the order of the targets 0, 0, 1, 1, 2, 2, 3, 5, 5 of the edges.
    let sources = graph(&cpu());
    let sources = sources.sources_by_dst().unwrap();
    let by_target = graph(&cpu()).by_dst().perm().to_vec::<i64>().unwrap();
    let want: Vec<i64> = by_target.iter().map(|&e| EDGES[e as usize]).collect();
    assert_eq!(sources.index().to_vec::<i64>().unwrap(), want);
}

#[test]
fn sparse_products() {
    let (d, g) = (cpu(), graph(&cpu()));
    let (x, w, b) = (tensor(&d, &[6, 3], 1), tensor(&d, &[9], 2), tensor(&d, &[3], 3));
    let a = g.to_dense(&w).unwrap();
    let want = a.matmul(&x).unwrap().add(&b).unwrap();
    agree("spmm", &g.spmm(&x, Some(&w), Some(&b), Activation::Identity).unwrap(), &want);
    let silu = Activation::Swish { beta: 1.0 };
    for act in [Activation::Relu, Activation::Tanh, silu, Activation::Gelu] {
        let y = g.spmm(&x, Some(&w), Some(&b), act).unwrap();
        agree("spmm with an activation", &y, &want.activation(act).unwrap());
        everywhere_with("spmm with an activation", &[&[6, 3], &[9], &[3]], graph, same, |t, g| {
            g.spmm(&t[0], Some(&t[1]), Some(&t[2]), act)
        });
    }
    agree(
        "without weights",
        &g.spmm(&x, None, None, Activation::Identity).unwrap(),
        &dense(&g, &x).matmul(&x).unwrap(),
    );
    everywhere_with("spmm", &[&[6, 3]], graph, same, |t, g| g.spmm(&t[0], None, None, Activation::Identity));
    everywhere_with("spmm of heads", &[&[6, 2, 3], &[9, 2]], graph, same, |t, g| {
        g.spmm(&t[0], Some(&t[1]), None, Activation::Identity)
    });
    everywhere_with("bipartite spmm", &[&[3, 2], &[7], &[2]], bipartite, same, |t, g| {
        g.spmm(&t[0], Some(&t[1]), Some(&t[2]), Activation::Relu)
    });
    let (g, x, w) = (bipartite(&d), tensor(&d, &[3, 2], 4), tensor(&d, &[7], 5));
    let want = g.to_dense(&w).unwrap().matmul(&x).unwrap();
    agree("bipartite", &g.spmm(&x, Some(&w), None, Activation::Identity).unwrap(), &want);
}

/// What message passing computes, from gathered messages.
fn gathered(g: &Graph, m: Message, r: MessageReduce, x: &Tensor, e: &Tensor) -> Tensor {
    let (u, v) = (x.index_select(0, g.src()).unwrap(), x.index_select(0, g.dst()).unwrap());
    let message = match m {
        Message::CopyU => u,
        Message::CopyE => e.clone(),
        Message::UMulE => u.mul(e).unwrap(),
        Message::UAddE => u.add(e).unwrap(),
        Message::UAddV => u.add(&v).unwrap(),
        Message::USubV => u.sub(&v).unwrap(),
        _ => u.mul(&v).unwrap(),
    };
    let ids = g.dst().to_vec::<i64>().unwrap();
    let (m, f) = (values(&message), message.shape()[1]);
    let mut y = vec![0.0; NODES * f];
    for v in 0..NODES {
        let rows: Vec<&[f64]> =
            ids.iter().zip(m.chunks(f)).filter(|(i, _)| **i == v as i64).map(|p| p.1).collect();
        for c in 0..f {
            let column = rows.iter().map(|r| r[c]);
            y[v * f + c] = match r {
                _ if rows.is_empty() => 0.0,
                MessageReduce::Sum => column.sum(),
                MessageReduce::Mean => column.sum::<f64>() / rows.len() as f64,
                MessageReduce::Max => column.fold(f64::MIN, f64::max),
                _ => column.fold(f64::MAX, f64::min),
            };
        }
    }
    Tensor::from_slice(&cpu(), &y, &[NODES, f]).unwrap()
}

#[test]
fn messages() {
    use Message::*;
    let g = graph(&cpu());
    let (x, e) = (tensor(&cpu(), &[6, 4], 1), tensor(&cpu(), &[9, 4], 2));
    for r in [MessageReduce::Sum, MessageReduce::Mean, MessageReduce::Max, MessageReduce::Min] {
        for m in [CopyU, CopyE, UMulE, UAddE, UAddV, USubV, UMulV] {
            let what = format!("{m:?} {r:?}");
            let (with_x, with_e) = (m != CopyE, matches!(m, CopyE | UMulE | UAddE));
            let (px, pe) = (with_x.then_some(&x), with_e.then_some(&e));
            agree(&what, &g.message_passing(m, r, px, pe).unwrap(), &gathered(&g, m, r, &x, &e));
            let shapes: &[&[usize]] = match (with_x, with_e) {
                (true, true) => &[&[6, 4], &[9, 4]],
                (true, false) => &[&[6, 4]],
                _ => &[&[9, 4]],
            };
            let run = |t: &[Tensor], g: &Graph| match (with_x, with_e) {
                (true, true) => g.message_passing(m, r, Some(&t[0]), Some(&t[1])),
                (true, false) => g.message_passing(m, r, Some(&t[0]), None),
                _ => g.message_passing(m, r, None, Some(&t[0])),
            };
            // Every message, and every way to combine some, on all devices.
            match r == MessageReduce::Sum || matches!(m, CopyU | UMulE) {
                true => everywhere_with(&what, shapes, graph, same, run),
                false => gradcheck(&what, shapes, same, |t| run(t, &g)),
            }
        }
    }
    everywhere_with("u_dot_v", &[&[6, 2, 3]], graph, same, |t, g| {
        g.message_passing(UDotV, MessageReduce::Sum, Some(&t[0]), None)
    });
    // A weight per edge and head; weights alone want a gradient; sources and targets of two sets.
    everywhere_with("weights of heads", &[&[3, 2, 3], &[7, 2]], bipartite, same, |t, g| {
        g.message_passing(UMulE, MessageReduce::Mean, Some(&t[0]), Some(&t[1]))
    });
    everywhere_with("weights alone", &[&[7]], bipartite, same, |t, g| {
        let x = t[0].new_constant(&[3, 2]);
        g.message_passing(UMulE, MessageReduce::Sum, Some(&x), Some(&t[0]))
    });
}

/// Constants like a tensor.
trait NewConstant {
    fn new_constant(&self, shape: &[usize]) -> Tensor;
}

impl NewConstant for Tensor {
    fn new_constant(&self, shape: &[usize]) -> Tensor {
        Tensor::arange(self.device(), self.dtype(), -1.0, 0.7, shape.iter().product())
            .and_then(|t| t.reshape(shape))
            .unwrap()
    }
}

#[test]
fn functions_of_both_ends() {
    for op in [EdgeOp::Dot, EdgeOp::Add, EdgeOp::Sub, EdgeOp::Mul] {
        everywhere_with("sddmm", &[&[3, 2, 4], &[5, 2, 4]], bipartite, same, |t, g| {
            g.sddmm(op, &t[0], &t[1])
        });
        let (g, x, y) = (bipartite(&cpu()), tensor(&cpu(), &[3, 4], 1), tensor(&cpu(), &[5, 4], 2));
        let (u, v) = (x.index_select(0, g.src()).unwrap(), y.index_select(0, g.dst()).unwrap());
        let want = match op {
            EdgeOp::Dot => u.mul(&v).unwrap().sum_axes(&[-1], false),
            EdgeOp::Add => u.add(&v),
            EdgeOp::Sub => u.sub(&v),
            _ => u.mul(&v),
        };
        agree("sddmm", &g.sddmm(op, &x, &y).unwrap(), &want.unwrap());
    }
}

/// Attention `[num_dst, num_src]` of one head by the dense formula: a softmax over the entries of a row that are edges, repeated ones
/// counted.
fn dense_attention(g: &Graph, a: &Tensor, b: &Tensor, slope: f64) -> Tensor {
    let counts = dense(g, a);
    let logits = b.unsqueeze(1).unwrap().add(&a.unsqueeze(0).unwrap()).unwrap().leaky_relu(slope).unwrap();
    let weights = logits.exp().unwrap().mul(&counts).unwrap();
    let sums = weights.sum_axes(&[1], true).unwrap();
    let empty = sums.le_scalar(0.0).unwrap();
    weights.div(&sums.masked_fill(&empty, 1.0).unwrap()).unwrap()
}

#[test]
fn attention_along_edges() {
    let (d, g) = (cpu(), graph(&cpu()));
    let (x, a, b) = (tensor(&d, &[6, 2, 3], 1), tensor(&d, &[6, 2], 2), tensor(&d, &[6, 2], 3));
    let y = g.gat(&x, &a, &b, 0.2).unwrap();
    for h in 0..2 {
        let of = |t: &Tensor| t.select(1, h).unwrap().contiguous().unwrap();
        let want = dense_attention(&g, &of(&a), &of(&b), 0.2).matmul(&of(&x)).unwrap();
        agree("gat", &of(&y), &want);
        // The same in steps: scores, softmax, sum.
        let score = |t: &Tensor| of(t).unsqueeze(1).unwrap();
        let logits = g.sddmm(EdgeOp::Add, &score(&a), &score(&b)).unwrap().leaky_relu(0.2).unwrap();
        let alpha = g.edge_softmax(&logits).unwrap().reshape(&[9]).unwrap();
        agree("edge_softmax", &g.spmm(&of(&x), Some(&alpha), None, Activation::Identity).unwrap(), &want);
    }
    everywhere_with("gat", &[&[6, 2, 3], &[6, 2], &[6, 2]], graph, same, |t, g| {
        g.gat(&t[0], &t[1], &t[2], 0.2)
    });
    everywhere_with("bipartite gat", &[&[3, 2, 3], &[3, 2], &[5, 2]], bipartite, same, |t, g| {
        g.gat(&t[0], &t[1], &t[2], 0.1)
    });
    everywhere_with("edge_softmax", &[&[9, 2]], graph, same, |t, g| g.edge_softmax(&t[0]));
}

#[test]
fn reductions_of_groups() {
    let groups = |d: &Device| {
        Groups::new(&Tensor::from_slice(d, &[2i64, 0, 2, 2, 0, 4, 4], &[7]).unwrap(), 5).unwrap()
    };
    let [max, min] = [GroupReduce::Max { empty: 0.0 }, GroupReduce::Min { empty: -3.0 }];
    let std = GroupReduce::Std { correction: 1, eps: 1e-3 };
    for how in [GroupReduce::Sum, GroupReduce::Mean, max, min, GroupReduce::Prod, std] {
        everywhere_with(&format!("{how:?}"), &[&[2, 7, 3]], groups, same, |t, g| {
            t[0].group_reduce(how, 1, g)
        });
    }
    let x = Tensor::from_slice(&cpu(), &[1.0, 2.0, 3.0, 5.0, 7.0, 11.0, 13.0], &[7]).unwrap();
    let reduced = |how| x.group_reduce(how, 0, &groups(&cpu())).unwrap().to_vec::<f64>().unwrap();
    assert_eq!(reduced(GroupReduce::Sum), [9., 0., 9., 0., 24.]);
    assert_eq!(reduced(GroupReduce::Mean), [4.5, 0., 3., 0., 12.]);
    assert_eq!(reduced(max), [7., 0., 5., 0., 13.]);
    assert_eq!(reduced(min), [2., -3., 1., -3., 11.]);
    assert_eq!(reduced(GroupReduce::Prod), [14., 1., 15., 1., 143.]);
    assert_eq!(groups(&cpu()).counts().unwrap().to_vec::<i64>().unwrap(), [2, 0, 3, 0, 2]);
    everywhere_with("softmax of groups", &[&[7, 2]], groups, same, |t, g| t[0].group_softmax(g));
    let e = Groups::new(&f32s(&cpu(), &[0.0], &[1]), 1).unwrap_err().to_string();
    assert!(e.contains("`index`") && e.contains("i32 or i64") && e.contains("f32"), "{e}");
    let e =
        Groups::new(&Tensor::from_slice(&cpu(), &[0i64, 3, 1], &[3]).unwrap(), 3).unwrap_err().to_string();
    assert!(e.contains("index 3 in position 1") && e.contains("0..3"), "{e}");
    let short = x.narrow(0, 0, 6).unwrap().group_reduce(GroupReduce::Sum, 0, &groups(&cpu())).unwrap_err();
    assert!(short.to_string().contains("7 positions"), "{short}");
}

#[test]
fn normalised_weights() {
    let (d, g) = (cpu(), graph(&cpu()));
    let w: Vec<f64> = noise(3, 9).into_iter().map(|x| x.abs() + 0.1).collect();
    let w = Tensor::from_slice(&d, &w, &[9]).unwrap();
    for improved in [false, true] {
        let (looped, weight) = g.gcn_norm(&w, improved, true).unwrap();
        // Node 3 has a self-loop, which stays; all others get one.
        let mut a = g.to_dense(&w).unwrap();
        let fill = [1.0, 1.0, 1.0, 0.0, 1.0, 1.0].map(|x| x * if improved { 2.0 } else { 1.0 });
        let fill = Tensor::from_slice(&d, &fill, &[6]).unwrap();
        a = a.add(&Tensor::eye(&d, DType::F64, 6).unwrap().mul(&fill).unwrap()).unwrap();
        let s = a.sum_axes(&[1], true).unwrap().pow_scalar(-0.5).unwrap();
        let want = a.mul(&s).unwrap().mul(&s.t().unwrap()).unwrap();
        agree("gcn_norm", &looped.to_dense(&weight).unwrap(), &want);
        let tracked = g.gcn_norm(&w.with_grad(), improved, true).unwrap().1;
        agree("gcn_norm with gradient", &tracked, &weight);
        assert!(tracked.requires_grad() && !weight.requires_grad());
    }
    let s = g.sym_norm(&w).unwrap();
    agree("without self-loops", &g.sym_norm(&w.with_grad()).unwrap(), &s);
    let rows = g.to_dense(&g.row_norm(&w).unwrap()).unwrap().sum_axes(&[1], false).unwrap();
    close(&values(&rows), &[1., 1., 1., 1., 0., 1.], 1e-12, "sums of rows");
    let positive = |x: f64| x.abs() + 0.2;
    everywhere_with("sym_norm", &[&[9]], graph, positive, |t, g| g.sym_norm(&t[0]));
    everywhere_with("row_norm", &[&[9]], graph, positive, |t, g| g.row_norm(&t[0]));
    for d in devices() {
        let w = f32s(&d, &[0.5, 1., 2., 1., 3., 1., 4., 1., 2.], &[9]);
        let [plain, tracked] =
            [graph(&d).sym_norm(&w), graph(&d).sym_norm(&w.with_grad())].map(|t| values(&t.unwrap()));
        close(&plain, &tracked, 1e-6, &format!("sym_norm on {}", id(&d)));
    }
}

#[test]
fn self_loops_and_directions() {
    for d in devices() {
        let g = graph(&d);
        let w = f32s(&d, &[0., 1., 2., 3., 4., 5., 6., 7., 8.], &[9]);
        let (more, attr) = g.add_self_loops(Some(&w), 9.0).unwrap();
        assert_eq!(
            (more.num_edges(), attr.unwrap().to_vec::<f32>().unwrap()[9..].to_vec()),
            (15, vec![9.0; 6])
        );
        let (fewer, attr) = more.remove_self_loops(Some(&more.unit_weights(DType::F32).unwrap())).unwrap();
        assert_eq!((fewer.num_edges(), attr.unwrap().shape()), (8, &[8][..]));
        let (looped, w) = g.add_remaining_self_loops(&w, 0.5).unwrap();
        assert_eq!(looped.num_edges(), 14);
        // Edge 5 is the loop of node 3.
        let want = [0., 1., 2., 3., 4., 6., 7., 8., 0.5, 0.5, 0.5, 5., 0.5, 0.5];
        assert_eq!(w.to_vec::<f32>().unwrap(), want, "on {}", id(&d));
        let back = g.reverse().unwrap();
        assert_eq!(
            back.in_degree().unwrap().to_vec::<i64>().unwrap(),
            g.out_degree().unwrap().to_vec::<i64>().unwrap()
        );
        assert_eq!(g.in_degree().unwrap().to_vec::<i64>().unwrap(), [2, 2, 2, 1, 0, 2]);
        assert_eq!(g.dst().degree(6).unwrap().to_vec::<i64>().unwrap(), [2, 2, 2, 1, 0, 2]);
        assert_eq!(
            Tensor::zeros(&d, DType::I32, &[0]).unwrap().degree(2).unwrap().to_vec::<i64>().unwrap(),
            [0, 0]
        );
        for (dtype, shape, want) in [(DType::F32, &[3][..], "i32 or i64"), (DType::I64, &[2, 2], "shape [n]")]
        {
            let e = Tensor::zeros(&d, dtype, shape).unwrap().degree(2).unwrap_err().to_string();
            assert!(e.contains("degree") && e.contains(want), "{e}");
        }
        g.dst().degree(3).unwrap();
        assert!(d.synchronize().is_err(), "targets of 3 and more on {}", id(&d));
        let e = bipartite(&d).add_self_loops(None, 1.0).unwrap_err().to_string();
        assert!(e.contains("3 sources and 5 targets"), "{e}");
    }
}

#[test]
fn batches() {
    for d in devices() {
        let small = Graph::new(&Tensor::from_slice(&d, &[0i64, 1, 1, 0], &[2, 2]).unwrap(), 2).unwrap();
        let lonely = Graph::new(&Tensor::from_slice::<i64>(&d, &[], &[2, 0]).unwrap(), 1).unwrap();
        let all = Graph::from_graphs(&[&small, &lonely, &graph(&d), &small]).unwrap();
        assert_eq!((all.num_graphs(), all.num_src(), all.num_edges()), (4, 11, 13));
        let ends = all.edge_index().to_vec::<i64>().unwrap();
        assert_eq!((&ends[..3], &ends[11..13]), (&[0, 1, 3][..], &[9, 10][..]));
        let x = f32s(&d, &(0..22).map(|i| i as f32).collect::<Vec<_>>(), &[11, 2]);
        let pooled = x.group_reduce(GroupReduce::Mean, 0, all.batch().unwrap()).unwrap();
        assert_eq!(pooled.to_vec::<f32>().unwrap(), [1., 2., 4., 5., 11., 12., 19., 20.], "on {}", id(&d));
        // Each graph by itself gives the same.
        let y = values(&all.spmm(&x, None, None, Activation::Identity).unwrap());
        let own = x.narrow(0, 3, 6).unwrap();
        assert_eq!(y[6..18], values(&graph(&d).spmm(&own, None, None, Activation::Identity).unwrap()));
        let again = Graph::from_graphs(&[&all, &small]).unwrap();
        assert_eq!(
            (again.num_graphs(), again.batch().unwrap().rowptr().to_vec::<i64>().unwrap()[4]),
            (5, 11)
        );
        let sum = x.group_reduce(GroupReduce::Sum, 0, graph(&d).batch().unwrap());
        assert!(sum.unwrap_err().to_string().contains("6 positions"));
        let of = Groups::new(&Tensor::from_slice(&d, &[1i64, 0, 0, 1, 1, 2], &[6]).unwrap(), 3).unwrap();
        assert_eq!(graph(&d).with_batch(&of).unwrap().num_graphs(), 3);
        assert!(small.with_batch(&of).is_err() && Graph::from_graphs(&[]).is_err());
    }
}

#[test]
fn empty_graphs_and_isolated_nodes() {
    for d in devices() {
        for nodes in [0, 3] {
            let g = Graph::new(&Tensor::from_slice::<i64>(&d, &[], &[2, 0]).unwrap(), nodes).unwrap();
            let zeros = |t: &Tensor| assert!(values(t).iter().all(|&v| v == 0.0), "on {}", id(&d));
            let x = Tensor::ones(&d, DType::F32, &[nodes, 2]).unwrap().with_grad();
            let sum = g.spmm(&x, None, None, Activation::Identity).unwrap();
            zeros(&sum);
            sum.sum().unwrap().backward().unwrap();
            zeros(&x.grad().unwrap());
            for r in [MessageReduce::Sum, MessageReduce::Mean, MessageReduce::Max] {
                let x = x.detach().with_grad();
                let y = g.message_passing(Message::CopyU, r, Some(&x), None).unwrap();
                zeros(&y);
                y.sum().unwrap().backward().unwrap();
                zeros(&x.grad().unwrap());
            }
            let x3 = Tensor::ones(&d, DType::F32, &[nodes, 1, 2]).unwrap().with_grad();
            let score = Tensor::ones(&d, DType::F32, &[nodes, 1]).unwrap();
            let y = g.gat(&x3, &score, &score, 0.2).unwrap();
            zeros(&y);
            y.sum().unwrap().backward().unwrap();
            assert_eq!(g.sddmm(EdgeOp::Add, &x, &x).unwrap().shape(), [0, 2]);
            assert_eq!(g.edge_softmax(&score.narrow(0, 0, 0).unwrap()).unwrap().shape(), [0, 1]);
            assert_eq!(g.in_degree().unwrap().to_vec::<i64>().unwrap(), vec![0; nodes]);
            let (looped, w) = g.gcn_norm(&g.unit_weights(DType::F32).unwrap(), false, true).unwrap();
            assert_eq!((looped.num_edges(), w.to_vec::<f32>().unwrap()), (nodes, vec![1.0; nodes]));
        }
    }
}

#[test]
fn what_a_graph_refuses() {
    for d in devices() {
        let make = |v: &[i64], n| Graph::new(&Tensor::from_slice(&d, v, &[2, v.len() / 2]).unwrap(), n);
        for (edges, what, bad) in
            [([0, 1, 2, 1, 0, 3], "edge 2 (target)", 3), ([0, -1, 2, 1, 0, 0], "edge 1 (source)", -1)]
        {
            match make(&edges, 3).unwrap_err() {
                NnError::OutOfRange { op: "Graph", place, index, limit: 3 } => {
                    assert_eq!((place.as_str(), index), (what, bad), "on {}", id(&d));
                }
                e => panic!("{e:?}"),
            }
        }
        let e = make(&[0, 5], 3).unwrap_err().to_string();
        assert!(e.contains("index 5 in edge 0 (target)") && e.contains("0..3"), "{e}");
        // The device is as good as before.
        let g = graph(&d);
        let x = Tensor::ones(&d, DType::F32, &[6, 2]).unwrap();
        let refused = |r: trefoil_nn::Result<Tensor>, parts: &[&str]| {
            let e = r.unwrap_err().to_string();
            assert!(parts.iter().all(|p| e.contains(p)), "{e}");
        };
        refused(
            g.spmm(&x.narrow(0, 0, 5).unwrap(), None, None, Activation::Identity),
            &["`x`", "[6, ..]", "[5, 2]"],
        );
        let w = Tensor::ones(&d, DType::F32, &[8]).unwrap();
        refused(g.spmm(&x, Some(&w), None, Activation::Identity), &["edge_weight", "9", "[8]"]);
        let r = MessageReduce::Sum;
        refused(g.message_passing(Message::UMulE, r, Some(&x), None), &["`e`", "none"]);
        refused(g.message_passing(Message::CopyU, r, Some(&x), Some(&x)), &["`e`", "does not read"]);
        refused(g.message_passing(Message::CopyE, r, None, None), &["`e`"]);
        refused(g.gat(&x, &x, &x, 0.2), &["[num_src, H, F]", "[6, 2]"]);
        let flat = Tensor::from_slice(&d, &[0i64, 1], &[2]).unwrap();
        assert!(Graph::new(&flat, 2).unwrap_err().to_string().contains("shape [2, E]"));
        assert!(Graph::new(&x, 6).unwrap_err().to_string().contains("i32 or i64"));
        let both = bipartite(&d).message_passing(
            Message::UAddV,
            r,
            Some(&Tensor::ones(&d, DType::F32, &[3, 2]).unwrap()),
            None,
        );
        assert!(both.is_err());
    }
}

#[test]
fn dense_matrices() {
    let a = Tensor::from_slice(&cpu(), &[0., 2., 0., 0., 0., -1., 3., 0., 0.5, 0., 0., 0.], &[4, 3]).unwrap();
    let (g, w) = Graph::from_dense(&a.with_grad()).unwrap();
    assert_eq!((g.num_src(), g.num_dst(), g.num_edges()), (3, 4, 4));
    agree("to_dense", &g.to_dense(&w).unwrap(), &a);
    let x = tensor(&cpu(), &[3, 2], 1);
    agree("product", &g.spmm(&x, Some(&w), None, Activation::Identity).unwrap(), &a.matmul(&x).unwrap());
    assert!(Graph::from_dense(&x.reshape(&[6]).unwrap()).is_err());
}
