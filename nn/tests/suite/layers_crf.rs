//! Conditional random fields: against all paths one by one, gradients, constraints, masks, refusals.

use serde_json::{Value, json};
use trefoil::ops::activation::Activation;
use trefoil_nn::layers::{ConditionalRandomField, TagScheme};
use trefoil_nn::losses::Reduction;
use trefoil_nn::network::layer;
use trefoil_nn::{DType, Device, InitContext, Layer, LayerExt, NnError, Tensor};

use crate::common::everywhere::resident;
use crate::common::layers::{f64s, gradcheck_layer, param, refused, state_names};
use crate::common::{close, cpu, devices, id, tensor};

/// A field whose scores matter.
fn field(cx: &InitContext, tags: usize) -> ConditionalRandomField {
    let l = ConditionalRandomField::new(cx, tags).unwrap().reduction(Reduction::None);
    for (i, (_, p)) in l.named_parameters().into_iter().enumerate() {
        let t = p.get();
        t.detach()
            .assign(&tensor(t.device(), t.shape(), 50 + i as u64).to_dtype(t.dtype()).unwrap())
            .unwrap();
    }
    l
}

/// Every path of a length, with its score.
fn paths(l: &ConditionalRandomField, tags: usize, emissions: &[f64], steps: usize) -> Vec<(Vec<i64>, f64)> {
    let [start, end, moves] = ["start_transitions", "end_transitions", "transitions"].map(|n| param(l, n));
    let all = (0..tags.pow(steps as u32)).map(|mut number| {
        let path: Vec<usize> = (0..steps)
            .map(|_| {
                let tag = number % tags;
                number /= tags;
                tag
            })
            .collect();
        let emitted: f64 = path.iter().enumerate().map(|(t, &y)| emissions[t * tags + y]).sum();
        let moved: f64 = path.windows(2).map(|w| moves[w[0] * tags + w[1]]).sum();
        let score = start[path[0]] + emitted + moved + end[path[steps - 1]];
        (path.iter().map(|&y| y as i64).collect(), score)
    });
    all.collect()
}

fn best(paths: &[(Vec<i64>, f64)]) -> Vec<i64> {
    paths.iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap().0.clone()
}

fn mask(d: &Device, lengths: &[usize], steps: usize) -> Tensor {
    let on: Vec<u8> = lengths.iter().flat_map(|&n| (0..steps).map(move |t| (t < n).into())).collect();
    Tensor::from_slice(d, &on, &[lengths.len(), steps]).unwrap()
}

#[test]
fn sums_and_maxima_are_those_of_all_paths() {
    let (l, d) = (field(&f64s(), 3), cpu());
    let e = tensor(&d, &[3, 4, 3], 7).mul_scalar(2.0).unwrap();
    let host = e.to_vec::<f64>().unwrap();
    let lengths = [4, 1, 3];
    // What stands behind the end of a sequence does not matter.
    let tags = Tensor::from_slice(&d, &[0i64, 2, 1, 1, 2, -5, 9, 0, 1, 1, 0, -100], &[3, 4]).unwrap();
    let tags_host = tags.to_vec::<i64>().unwrap();
    let on = mask(&d, &lengths, 4);
    let got = l.neg_log_likelihood(&e, &tags, Some(&on)).unwrap().to_vec::<f64>().unwrap();
    let path = l.decode(&e, Some(&on)).unwrap().to_vec::<i64>().unwrap();
    l.eval();
    let one_hot = l.forward_all(&[e.clone(), on]).unwrap()[0].to_vec::<f64>().unwrap();
    for (b, n) in lengths.into_iter().enumerate() {
        let all = paths(&l, 3, &host[b * 12..], n);
        let own = &all.iter().find(|(p, _)| *p == tags_host[b * 4..b * 4 + n]).unwrap().1;
        let sum: f64 = all.iter().map(|(_, s)| s.exp()).sum();
        close(&[got[b]], &[sum.ln() - own], 1e-12, "negative log-likelihood");
        let mut want = best(&all);
        want.resize(4, -1);
        assert_eq!(path[b * 4..b * 4 + 4], want, "sequence {b}");
        for (t, tag) in want.into_iter().enumerate() {
            let row: Vec<f64> = (0..3).map(|k| if k == tag { 1.0 } else { 0.0 }).collect();
            assert_eq!(one_hot[b * 12 + t * 3..][..3], row);
        }
    }
    // A sequence without a batch axis, and of equal scores the lower tag.
    let (first, y) = (e.select(0, 0).unwrap(), tags.select(0, 0).unwrap());
    let alone = l.neg_log_likelihood(&first, &y, None).unwrap();
    close(&[alone.item().unwrap()], &got[..1], 1e-12, "alone");
    assert_eq!(l.decode(&first, None).unwrap().to_vec::<i64>().unwrap(), path[..4]);
    l.named_parameters().iter().for_each(|(_, p)| p.get().fill(0.0).unwrap());
    assert_eq!(l.decode(&first.zeros_like().unwrap(), None).unwrap().to_vec::<i64>().unwrap(), [0; 4]);
}

