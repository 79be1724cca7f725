//! Message passing, transformers and diffusion on graphs: gradients, refusals, kept graphs, and what sets each apart.

use trefoil::ops::graph::MessageReduce;
use trefoil_nn::layers::{GraphAttend, GraphTransformer, GraphTransformerConfig, MessagePassing};
use trefoil_nn::{Device, Graph, InitContext, Layer, LayerExt, Result, Tensor};

use crate::common::everywhere::resident;
use crate::common::layers::{f64s, gradcheck_layer, refused, state_names};
use crate::common::{close, cpu, tensor};

/// 0 -> 1 -> 2 -> 0, 2 -> 3, 3 -> 3; no edge goes to node 4.
const EDGES: [i64; 12] = [0, 1, 2, 2, 3, 4, 1, 2, 0, 3, 3, 0];

fn edges(d: &Device) -> Tensor {
    Tensor::from_slice(d, &EDGES, &[2, 6]).unwrap()
}

fn transformer(
    cx: &InitContext,
    f: impl FnOnce(GraphTransformerConfig) -> GraphTransformerConfig,
) -> GraphTransformer {
    let small = GraphTransformerConfig::new(4, 3).heads(1).ffn_hidden(5).dropout(0.0);
    GraphTransformer::new(cx, &f(small)).unwrap()
}

fn layers(cx: &InitContext) -> Result<Vec<Box<dyn Layer>>> {
    Ok(vec![
        Box::new(MessagePassing::new(cx, 4, 3)?),
        Box::new(MessagePassing::new(cx, 4, 4)?.message_features(2)?.aggregator(MessageReduce::Max)?),
        Box::new(transformer(cx, |c| c.dropout(0.3))),
        Box::new(transformer(cx, |c| c.attend(GraphAttend::All).max_distance(2).no_norm())),
    ])
}

fn run(l: &dyn Layer, inputs: &[&Tensor]) -> Result<Tensor> {
    let inputs: Vec<Tensor> = inputs.iter().copied().cloned().collect();
    Ok(l.forward_all(&inputs)?.remove(0))
}

#[test]
fn gradients_and_samples_on_one_graph() {
    let (cx, e) = (f64s(), edges(&cpu()));
    for l in layers(&cx).unwrap() {
        for shape in [&[5usize, 4][..], &[2, 5, 4]] {
            gradcheck_layer(l.kind(), &*l, &[tensor(&cpu(), shape, 2)], |t| run(&*l, &[&t[0], &e]));
        }
        l.eval();
        let x = tensor(&cpu(), &[3, 5, 4], 1);
        let all = run(&*l, &[&x, &e]).unwrap().to_vec::<f64>().unwrap();
        let sample = |b| run(&*l, &[&x.select(0, b).unwrap(), &e]).unwrap().to_vec::<f64>().unwrap();
        close(&all, &(0..3).flat_map(sample).collect::<Vec<_>>(), 1e-12, l.kind());
        refused(l.forward(&x), &[l.kind(), "edge_index"]);
        refused(run(&*l, &[&x.narrow(2, 0, 3).unwrap(), &e]), &[l.kind(), "`x`", "[5, 4]"]);
        refused(run(&*l, &[&x.narrow(1, 0, 4).unwrap(), &e]), &["index 4 in edge 5 (source)", "0..4"]);
        refused(run(&*l, &[&x, &e.narrow(0, 0, 1).unwrap()]), &["edge_index", "[2, E]"]);
    }
}

#[test]
fn graphs_are_kept() {
    let (d, cx) = (cpu(), f64s());
    for l in layers(&cx).unwrap() {
        let (x, e) = (tensor(&d, &[5, 4], 1).with_grad(), edges(&d));
        let step = || run(&*l, &[&x, &e]).unwrap().sum().unwrap().backward().unwrap();
        step();
        resident(l.kind(), &d, step);
    }
}

