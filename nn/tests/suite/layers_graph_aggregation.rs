//! Readout, directed edges, edges with features and types, several aggregations: gradients, refusals, what is kept from call to call.

use trefoil::ops::core::CoreOps;
use trefoil::ops::graph::MessageReduce;
use trefoil_nn::layers::{
    DirectionalGraph, EdgeConditionalConvolutional, HeterogeneousGraph, PnaAggregator, PnaScaler,
    PrincipalNeighbourhoodAggregation, Readout, ReadoutMode,
};
use trefoil_nn::network::layer;
use trefoil_nn::{DType, Device, Graph, Groups, InitContext, Layer, LayerExt, NnError, Result, Tensor};

use crate::common::everywhere::resident;
use crate::common::layers::{f64s, gradcheck_layer, param, refused, state_names};
use crate::common::{close, cpu, devices, tensor};

const NODES: usize = 5;
/// Nothing goes into node 4; the edge from 0 to 1 stands twice.
const EDGES: [i64; 16] = [0, 1, 2, 0, 3, 3, 4, 0, 1, 0, 1, 2, 2, 3, 3, 1];
const EDGE_FEATURES: usize = 2;
/// Types of nodes and edges: a-b, b-a, a-a, b-b.
const NODE_TYPES: [i64; 5] = [0, 1, 0, 1, 1];
const EDGE_TYPES: [i64; 8] = [0, 1, 0, 2, 1, 3, 3, 0];
const RELATIONS: [(&str, &str, &str); 5] =
    [("a", "to", "b"), ("b", "to", "a"), ("a", "like", "a"), ("b", "like", "b"), ("a", "hate", "a")];

fn indices(d: &Device, values: &[i64]) -> Tensor {
    Tensor::from_slice(d, values, &[values.len()]).unwrap()
}

fn edges(d: &Device) -> Tensor {
    Tensor::from_slice(d, &EDGES, &[2, 8]).unwrap()
}

/// A layer, and its inputs behind the features of nodes.
type Case = (Box<dyn Layer>, Vec<Tensor>);

fn pooled(cx: &InitContext, mode: ReadoutMode) -> Result<Readout> {
    Readout::new(cx, 4, 3)?.mode(mode)?.num_graphs(3)
}

fn ecc(cx: &InitContext, outputs: usize) -> Result<EdgeConditionalConvolutional> {
    EdgeConditionalConvolutional::new(cx, 4, outputs, EDGE_FEATURES)?.edge_hidden(3)
}

fn pna(cx: &InitContext) -> Result<PrincipalNeighbourhoodAggregation> {
    PrincipalNeighbourhoodAggregation::new(cx, 4, 3, &[1, 2, 3, 1])
}

fn rgcn(cx: &InitContext, relations: &[(&str, &str, &str)]) -> Result<HeterogeneousGraph> {
    HeterogeneousGraph::new(cx, &[("a", 4), ("b", 4)], relations, 3)
}

fn cases(cx: &InitContext, dtype: DType) -> Result<Vec<Case>> {
    let d = cx.device();
    let attr = tensor(&cpu(), &[8, EDGE_FEATURES], 9).to_dtype(dtype)?.to_device(d)?;
    let graph = || vec![edges(d)];
    let with_attr = || vec![edges(d), attr.clone()];
    let batch = || vec![indices(d, &[2, 0, 2, 0, 0])];
    let types = || vec![edges(d), indices(d, &NODE_TYPES), indices(d, &EDGE_TYPES)];
    Ok(vec![
        (Box::new(pooled(cx, ReadoutMode::Sum)?), batch()),
        (Box::new(pooled(cx, ReadoutMode::Mean)?.no_bias()), batch()),
        (Box::new(pooled(cx, ReadoutMode::Max)?), batch()),
        (Box::new(pooled(cx, ReadoutMode::Attention)?), batch()),
        (Box::new(DirectionalGraph::new(cx, 4, 3)?.alpha(0.3)?), graph()),
        (
            Box::new(DirectionalGraph::new(cx, 4, 3)?.aggregator(MessageReduce::Max)?.no_root_weight()?),
            graph(),
        ),
        (Box::new(DirectionalGraph::new(cx, 4, 3)?.concat(true)?), graph()),
        (Box::new(DirectionalGraph::new(cx, 4, 3)?.concat(true)?.no_root_weight()?), graph()),
        (Box::new(ecc(cx, 3)?), with_attr()),
        (Box::new(ecc(cx, 6)?.aggregator(MessageReduce::Sum)?.no_root_weight()), with_attr()),
        (Box::new(pna(cx)?), graph()),
        (Box::new(pna(cx)?.edge_features(EDGE_FEATURES)?.pre_layers(2)?.post_layers(2)?), with_attr()),
        (Box::new(rgcn(cx, &RELATIONS[..4])?), types()),
        (Box::new(rgcn(cx, &RELATIONS)?.num_bases(2)?.no_root_weight()), types()),
    ])
}

