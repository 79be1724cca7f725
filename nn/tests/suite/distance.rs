//! Distances and similarities of vectors against broadcast formulas and finite differences, on every device.

use trefoil::DType;
use trefoil::ops::distance::{Metric, Similarity};
use trefoil_nn::{ProductQuantizer, Result, Tensor};

use crate::common::everywhere::{everywhere, values};
use crate::common::{close, cpu, devices, tensor};

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

/// Scores by the definitions.
fn scores(q: &Tensor, x: &Tensor, metric: Metric) -> Result<Tensor> {
    let unit = |t: &Tensor| t.div(&t.norm_axes(2.0, &[-1], true)?);
    match metric {
        Metric::SquaredEuclidean => q.cdist(x, 2.0)?.square(),
        Metric::InnerProduct => q.matmul(&x.t()?),
        _ => unit(q)?.matmul(&unit(x)?.t()?),
    }
}

#[test]
fn the_nearest_points_are_those_of_all_scores() {
    let (q, x) = (tensor(&cpu(), &[7, 5], 1), tensor(&cpu(), &[90, 5], 2));
    for metric in [Metric::SquaredEuclidean, Metric::InnerProduct, Metric::Cosine] {
        let all = scores(&q, &x, metric).unwrap();
        let what = format!("{metric:?}");
        agree(&what, &q.distance_matrix(&x, metric).unwrap(), &all);
        let (y, index) = q.nearest(&x, 12, metric).unwrap();
        let (want, at) = all.topk(12, 1, metric != Metric::SquaredEuclidean).unwrap();
        agree(&what, &y, &want);
        assert_eq!(index.to_vec::<i64>().unwrap(), at.to_vec::<i64>().unwrap(), "{what}");
        // The first product of a type checks the vendor's library, which waits.
        devices().iter().for_each(|d| drop(tensor(d, &[3, 4], 1).matmul(&tensor(d, &[4, 3], 2)).unwrap()));
        everywhere(&what, &[&[3, 4], &[6, 4]], &[], same, |t, _| t[0].distance_matrix(&t[1], metric));
        everywhere(&what, &[&[3, 4], &[6, 4]], &[], same, |t, _| Ok(t[0].nearest(&t[1], 2, metric)?.0));
    }
    let refused = |e: Result<(Tensor, Tensor)>, part: &str| {
        let e = e.unwrap_err().to_string();
        assert!(e.contains(part), "{e}");
    };
    refused(q.nearest(&x, 91, Metric::Cosine), "at most 90");
    refused(q.nearest(&x.narrow(1, 0, 4).unwrap(), 1, Metric::Cosine), "vectors of 5 elements");
    assert!(q.select(0, 0).unwrap().distance_matrix(&x, Metric::InnerProduct).is_err());
}

#[test]
fn centroids_move_to_the_means_of_their_points() {
    let d = cpu();
    let x = Tensor::from_slice(&d, &[0.0, 0.0, 1.0, 0.0, 10.0, 0.0, 12.0, 2.0], &[4, 2]).unwrap();
    let c = Tensor::from_slice(&d, &[0.0, 1.0, 9.0, 9.0, -50.0, 0.0], &[3, 2]).unwrap();
    let (nearest, means, count) = x.kmeans_step(&c).unwrap();
    assert_eq!(nearest.to_vec::<i64>().unwrap(), [0, 0, 1, 1]);
    assert_eq!(values(&means), [0.5, 0.0, 11.0, 1.0, -50.0, 0.0]);
    assert_eq!(values(&count), [2.0, 2.0, 0.0]);
}

#[test]
fn product_codes_find_what_their_centroids_say() {
    let (x, q) = (tensor(&cpu(), &[400, 6], 3), tensor(&cpu(), &[5, 6], 4));
    let start = ProductQuantizer::train(&x, 2, 0).unwrap();
    let trained = ProductQuantizer::train(&x, 2, 4).unwrap();
    let error = |p: &ProductQuantizer| {
        let back = p.decode(&p.encode(&x).unwrap()).unwrap();
        x.sub(&back).unwrap().square().unwrap().sum().unwrap().item::<f64>().unwrap()
    };
    assert!(error(&trained) < 0.9 * error(&start), "{} and {}", error(&trained), error(&start));
    let codes = trained.encode(&x).unwrap();
    assert_eq!((codes.dtype(), codes.shape()), (DType::U8, &[400, 2][..]));
    let seen = trained.decode(&codes).unwrap();
    for metric in [Metric::SquaredEuclidean, Metric::InnerProduct] {
        let (y, index) = trained.search(&q, &codes, 9, metric).unwrap();
        let (want, at) = q.nearest(&seen, 9, metric).unwrap();
        close(&values(&y), &values(&want), 1e-12, "scores of codes");
        assert_eq!(index.to_vec::<i64>().unwrap(), at.to_vec::<i64>().unwrap());
    }
    assert!(trained.tables(&q, Metric::Cosine).unwrap_err().to_string().contains("normalize"));
    assert!(trained.encode(&q.narrow(1, 0, 5).unwrap()).unwrap_err().to_string().contains("multiple"));
    assert!(ProductQuantizer::train(&q, 2, 1).unwrap_err().to_string().contains("256 points"));
    assert!(ProductQuantizer::new(&q).unwrap_err().to_string().contains("[m, 256, d]"));
    assert!(trained.decode(&codes.narrow(1, 0, 1).unwrap()).unwrap_err().to_string().contains("[N, 2]"));
}