#[test]
fn messages_of_edges_with_features_and_weights() {
    let (cx, e, c) = (f64s(), edges(&cpu()), cpu());
    let (x, attr, w) = (tensor(&c, &[5, 4], 1), tensor(&c, &[6, 2], 2), tensor(&c, &[6], 3));
    let l = MessagePassing::new(&cx, 4, 3).unwrap().edge_features(2).unwrap();
    let names = ["message.0.weight", "message.0.bias", "message.2.weight", "message.2.bias"];
    assert_eq!(state_names(&l)[..4], names);
    assert_eq!(
        state_names(&l)[4..],
        ["gru.weight_ih", "gru.weight_hh", "gru.bias_ih", "gru.bias_hh", "lin.weight"]
    );
    gradcheck_layer("features and weights", &l, &[x.clone(), attr.clone(), w.clone()], |t| {
        run(&l, &[&t[0], &e, &t[1], &t[2]])
    });
    refused(run(&l, &[&x, &e]), &["MessagePassing", "edge_attr", "[6, 2]", "none"]);
    refused(run(&l, &[&x, &e, &w]), &["edge_attr", "[6, 2]", "[6]"]);
    refused(run(&l, &[&x, &e, &attr, &attr]), &["edge_weight", "[6]", "[6, 2]"]);
    refused(run(&l, &[&x, &e, &attr, &w, &w]), &["at most 4 tensors"]);
    let plain = MessagePassing::new(&cx, 4, 4).unwrap();
    assert_eq!(state_names(&plain).len(), 8, "without `lin`");
    refused(run(&plain, &[&x, &e, &attr]), &["edge_attr", "`edge_features` is 0"]);
    gradcheck_layer("weights", &plain, &[x.clone(), w.clone()], |t| run(&plain, &[&t[0], &e, &t[1]]));
    refused(plain.aggregator(MessageReduce::Min), &["MessagePassing", "aggregator"]);
    refused(MessagePassing::new(&cx, 4, 0), &["MessagePassing", "out_features"]);
    refused(MessagePassing::new(&cx, 4, 3).unwrap().message_features(0), &["message_features"]);

    // Without edges, every message is 0.
    let none = Tensor::from_slice(&c, &[0i64; 0], &[2, 0]).unwrap();
    let l = MessagePassing::new(&cx, 4, 4).unwrap();
    let (alone, state) = (run(&l, &[&x, &none]).unwrap(), l.state_dict().unwrap());
    let gru = trefoil_nn::layers::GruCell::new(&cx, 4, 4).unwrap();
    let of_gru = state.iter().filter_map(|(n, t)| Some((n.strip_prefix("gru.")?.to_string(), t.clone())));
    gru.load_state_dict(&of_gru.collect()).unwrap();
    let h = trefoil_nn::RnnState { h: x.clone(), c: None };
    let want = gru.step(&x.zeros_like().unwrap(), Some(&h)).unwrap().h.to_vec::<f64>().unwrap();
    close(&alone.to_vec::<f64>().unwrap(), &want, 1e-12, "no edges");
}

#[test]
fn attention_stays_within_a_graph() {
    let (cx, c) = (f64s(), cpu());
    let l = transformer(&cx, |c| c.attend(GraphAttend::All).max_distance(1));
    let table = l.named_parameters().into_iter().find(|(n, _)| n == "self_attn.distance_bias").unwrap().1;
    table.set(tensor(&c, &[3, 1], 9));
    let graphs = [
        Graph::new(&edges(&c), 5).unwrap(),
        Graph::new(&Tensor::from_slice(&c, &[0i64, 1, 1, 0], &[2, 2]).unwrap(), 2).unwrap(),
    ];
    let x = tensor(&c, &[7, 4], 1);
    let both = l.forward_on(&Graph::from_graphs(&[&graphs[0], &graphs[1]]).unwrap(), &x).unwrap();
    let part = |g: usize, start, n| l.forward_on(&graphs[g], &x.narrow(0, start, n).unwrap()).unwrap();
    let each = Tensor::concat(0, &[&part(0, 0, 5), &part(1, 5, 2)]).unwrap();
    close(&both.to_vec::<f64>().unwrap(), &each.to_vec::<f64>().unwrap(), 1e-12, "a batch of graphs");
    // Along edges, a node into which none goes sees itself alone: node 4 keeps its result whatever the others hold.
    let l = transformer(&cx, |c| c);
    let moved = Tensor::concat(0, &[&tensor(&c, &[4, 4], 5), &x.narrow(0, 4, 1).unwrap()]).unwrap();
    let last =
        |x: &Tensor| l.forward_on(&graphs[0], x).unwrap().select(0, 4).unwrap().to_vec::<f64>().unwrap();
    assert_eq!(last(&moved), last(&x.narrow(0, 0, 5).unwrap()));
}

#[test]
fn transformer_modes_and_refusals() {
    let (cx, e, x) = (f64s(), edges(&cpu()), tensor(&cpu(), &[5, 4], 1));
    let l = transformer(&cx, |c| c.dropout(0.5));
    let values = |l: &GraphTransformer| run(l, &[&x, &e]).unwrap().to_vec::<f64>().unwrap();
    assert_ne!(values(&l), values(&l), "masks are drawn anew");
    l.eval();
    assert_eq!(values(&l), values(&l));
    let names = state_names(&transformer(&cx, |c| c.no_bias().max_distance(0).no_norm()));
    let want =
        ["self_attn.in_proj_weight", "self_attn.out_proj.weight", "self_attn.distance_bias", "res.weight"];
    assert_eq!(names[..4], want);
    assert_eq!(names[4..], ["linear1.weight", "linear2.weight"]);
    let new = |c: GraphTransformerConfig| GraphTransformer::new(&cx, &c);
    let config = GraphTransformerConfig::new;
    refused(new(config(4, 6)), &["GraphTransformer", "heads", "a divisor of 6", "8"]);
    refused(new(config(4, 6).heads(0)), &["GraphTransformer", "heads", "at least 1"]);
    refused(new(config(4, 6).head_dim(0)), &["GraphTransformer", "head_dim", "at least 1"]);
    refused(new(config(0, 8)), &["GraphTransformer", "in_features"]);
    refused(new(config(4, 8).ffn_hidden(0)), &["GraphTransformer", "ffn_hidden"]);
    refused(new(config(4, 8).dropout(1.5)), &["dropout"]);
    assert!(new(config(4, 8).max_distance(usize::MAX)).is_err());
}
