//! Row losses with kernels of their own.

use trefoil::ops::loss::RowLoss;

use super::basic::draw_reduction;
use super::rows::{matrix, rows};
use crate::cases::{Kernel, pair};
use crate::sampler::Dom::{Any, Range};

pub(super) const ROWS: &[&[Kernel]] = &[
    &pair!(
        "circle_loss",
        "L72",
        "x, [y], [target:idx]",
        "s=256.0, m=0.25, detach=true, reduction=\"mean\"",
        "dx",
        ["row_loss"],
        |cx| {
            let kind = RowLoss::Circle { scale: cx.f("s")?, margin: cx.f("m")?, detach: cx.b("detach")? };
            rows(cx, kind, &["x", "y"], "target")
        }
    )
    .sample(|s| {
        let n = matrix(s, &[("x", Range(-0.9, 0.9))]);
        if s.coin() {
            s.ids("target", &[n[0]], n[1]);
        } else {
            // Some columns are neither; some rows lack one side.
            let values: Vec<f64> = (0..n[0] * n[1]).map(|_| [0.0, 1.0, 2.0][s.below(3)]).collect();
            s.values("y", &n, &values);
        }
        s.arg("s", 8.0);
        // Finite differences see the weights move.
        let detach = !s.small && s.coin();
        s.arg("detach", detach);
        draw_reduction(s);
    }),
    &pair!(
        "kto_loss",
        "L74",
        "w, w_ref, y, [kl]",
        "beta=0.1, desirable=1.0, undesirable=1.0, reduction=\"mean\"",
        "dw",
        ["row_loss"],
        |cx| {
            let (desirable, undesirable) = (cx.f("desirable")?, cx.f("undesirable")?);
            let kind = RowLoss::Kto { beta: cx.f("beta")?, desirable, undesirable };
            rows(cx, kind, &["w", "w_ref", "y", "kl"], "")
        }
    )
    .sample(|s| {
        let shape = s.solid();
        s.put("w", &shape, Range(-4.0, -0.2));
        s.put("w_ref", &shape, Any);
        let n = shape.iter().product();
        let values: Vec<f64> = (0..n).map(|_| s.below(2) as f64).collect();
        s.values("y", &shape, &values);
        if s.coin() {
            s.put("kl", &[1], Range(-0.5, 1.0));
        }
        s.arg("beta", 0.5);
        s.arg("undesirable", 1.5);
        draw_reduction(s);
    }),
];
