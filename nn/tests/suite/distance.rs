//! Distances and similarities of vectors against broadcast formulas and finite differences, on every device.

use trefoil::ops::distance::Similarity;
use trefoil_nn::Tensor;

use crate::common::everywhere::{everywhere, values};
use crate::common::{close, cpu, tensor};

fn same(x: f64) -> f64 {
    x
}

fn agree(what: &str, got: &Tensor, want: &Tensor) {
    assert_eq!(got.shape(), want.shape(), "{what}");
    close(&values(got), &values(want), 1e-12, what);
}

#[test]
fn distances_of_all_pairs() {
    let (a, b) = (tensor(&cpu(), &[2, 3, 4], 1), tensor(&cpu(), &[5, 4], 2));
    for p in [1.0, 2.0, 3.5, f64::INFINITY] {
        let differences =
            a.unsqueeze(2).unwrap().sub(&b.unsqueeze(0).unwrap().unsqueeze(0).unwrap()).unwrap();
        agree("cdist", &a.cdist(&b, p).unwrap(), &differences.norm_axes(p, &[-1], false).unwrap());
        everywhere(&format!("cdist of degree {p}"), &[&[2, 3, 4], &[2, 5, 4]], &[], same, |t, _| {
            t[0].cdist(&t[1], p)
        });
        everywhere(&format!("pdist of degree {p}"), &[&[5, 3]], &[], same, |t, _| t[0].pdist(p));
    }
    // Leading axes broadcast, and gradients are summed back.
    everywhere("cdist of one set with several", &[&[2, 3, 4], &[5, 4]], &[], same, |t, _| {
        t[0].cdist(&t[1], 2.0)
    });
    let all = b.cdist(&b, 2.0).unwrap().to_vec::<f64>().unwrap();
    let upper: Vec<f64> =
        (0..5).flat_map(|i| (i + 1..5).map(move |j| (i, j))).map(|(i, j)| all[5 * i + j]).collect();
    close(&b.pdist(2.0).unwrap().to_vec::<f64>().unwrap(), &upper, 1e-12, "pdist");
    assert_eq!(b.narrow(0, 0, 1).unwrap().pdist(2.0).unwrap().shape(), [0]);
    let refused = |e: trefoil_nn::Result<Tensor>, part: &str| {
        let e = e.unwrap_err().to_string();
        assert!(e.contains(part), "{e}");
    };
    refused(a.cdist(&b, -1.0), "at least 0");
    refused(a.cdist(&b.narrow(1, 0, 3).unwrap(), 2.0), "`b`");
    refused(a.cdist(&b.select(0, 0).unwrap(), 2.0), "two axes");
    refused(a.pdist(2.0), "[n, M]");
}

#[test]
fn similarities_of_vectors() {
    let (a, b) = (tensor(&cpu(), &[2, 3, 4], 1), tensor(&cpu(), &[3, 4], 2));
    let dot = a.mul(&b).unwrap().sum_axes(&[1], false).unwrap();
    let norm = |t: &Tensor| t.norm_axes(2.0, &[-2], false).unwrap();
    let want = dot.div(&norm(&a).mul(&norm(&b)).unwrap()).unwrap();
    agree("cosine", &a.cosine_similarity(&b, 1, 1e-8).unwrap(), &want);
    let shifted = a.sub(&b).unwrap().add_scalar(1e-6).unwrap();
    agree(
        "distance",
        &a.pairwise_distance(&b, 3.0, 1e-6).unwrap(),
        &shifted.norm_axes(3.0, &[-1], false).unwrap(),
    );
    for keep in [false, true] {
        for op in [Similarity::Cosine { eps: 1e-8 }, Similarity::Distance { p: 2.0, eps: 1e-6 }] {
            everywhere(&format!("{op:?}"), &[&[2, 3, 4], &[3, 4]], &[], same, |t, _| {
                t[0].similarity(op, &t[1], -2, keep)
            });
        }
    }
    let kept = a.similarity(Similarity::Cosine { eps: 0.0 }, &b, -2, true).unwrap();
    assert_eq!(kept.shape(), [2, 1, 4]);
    assert!(a.cosine_similarity(&b, 3, 1e-8).is_err() && a.cosine_similarity(&b, 1, -1.0).is_err());
}