#[test]
fn gradients() {
    let d = cpu();
    let tags = Tensor::from_slice(&d, &[0i32, 2, 1, 1, 2, 0, 0, 0, 1, 1, 0, 0], &[3, 4]).unwrap();
    let on = mask(&d, &[4, 2, 3], 4);
    for reduction in [Reduction::None, Reduction::Mean, Reduction::Sum] {
        let l = field(&f64s(), 3).reduction(reduction);
        let what = format!("{reduction:?}");
        gradcheck_layer(&what, &l, &[tensor(&d, &[3, 4, 3], 7)], |t| {
            l.neg_log_likelihood(&t[0], &tags, None)
        });
        gradcheck_layer(&what, &l, &[tensor(&d, &[3, 4, 3], 7)], |t| {
            l.neg_log_likelihood(&t[0], &tags, Some(&on))
        });
    }
    let l = field(&f64s(), 3).emission_activation(Activation::Tanh);
    let e = tensor(&d, &[2, 4, 3], 3);
    let (got, want) = (l.forward(&e).unwrap(), e.tanh().unwrap());
    assert_eq!(got.to_vec::<f64>().unwrap(), want.to_vec::<f64>().unwrap(), "emissions pass in training");
    assert_eq!(state_names(&l), ["start_transitions", "end_transitions", "transitions"]);
}

#[test]
fn constraints_hold_in_decoding() {
    let d = cpu();
    let bio = ["O", "B-x", "I-x", "B-y", "I-y"];
    let bioes = ["O", "B-x", "I-x", "E-x", "S-x", "E-y"];
    let open = |tag: &str| tag.starts_with("B-") || tag.starts_with("I-");
    let goes_on = |scheme, a: Option<&str>, b: Option<&str>| {
        let (kind, into) = (a.filter(|a| open(a)).map(|a| &a[2..]), b.filter(|b| b.starts_with(['I', 'E'])));
        match (scheme, into) {
            (_, Some(b)) => kind == Some(&b[2..]),
            (TagScheme::Bio, None) => true,
            (_, None) => kind.is_none(),
        }
    };
    for (scheme, names) in [(TagScheme::Bio, &bio[..]), (TagScheme::Bioes, &bioes)] {
        let k = names.len();
        let l = field(&f64s(), k).constraints(scheme, names).unwrap();
        let mut forbidden = 0;
        for seed in 0..12 {
            let e = tensor(&d, &[4, k], 100 + seed).mul_scalar(3.0).unwrap();
            let all = paths(&l, k, &e.to_vec::<f64>().unwrap(), 4);
            let obeys = |path: &[i64]| {
                let tags = path.iter().map(|&y| Some(names[y as usize]));
                let ends: Vec<_> = [None].into_iter().chain(tags).chain([None]).collect();
                ends.windows(2).all(|w| goes_on(scheme, w[0], w[1]))
            };
            let allowed: Vec<_> = all.iter().filter(|(path, _)| obeys(path)).cloned().collect();
            let got = l.decode(&e, None).unwrap().to_vec::<i64>().unwrap();
            assert_eq!(got, best(&allowed), "{scheme:?}");
            forbidden += u32::from(best(&all) != got);
        }
        assert!(forbidden > 3, "{scheme:?}: paths that break the rules would win");
    }
    let l = || ConditionalRandomField::new(&f64s(), 3).unwrap();
    refused(l().constraints(TagScheme::Bio, &["O", "B-x"]), &["constraints", "3 names", "2"]);
    refused(l().constraints(TagScheme::Bio, &["O", "B-x", "E-x"]), &["constraints", "B- or I-", "E-x"]);
    refused(l().constraints(TagScheme::Bioes, &["O", "B-x", "x"]), &["constraints", "`x`"]);
    let make = |constraints: Value| {
        layer(
            &f64s(),
            &json!({"type": "conditional_random_field", "num_tags": 3, "constraints": constraints}),
        )
    };
    assert!(make(json!({"scheme": "bioes", "labels": ["O", "S-x", "S-y"]})).is_ok());
    refused(make(json!({"scheme": "bio", "labels": ["O", "B-x"]})), &["`constraints`", "3 names"]);
    refused(make(json!({"scheme": "bil", "labels": []})), &["constraints.scheme", "bil"]);
}