fn run(layer: &dyn Layer, x: &Tensor, rest: &[Tensor]) -> Result<Tensor> {
    Ok(layer.forward_all(&[std::slice::from_ref(x), rest].concat())?.remove(0))
}

#[test]
fn gradients_and_samples_on_one_graph() {
    for (l, rest) in cases(&f64s(), DType::F64).unwrap() {
        let x = tensor(&cpu(), &[3, NODES, 4], 1);
        let all = run(&*l, &x, &rest).unwrap().to_vec::<f64>().unwrap();
        let of = |b| run(&*l, &x.select(0, b).unwrap(), &rest).unwrap().to_vec::<f64>().unwrap();
        close(&all, &(0..3).flat_map(of).collect::<Vec<_>>(), 1e-12, l.kind());
        for shape in [&[NODES, 4][..], &[2, NODES, 4]] {
            let inputs: Vec<Tensor> = [tensor(&cpu(), shape, 2)].into_iter().chain(rest.clone()).collect();
            gradcheck_layer(l.kind(), &*l, &inputs, |t| Ok(l.forward_all(t)?.remove(0)));
        }
        refused(l.forward(&x), &[l.kind(), "inputs", "features alone"]);
        refused(run(&*l, &x.narrow(2, 0, 3).unwrap(), &rest), &[l.kind(), "`x`", "[5, 4]"]);
        let many = [rest.clone(), rest.clone(), rest.clone()].concat();
        refused(run(&*l, &x, &many), &[l.kind(), "inputs", &format!("{}", many.len() + 1)]);
    }
}

#[test]
fn a_graph_is_examined_once() {
    for d in devices() {
        for (l, rest) in cases(&InitContext::new(&d, 1), DType::F32).unwrap() {
            let x = tensor(&cpu(), &[NODES, 4], 1)
                .to_dtype(DType::F32)
                .unwrap()
                .to_device(&d)
                .unwrap()
                .with_grad();
            let step = || run(&*l, &x, &rest).unwrap().sum().unwrap().backward().unwrap();
            step();
            resident(l.kind(), &d, step);
        }
    }
    // Other numbers in the same memory are other graphs.
    let (x, batch) = (tensor(&cpu(), &[2, 4], 1), indices(&cpu(), &[0, 2]));
    let l = pooled(&f64s(), ReadoutMode::Sum).unwrap();
    run(&l, &x, std::slice::from_ref(&batch)).unwrap();
    batch.fill(3.0).unwrap();
    refused(run(&l, &x, &[batch]), &["index 3", "position 0", "0..3"]);
}

