//! Linear recurrences, linear attention and state-space models on tensors: formulas, gradients, and states that are carried on, on every device.

use trefoil_nn::{HostTensor, SelectiveScanOptions, Tensor};

use crate::common::everywhere::{everywhere, values};
use crate::common::{close, cpu, gradcheck, tensor};

/// Factors between 0 and 1.
fn share(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn same(x: f64) -> f64 {
    x
}

#[test]
fn recurrences_follow_their_definition() {
    let (a, b) = (tensor(&cpu(), &[2, 5, 3], 1), tensor(&cpu(), &[2, 5, 3], 2));
    for reverse in [false, true] {
        let mut h = Tensor::zeros(&cpu(), a.dtype(), &[2, 1, 3]).unwrap();
        let mut all = vec![];
        for t in 0..5 {
            let t = if reverse { 4 - t } else { t };
            let at = |x: &Tensor| x.narrow(1, t, 1).unwrap();
            h = at(&a).mul(&h).unwrap().add(&at(&b)).unwrap();
            all.push(h.clone());
        }
        if reverse {
            all.reverse();
        }
        let want = Tensor::concat(1, &all.iter().collect::<Vec<_>>()).unwrap();
        close(&values(&a.associative_scan(&b, reverse).unwrap()), &values(&want), 1e-12, "recurrence");
    }
    everywhere("associative_scan", &[&[2, 9, 3], &[2, 9, 3]], &[], share, |t, _| {
        t[0].associative_scan(&t[1], true)
    });
}

/// Devices are compared by the parity tests; one of the rules takes the whole way here.
#[test]
fn gradients_of_scans() {
    let s: &[usize] = &[1, 9, 2, 3];
    gradcheck("gla_scan", &[s, s, &[1, 9, 2, 5], &[1, 9, 2]], share, |t| {
        Ok(t[0].gla_scan(&t[1], &t[2], &t[3], None)?.0)
    });
    gradcheck("gated_delta_scan", &[s, s, s, &[1, 9, 2], &[1, 9, 2]], share, |t| {
        Ok(t[0].gated_delta_scan(&t[1], &t[2], &t[3], &t[4], None)?.0)
    });
    let (x, n): (&[usize], &[usize]) = (&[2, 9, 3], &[2, 9, 4]);
    everywhere("selective_scan", &[x, x, &[3, 4], n, n, &[3], x], &[], same, |t, _| {
        let options =
            SelectiveScanOptions { d: Some(&t[5]), z: Some(&t[6]), softplus: true, ..Default::default() };
        Ok(t[0].selective_scan(&t[1], &t[2].square()?.neg()?, &t[3], &t[4], &options)?.0)
    });
    let n: &[usize] = &[1, 9, 1, 4];
    gradcheck("ssd_scan", &[s, &[1, 9, 2], &[2], n, n, &[2]], share, |t| {
        Ok(t[0].ssd_scan(&t[1], &t[2].neg()?, &t[3], &t[4], Some(&t[5]), None)?.0)
    });
}

/// Steps in two calls, the second from the first one's state, are the steps in one call.
#[test]
fn states_are_carried_on() {
    let d = cpu();
    let parts = |x: &Tensor| [x.narrow(1, 0, 4).unwrap(), x.narrow(1, 4, 5).unwrap()];
    let both = |y: &Tensor, z: &Tensor| values(&Tensor::concat(1, &[y, z]).unwrap());
    let [q, k, v] = [1, 2, 3].map(|i| tensor(&d, &[2, 9, 2, 3], i));
    let [a, b] = [4, 5].map(|i| tensor(&d, &[2, 9, 2], i).sigmoid().unwrap());
    let ([q0, q1], [k0, k1], [v0, v1]) = (parts(&q), parts(&k), parts(&v));
    let ([a0, a1], [b0, b1]) = (parts(&a), parts(&b));

    let (whole, last) = q.gla_scan(&k, &v, &a, None).unwrap();
    let (y, s) = q0.gla_scan(&k0, &v0, &a0, None).unwrap();
    let (z, s) = q1.gla_scan(&k1, &v1, &a1, Some(&s)).unwrap();
    close(&both(&y, &z), &values(&whole), 1e-12, "gla_scan");
    close(&values(&s), &values(&last), 1e-12, "state of gla_scan");

    let (whole, _) = q.gated_delta_scan(&k, &v, &a, &b, None).unwrap();
    let (y, s) = q0.gated_delta_scan(&k0, &v0, &a0, &b0, None).unwrap();
    let (z, _) = q1.gated_delta_scan(&k1, &v1, &a1, &b1, Some(&s)).unwrap();
    close(&both(&y, &z), &values(&whole), 1e-12, "gated_delta_scan");
    let e = q.gla_scan(&k, &v, &tensor(&d, &[2, 9], 6), None).unwrap_err().to_string();
    assert!(e.contains("`g`"), "{e}");
    let e = q0.gla_scan(&k0, &v0, &a0, Some(&q0)).unwrap_err().to_string();
    assert!(e.contains("`initial`"), "{e}");
}

/// Tokens of a cache in blocks see what they see without one.
#[test]
fn a_paged_cache_is_attention_over_the_same_keys() {
    use trefoil_nn::PagedCache;
    let d = cpu();
    let [k, v] = [1, 2].map(|i| tensor(&d, &[1, 2, 7, 4], i));
    let q = tensor(&d, &[1, 4, 1, 4], 3);
    let want = q.flash_decode(&k, &v, None, None).unwrap();
    let scores = |h: usize| {
        let q = q.narrow(1, h, 1).unwrap();
        let (k, v) = (k.narrow(1, h / 2, 1).unwrap(), v.narrow(1, h / 2, 1).unwrap());
        q.matmul(&k.transpose(2, 3).unwrap())
            .unwrap()
            .mul_scalar(0.5)
            .unwrap()
            .softmax(-1)
            .unwrap()
            .matmul(&v)
            .unwrap()
    };
    let formula: Vec<f64> = (0..4).flat_map(|h| values(&scores(h))).collect();
    close(&values(&want), &formula, 1e-12, "flash_decode");

    let zeros = || Tensor::zeros(&d, k.dtype(), &[4, 2, 2, 4]).unwrap();
    let (keys, blocks) = ([zeros(), zeros()], [3i32, 0, 2, 1]);
    let int = |x: &[i32], shape: &[usize]| HostTensor::from_slice(x, shape).unwrap().to_device(&d).unwrap();
    let (table, lens) = (int(&blocks, &[1, 4]), int(&[7], &[1]));
    let cache = PagedCache { keys: &keys[0], values: &keys[1], block_table: &table, seq_lens: &lens };
    let slots: Vec<i32> = (0..7).map(|t| blocks[t / 2] * 2 + (t % 2) as i32).collect();
    let rows = |x: &Tensor| x.transpose(1, 2).unwrap().reshape(&[7, 2, 4]).unwrap();
    cache.append(&rows(&k), &rows(&v), &int(&slots, &[7])).unwrap();
    let got = q.reshape(&[1, 4, 4]).unwrap().paged_attention(&cache, None, None).unwrap();
    close(&values(&got), &values(&want), 1e-12, "paged_attention");
}