#[test]
fn refusals() {
    let (l, d) = (field(&f64s(), 3), cpu());
    let e = tensor(&d, &[2, 4, 3], 7);
    let tags = Tensor::zeros(&d, DType::I64, &[2, 4]).unwrap();
    let loss = |e: &Tensor, tags: &Tensor, mask: Option<&Tensor>| l.neg_log_likelihood(e, tags, mask);
    refused(ConditionalRandomField::new(&f64s(), 0), &["num_tags", "0"]);
    refused(loss(&tensor(&d, &[2, 4, 2], 7), &tags, None), &["ConditionalRandomField", "emissions", "3"]);
    refused(loss(&e.narrow(1, 0, 0).unwrap(), &tags, None), &["emissions", "at least one step"]);
    refused(loss(&e, &tags.narrow(1, 0, 3).unwrap(), None), &["tags", "[2, 4]", "[2, 3]"]);
    refused(loss(&e, &tags.to_dtype(DType::F64).unwrap(), None), &["tags", "i32 or i64", "f64"]);
    refused(loss(&e, &tags, Some(&tags)), &["mask", "u8", "i64"]);
    let none = (e.narrow(0, 0, 0).unwrap(), tags.narrow(0, 0, 0).unwrap());
    refused(loss(&none.0, &none.1, None), &["emissions", "at least one sequence"]);
    assert_eq!(l.decode(&none.0, None).unwrap().shape(), [0, 4]);
    refused(l.forward_all(&vec![e; 4]), &["inputs", "4 tensors"]);
}

#[test]
fn what_the_device_finds_is_named() {
    for d in devices() {
        let l = field(&InitContext::new(&d, 1), 3);
        let e = Tensor::ones(&d, DType::F32, &[2, 4, 3]).unwrap().with_grad();
        let tags = Tensor::from_slice(&d, &[0i64, 1, 2, 0, 1, 3, 0, 0], &[2, 4]).unwrap();
        let loss = l.neg_log_likelihood(&e, &tags, None).unwrap();
        match loss.to_vec::<f32>() {
            Err(NnError::OutOfRange { place, index: 3, limit: 3, .. }) => {
                assert_eq!(place, "row 1, position 1")
            }
            other => panic!("on {}: {other:?}", id(&d)),
        }
        let off = |mask: [u8; 8]| Tensor::from_slice(&d, &mask, &[2, 4]).unwrap();
        for (bad, row) in
            [([1, 1, 0, 0, 1, 0, 1, 0], 1), ([0, 0, 0, 0, 1, 1, 1, 1], 0), ([0, 1, 0, 0, 1, 1, 1, 1], 0)]
        {
            match l.decode(&e, Some(&off(bad))).unwrap().to_vec::<i64>() {
                Err(NnError::OutOfRange { op, place, .. }) => {
                    assert!(op.contains("mask") && place == format!("row {row}"), "{op}: {place}")
                }
                other => panic!("on {}: {other:?}", id(&d)),
            }
        }
        // After that everything works, and stays on the device.
        let good = Tensor::zeros(&d, DType::I64, &[2, 4]).unwrap();
        let on = mask(&d, &[4, 2], 4);
        let run = || {
            l.neg_log_likelihood(&e, &good, Some(&on)).unwrap().sum().unwrap().backward().unwrap();
            l.decode(&e, Some(&on)).unwrap()
        };
        run();
        resident("a field", &d, run);
    }
}