#[test]
fn readout_of_graphs_without_nodes_and_of_nodes() {
    let (cx, x) = (f64s(), tensor(&cpu(), &[NODES, 4], 1));
    let batch = Groups::new(&indices(&cpu(), &[2, 0, 2, 0, 0]), 3).unwrap();
    for mode in [ReadoutMode::Sum, ReadoutMode::Mean, ReadoutMode::Max, ReadoutMode::Attention] {
        let l = pooled(&cx, mode).unwrap();
        let y = l.forward_on(&x, &batch).unwrap();
        assert_eq!(y.select(0, 1).unwrap().to_vec::<f64>().unwrap(), param(&l, "lin.bias"), "{mode:?}");
        // What the graphs share is the linear layer alone.
        let own = x.narrow(0, 1, 1).unwrap();
        let alone = l.forward_on(&own, &Groups::new(&indices(&cpu(), &[0]), 1).unwrap()).unwrap();
        let want = Readout::new(&cx, 4, 3).unwrap();
        want.load_state_dict(
            &l.state_dict().unwrap().into_iter().filter(|(n, _)| n.starts_with("lin")).collect(),
        )
        .unwrap();
        let want = want.forward(&own).unwrap().to_vec::<f64>().unwrap();
        close(&alone.to_vec::<f64>().unwrap(), &want, 1e-12, "a graph of one node");
        let fewer = x.narrow(0, 0, 4).unwrap();
        refused(l.forward_on(&fewer, &batch), &["Readout", "`x`", "[5, 4]"]);
    }
    let nodes = Readout::new(&cx, 4, 3).unwrap();
    gradcheck_layer("nodes", &nodes, &[tensor(&cpu(), &[2, 3, 4], 1)], |t| nodes.forward(&t[0]));
    refused(nodes.forward_on(&x, &batch), &["Readout", "mode"]);
    let unknown = Readout::new(&cx, 4, 3).unwrap().mode(ReadoutMode::Sum).unwrap();
    refused(run(&unknown, &x, &[batch.index().clone()]), &["Readout", "num_graphs"]);
    refused(pooled(&cx, ReadoutMode::Sum).unwrap().num_graphs(0), &["Readout", "num_graphs"]);
    let attention = pooled(&cx, ReadoutMode::Attention).unwrap();
    assert_eq!(state_names(&attention), ["gate_nn.weight", "gate_nn.bias", "lin.weight", "lin.bias"]);
}

#[test]
fn directions() {
    let cx = f64s();
    let make = || DirectionalGraph::new(&cx, 4, 3);
    let (l, x) = (make().unwrap().alpha(0.25).unwrap(), tensor(&cpu(), &[NODES, 4], 1));
    // Turned edges with the weights of both directions exchanged.
    let other = make().unwrap().alpha(0.75).unwrap();
    let exchange = |name: String| match name.split_once('.') {
        Some(("conv_in", rest)) => format!("conv_out.{rest}"),
        Some(("conv_out", rest)) => format!("conv_in.{rest}"),
        _ => name,
    };
    other
        .load_state_dict(&l.state_dict().unwrap().into_iter().map(|(n, t)| (exchange(n), t)).collect())
        .unwrap();
    let y = run(&l, &x, &[edges(&cpu())]).unwrap().to_vec::<f64>().unwrap();
    let turned = run(&other, &x, &[edges(&cpu()).flip(&[0]).unwrap()]).unwrap().to_vec::<f64>().unwrap();
    close(&y, &turned, 1e-12, "turned edges");

    for alpha in [-0.1, 1.1, f64::NAN] {
        refused(make().unwrap().alpha(alpha), &["DirectionalGraph", "alpha", "[0, 1]"]);
    }
    refused(make().unwrap().aggregator(MessageReduce::Min), &["DirectionalGraph", "aggregator"]);
    refused(DirectionalGraph::new(&cx, 4, 0), &["DirectionalGraph", "out_features"]);
    let convs =
        ["conv_in.lin_l.weight", "conv_in.lin_l.bias", "conv_out.lin_l.weight", "conv_out.lin_l.bias"];
    assert_eq!(state_names(&l), [&convs[..], &["lin.weight", "lin.bias"]].concat());
    let gated = make().unwrap().concat(true).unwrap().no_root_weight().unwrap();
    let more = ["gate.weight", "gate.bias", "combine.weight", "combine.bias"];
    assert_eq!(state_names(&gated), [&convs[..], &more].concat());
    assert_eq!(gated.state_dict().unwrap()["combine.weight"].shape(), [3, 6]);
}

