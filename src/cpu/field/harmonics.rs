//! Real solid harmonics with their slopes, by recursion over degree and order.

use std::f64::consts::PI;

use super::dual::Dual;
use crate::cpu::scratch::*;
use crate::error::Result;

/// sqrt((2 l + 1) / (4 pi) (l - m)! / (l + m)!), for m > 0 times sqrt 2 and (-1)^m.
fn factor(l: usize, m: usize) -> f64 {
    let ratio: f64 = (l - m + 1..=l + m).map(|k| k as f64).product();
    let n = ((2 * l + 1) as f64 / (4.0 * PI * ratio)).sqrt();
    match m {
        0 => n,
        m if m % 2 == 1 => -n * 2f64.sqrt(),
        _ => n * 2f64.sqrt(),
    }
}

/// The first `count` solid harmonics at (x, y, z), a square number of them: the parts of (x + i y)^m times Legendre's functions of z.
pub(super) fn basis(r: &[f64], count: usize) -> Result<Vec<Dual<3>>> {
    let [x, y, z] = [0, 1, 2].map(|a| Dual::variable(r[a], a));
    let square = x * x + y * y + z * z;
    let mut all = repeated(count, Dual::constant(0.0))?;
    let (mut re, mut im, mut first) = (Dual::constant(1.0), Dual::constant(0.0), 1.0);
    for m in (0..).take_while(|m| m * m < count) {
        let (mut before, mut legendre) = (Dual::constant(0.0), Dual::constant(first));
        for l in (m..).take_while(|l| l * l < count) {
            if l > m {
                let (a, b, c) = ((2 * l - 1) as f64, (l + m - 1) as f64, (l - m) as f64);
                let next = (z * legendre * a - square * before * b) * (1.0 / c);
                (before, legendre) = (legendre, next);
            }
            all[l * l + l + m] = re * legendre * factor(l, m);
            if m > 0 {
                all[l * l + l - m] = im * legendre * factor(l, m);
            }
        }
        (re, im) = (x * re - y * im, x * im + y * re);
        first *= (2 * m + 1) as f64;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The integral of Y_j Y_k over the sphere, by Gauss-Legendre nodes in z and equal steps around it.
    fn overlap(j: usize, k: usize) -> f64 {
        let nodes = [(0.0, 0.5688888888888889), (0.5384693101056831, 0.47862867049936647)];
        let outer = (0.906179845938664, 0.23692688505618908);
        let all = [nodes[0], nodes[1], (-nodes[1].0, nodes[1].1), outer, (-outer.0, outer.1)];
        let steps = 12;
        let mut sum = 0.0;
        for (z, weight) in all {
            let ring = f64::sqrt(1.0 - z * z);
            for s in 0..steps {
                let (sin, cos) = (2.0 * PI * s as f64 / steps as f64).sin_cos();
                let b = basis(&[ring * cos, ring * sin, z], 25).unwrap();
                sum += weight * 2.0 * PI / steps as f64 * b[j].value * b[k].value;
            }
        }
        sum
    }

    #[test]
    fn harmonics_are_orthonormal() {
        for j in 0..25 {
            for k in 0..=j {
                let want = if j == k { 1.0 } else { 0.0 };
                assert!((overlap(j, k) - want).abs() < 1e-12, "{j} {k}: {}", overlap(j, k));
            }
        }
    }

    #[test]
    fn closed_forms_of_some() {
        let (x, y, z) = (0.3, -0.5, 0.8);
        let b = basis(&[x, y, z], 25).unwrap();
        let near = |k: usize, want: f64| assert!((b[k].value - want).abs() < 1e-14, "{k}: {}", b[k].value);
        near(0, 0.28209479177387814);
        near(1, -0.4886025119029199 * y);
        near(3, -0.4886025119029199 * x);
        near(5, -1.0925484305920792 * y * z);
        near(8, 0.5462742152960396 * (x * x - y * y));
        near(15, -0.5900435899266435 * x * (x * x - 3.0 * y * y));
        near(16, 2.5033429417967046 * x * y * (x * x - y * y));
    }
}