#[test]
fn matrices_of_edges_are_not_formed() {
    let cx = f64s();
    let (n, e, f) = (4, 500, 16);
    let ends: Vec<i64> = (0..2 * e).map(|i| (i * i + i / 3) % n).collect();
    let (x, attr) = (tensor(&cpu(), &[n as usize, f], 1), tensor(&cpu(), &[e as usize, EDGE_FEATURES], 2));
    for outputs in [f - 1, f + 1] {
        let d: Device = std::sync::Arc::new(trefoil::CpuBackend::new());
        let to = |t: &Tensor| t.to_device(&d).unwrap().with_grad();
        let on_device = InitContext::new(&d, 1).dtype(DType::F64);
        let l = EdgeConditionalConvolutional::new(&on_device, f, outputs, EDGE_FEATURES).unwrap();
        let l = l.edge_hidden(4).unwrap();
        let inputs = [to(&x), Tensor::from_slice(&d, &ends, &[2, e as usize]).unwrap(), to(&attr)];
        let y = l.forward_all(&inputs).unwrap().remove(0);
        y.sum().unwrap().backward().unwrap();
        let (peak, matrices) = (d.memory().peak, e as usize * f * outputs * 8);
        assert!(peak < matrices / 2, "{peak} bytes, the matrices would be {matrices}");
    }
    let (l, x) = (ecc(&cx, 3).unwrap(), tensor(&cpu(), &[NODES, 4], 1));
    let attr = |shape: &[usize]| [edges(&cpu()), tensor(&cpu(), shape, 3)];
    refused(run(&l, &x, &[edges(&cpu())]), &["EdgeConditionalConvolutional", "edge_attr", "[E, 2]"]);
    refused(run(&l, &x, &attr(&[8, 3])), &["EdgeConditionalConvolutional", "edge_attr", "[8, 2]", "[8, 3]"]);
    refused(run(&l, &x, &attr(&[7, 2])), &["EdgeConditionalConvolutional", "edge_attr", "[8, 2]", "[7, 2]"]);
    refused(
        ecc(&cx, 3).unwrap().aggregator(MessageReduce::Max),
        &["EdgeConditionalConvolutional", "aggregator"],
    );
    refused(ecc(&cx, 3).unwrap().edge_hidden(0), &["EdgeConditionalConvolutional", "edge_hidden"]);
    refused(
        EdgeConditionalConvolutional::new(&cx, 4, 3, 0),
        &["EdgeConditionalConvolutional", "edge_features"],
    );
    let names = ["nn.0.weight", "nn.0.bias", "nn.2.weight", "nn.2.bias", "lin.weight", "bias"];
    assert_eq!(state_names(&l), names);
    assert_eq!(param(&l, "bias"), [0.0; 3]);
    // Without edges, what is left is the node itself.
    let none = [Tensor::from_slice::<i64>(&cpu(), &[], &[2, 0]).unwrap(), tensor(&cpu(), &[0, 2], 1)];
    let own = x.matmul(&l.state_dict().unwrap()["lin.weight"].t().unwrap()).unwrap();
    close(
        &run(&l, &x, &none).unwrap().to_vec::<f64>().unwrap(),
        &own.to_vec::<f64>().unwrap(),
        1e-12,
        "no edges",
    );
}

#[test]
fn degrees_scale_what_several_aggregators_give() {
    let cx = f64s();
    let make = |histogram: &[u64]| PrincipalNeighbourhoodAggregation::new(&cx, 4, 3, histogram);
    for histogram in [&[][..], &[7], &[0, 0, 0]] {
        refused(make(histogram), &["PrincipalNeighbourhoodAggregation", "deg_histogram"]);
    }
    let l = || pna(&cx).unwrap();
    refused(l().aggregators(&[]), &["PrincipalNeighbourhoodAggregation", "aggregators"]);
    refused(l().scalers(&[]), &["PrincipalNeighbourhoodAggregation", "scalers"]);
    refused(l().pre_layers(0), &["PrincipalNeighbourhoodAggregation", "pre_layers"]);
    refused(l().post_layers(0), &["PrincipalNeighbourhoodAggregation", "post_layers"]);
    refused(l().edge_features(0), &["PrincipalNeighbourhoodAggregation", "edge_features"]);
    let (x, attr) = (tensor(&cpu(), &[NODES, 4], 1), tensor(&cpu(), &[8, 2], 2));
    refused(
        run(&l(), &x, &[edges(&cpu()), attr.clone()]),
        &["PrincipalNeighbourhoodAggregation", "edge_attr"],
    );
    let with_edges = l().edge_features(2).unwrap();
    refused(
        run(&with_edges, &x, &[edges(&cpu())]),
        &["PrincipalNeighbourhoodAggregation", "edge_attr", "[E, 2]"],
    );
    refused(run(&with_edges, &x, &[edges(&cpu()), attr.narrow(0, 0, 7).unwrap()]), &["edge_attr", "[8, 2]"]);
    let names = ["pre_nns.0.0", "post_nns.0.0", "post_nns.0.2", "lin"];
    let names: Vec<String> =
        names.iter().flat_map(|n| ["weight", "bias"].map(|p| format!("{n}.{p}"))).collect();
    assert_eq!(state_names(&l().post_layers(2).unwrap()), names);

    // Sums, scaled by ln(d + 1) / delta, under linear layers that pass only the first of them.
    let l = l().aggregators(&[PnaAggregator::Sum]).unwrap().scalers(&[PnaScaler::Amplification]).unwrap();
    let state = l.state_dict().unwrap();
    for (name, t) in &state {
        t.fill(if name.ends_with("bias") { 0.0 } else { 1.0 }).unwrap();
    }
    state["post_nns.0.0.weight"].narrow(1, 0, 4).unwrap().fill(0.0).unwrap();
    l.load_state_dict(&state).unwrap();
    let got = run(&l, &x, &[edges(&cpu())]).unwrap().to_vec::<f64>().unwrap();
    let rows = x.sum_axes(&[1], false).unwrap().to_vec::<f64>().unwrap();
    let delta = (2.0 * 2f64.ln() + 3.0 * 3f64.ln() + 4f64.ln()) / 7.0;
    let of = |node: usize| {
        let into = (0..8).filter(|&e| EDGES[8 + e] as usize == node);
        let sources: Vec<usize> = into.map(|e| EDGES[e] as usize).collect();
        let sum: f64 = sources.iter().map(|&s| rows[s] + rows[node]).sum();
        12.0 * sum * ((sources.len() + 1) as f64).ln() / delta
    };
    let want: Vec<f64> = (0..NODES).flat_map(|node| [of(node); 3]).collect();
    close(&got, &want, 1e-12, "amplified sums");
}

#[test]
fn nodes_and_edges_of_types_have_their_own_weights() {
    let (cx, d) = (f64s(), cpu());
    let l = HeterogeneousGraph::new(
        &cx,
        &[("user", 2), ("item", 3), ("shop", 1)],
        &[("user", "buys", "item"), ("item", "of", "user"), ("user", "knows", "user")],
        4,
    )
    .unwrap();
    let ends = [vec![0i64, 3, 1, 1, 0, 0], vec![1, 0, 0, 3], vec![0, 1, 2, 2, 2, 0]];
    let sizes = [[4, 2], [2, 4], [4, 4]];
    let graphs: Vec<Graph> = std::iter::zip(&ends, sizes)
        .map(|(e, [src, dst])| {
            Graph::bipartite(&Tensor::from_slice(&d, e, &[2, e.len() / 2]).unwrap(), src, dst).unwrap()
        })
        .collect();
    let x = [tensor(&d, &[4, 2], 1), tensor(&d, &[2, 3], 2), tensor(&d, &[0, 1], 3)];
    let y = l.forward_on(&graphs, &x).unwrap();
    // The same by dense matrices.
    let state = l.state_dict().unwrap();
    let map = |x: &Tensor, name: &str| x.matmul(&state[name].t().unwrap()).unwrap();
    let mean = |r: usize, x: &Tensor| {
        let unit = graphs[r].row_norm(&graphs[r].unit_weights(DType::F64).unwrap()).unwrap();
        graphs[r].to_dense(&unit).unwrap().matmul(x).unwrap()
    };
    let user = map(&x[0], "lins.user.weight")
        .add(&map(&mean(1, &x[1]), "convs.<item___of___user>.lin_l.weight"))
        .and_then(|y| y.add(&map(&mean(2, &x[0]), "convs.<user___knows___user>.lin_l.weight")))
        .unwrap();
    let item = map(&x[1], "lins.item.weight")
        .add(&map(&mean(0, &x[0]), "convs.<user___buys___item>.lin_l.weight"))
        .unwrap();
    for (got, want) in y.iter().zip([user, item]) {
        close(&got.to_vec::<f64>().unwrap(), &want.to_vec::<f64>().unwrap(), 1e-12, "two types");
    }
    assert_eq!(y[2].shape(), [0, 4]);
    assert_eq!(param(&l, "bias"), [0.0; 12]);
    let shops = Tensor::zeros(&d, DType::F64, &[1, 1]).unwrap();
    gradcheck_layer("types", &l, &[x[0].clone(), x[1].clone(), shops.ones_like().unwrap()], |t| {
        let parts = l.forward_on(&graphs, t)?;
        Tensor::concat(0, &parts.iter().collect::<Vec<_>>())
    });
    // Nothing goes into a shop.
    let bare =
        HeterogeneousGraph::new(&cx, &[("user", 2), ("shop", 1)], &[("shop", "of", "user")], 4).unwrap();
    let bare = bare.no_root_weight().no_bias();
    let none = Graph::bipartite(&Tensor::from_slice::<i64>(&d, &[], &[2, 0]).unwrap(), 1, 4).unwrap();
    let y = bare.forward_on(std::slice::from_ref(&none), &[x[0].clone(), shops]).unwrap();
    assert_eq!(y[1].to_vec::<f64>().unwrap(), [0.0; 4]);

    refused(l.forward_on(&graphs[..2], &x), &["HeterogeneousGraph", "graphs", "3"]);
    refused(l.forward_on(&graphs, &x[..2]), &["HeterogeneousGraph", "`x`", "3"]);
    let swapped = [x[1].clone(), x[0].clone(), x[2].clone()];
    refused(l.forward_on(&graphs, &swapped), &["HeterogeneousGraph", "`x`", "[N, 2]", "user", "[2, 3]"]);
    let fewer = [x[0].narrow(0, 0, 3).unwrap(), x[1].clone(), x[2].clone()];
    refused(l.forward_on(&graphs, &fewer), &["graphs", "user___buys___item", "3 sources", "4 and 2"]);
    refused(
        run(&l, &x[0], &[edges(&d), indices(&d, &[0]), indices(&d, &[0])]),
        &["forward_on", "3 of `item`"],
    );
    refused(l.num_bases(2), &["HeterogeneousGraph", "num_bases", "2 and 3"]);
}

#[test]
fn types_are_examined() {
    let (cx, d) = (f64s(), cpu());
    let make =
        |nodes: &[(&str, usize)], edges: &[(&str, &str, &str)]| HeterogeneousGraph::new(&cx, nodes, edges, 3);
    let known = ("a", "to", "a");
    for (nodes, edges, words) in [
        (&[][..], &[known][..], ["node_types", "at least 1"]),
        (&[("a", 4)], &[], ["edge_types", "at least 1"]),
        (&[("a", 0)], &[known], ["in_features", "at least 1"]),
        (&[("a", 4), ("a", 4)], &[known], ["node_types", "`a`"]),
        (&[("a.b", 4)], &[known], ["node_types", "`a.b`"]),
        (&[("a", 4)], &[("a", "", "a")], ["edge_types", "``"]),
        (&[("a", 4)], &[known, known], ["edge_types", "`to`"]),
        (&[("a", 4)], &[("a", "to", "b")], ["edge_types", "`b`"]),
    ] {
        refused(make(nodes, edges), &["HeterogeneousGraph", words[0], words[1]]);
    }
    let l = rgcn(&cx, &RELATIONS[..4]).unwrap();
    let x = tensor(&d, &[NODES, 4], 1);
    let with =
        |nodes: &[i64], types: &[i64]| run(&l, &x, &[edges(&d), indices(&d, nodes), indices(&d, types)]);
    with(&NODE_TYPES, &EDGE_TYPES).unwrap();
    refused(with(&NODE_TYPES[..4], &EDGE_TYPES), &["node_type", "[5]", "[4]"]);
    refused(with(&NODE_TYPES, &EDGE_TYPES[..7]), &["edge_type", "[8]", "[7]"]);
    refused(with(&[0, 1, 2, 1, 1], &EDGE_TYPES), &["index 2", "position 2", "0..2"]);
    refused(with(&NODE_TYPES, &[0, 1, 0, 2, 1, 3, 4, 0]), &["index 4", "position 6", "0..4"]);
    refused(
        with(&NODE_TYPES, &[0, 1, 1, 2, 1, 3, 3, 0]),
        &["edge_type", "edge 2", "source is `a`", "is `b`"],
    );
    refused(
        with(&NODE_TYPES, &[0, 1, 0, 2, 1, 1, 3, 0]),
        &["edge_type", "edge 5", "target is `b`", "is `a`"],
    );
    refused(run(&l, &x, &[edges(&d)]), &["HeterogeneousGraph", "edge_type", "2 tensors"]);
    refused(rgcn(&cx, &RELATIONS).unwrap().num_bases(0), &["HeterogeneousGraph", "num_bases"]);
    // More bases than relations save nothing and are allowed.
    let bases = rgcn(&cx, &RELATIONS).unwrap().num_bases(7).unwrap();
    assert_eq!(state_names(&bases), ["weight", "comp", "lins.a.weight", "lins.b.weight", "bias"]);
    assert_eq!(bases.state_dict().unwrap()["weight"].shape(), [7, 4, 3]);
}

#[test]
fn options_that_exclude_each_other_are_named() {
    let cx = InitContext::new(&cpu(), 1);
    let sizes = r#""in_features": 4, "out_features": 3"#;
    for (options, key) in [
        (r#""type": "readout", "mode": "sum""#, "num_graphs"),
        (r#""type": "readout", "num_graphs": 2"#, "num_graphs"),
        (r#""type": "readout", "mode": "sum", "num_graphs": 0"#, "num_graphs"),
        (r#""type": "directional_graph", "gating": true"#, "gating"),
        (r#""type": "directional_graph", "mode": "concat", "alpha": 0.5"#, "alpha"),
        (r#""type": "directional_graph", "alpha": 2"#, "alpha"),
        (
            r#""type": "edge_conditional_convolutional", "edge_features": 2, "aggregator": "max""#,
            "aggregator",
        ),
        (r#""type": "principal_neighbourhood_aggregation", "deg_histogram": [3]"#, "deg_histogram"),
        (
            r#""type": "principal_neighbourhood_aggregation", "deg_histogram": [0, 1], "scalers": ["linear"]"#,
            "scalers",
        ),
        (
            r#""type": "heterogeneous_graph", "node_types": ["a"], "edge_types": [["a", "to", "b"]]"#,
            "edge_types",
        ),
    ] {
        let json = serde_json::from_str(&format!("{{{options}, {sizes}}}")).unwrap();
        let Err(NnError::Config { key: at, .. }) = layer(&cx, &json) else { panic!("accepted: {options}") };
        assert!(at.starts_with(key), "{options}: {at}");
    }
}
