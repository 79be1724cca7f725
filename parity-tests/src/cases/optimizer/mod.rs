//! Optimizer steps and clipping.

mod adaptive;
mod calls;
mod clock;
mod packed;
mod sample;
mod sparse;

use trefoil::DType;

use super::Bound::{Derived, Exact};
use super::{F32, Kernel, ULP, k};
use crate::sampler::Dom::{Any, Positive, Range, Zero};

use crate::oracle;
use calls::*;
use sample::*;

const OPT: super::Bound = Derived;
const STEP: &[&str] = &["optimizer_step"];

pub(super) const TABLES: &[&[&[Kernel]]] = &[ROWS, adaptive::ROWS, sparse::ROWS, packed::ROWS];

const ROWS: &[&[Kernel]] = &[
    &[
        k(
            "sgd_step",
            "S8.1",
            "w, g, [inv_scale:f32], [found_inf:f32]",
            "lr, wd=0.0, steps=1, step=1, maximize=false, copy=null",
            "w, [w_copy]",
            STEP,
            sgd,
        )
        .bound(OPT)
        .sample(|s| draw_decayed(s, &[])),
        k(
            "sgd_momentum_update",
            "S8.2",
            "w, g, [v:f32], [inv_scale:f32], [found_inf:f32]",
            "lr, mu=0.9, damp=0.0, wd=0.0, nesterov=false, steps=1, step=1, maximize=false, copy=null",
            "w, [v:f32], [w_copy]",
            STEP,
            momentum,
        )
        .bound(OPT)
        .sample(|s| draw_decayed(s, &["v"])),
        k(
            "nag_step",
            "S8.7",
            "w, g, [v:f32], [inv_scale:f32], [found_inf:f32]",
            "lr, mu=0.9, wd=0.0, steps=1, step=1, maximize=false, copy=null",
            "w, [v:f32], [w_copy]",
            STEP,
            nag,
        )
        .bound(OPT)
        .sample(|s| draw_decayed(s, &["v"])),
        k(
            "adam_step",
            "S8.3",
            "w, g, [m:f32], [v:f32], [inv_scale:f32], [found_inf:f32]",
            "lr=0.001, b1=0.9, b2=0.999, eps=1e-08, wd=0.0, steps=1, step=1, maximize=false, copy=null",
            "w, [m:f32], [v:f32], [w_copy]",
            STEP,
            adam,
        )
        .bound(OPT)
        .sample(|s| draw_decayed(s, &["m", "v"])),
        k(
            "adamw_step",
            "S8.4",
            "w, g, [m:f32], [v:f32], [inv_scale:f32], [found_inf:f32]",
            "lr=0.001, b1=0.9, b2=0.999, eps=1e-08, wd=0.01, steps=1, step=1, maximize=false, copy=null",
            "w, [m:f32], [v:f32], [w_copy]",
            STEP,
            adamw,
        )
        .bound(OPT)
        .sample(|s| draw_decayed(s, &["m", "v"])),
    ],
    &[
        k(
            "rmsprop_step",
            "S8.5",
            "w, g, [s:f32], [ga:f32], [b:f32], [inv_scale:f32], [found_inf:f32]",
            "lr=0.01, a=0.99, eps=1e-08, wd=0.0, mu=0.0, centered=false, steps=1, step=1, maximize=false, copy=null",
            "w, [s:f32], [ga:f32], [b:f32], [w_copy]",
            STEP,
            rmsprop,
        )
        .bound(OPT)
        .sample(|s| {
            let (mu, centered) = (s.coin(), s.coin());
            let all: &[&str] = match (centered, mu) {
                (false, false) => &["s"],
                (false, true) => &["s", "b"],
                (true, false) => &["s", "ga"],
                (true, true) => &["s", "ga", "b"],
            };
            draw_decayed(s, all);
            if centered {
                // The mean of squares stays above the square of the mean.
                let shape = s.drop("s");
                s.typed("s", DType::F32, &shape, crate::sampler::Dom::Range(16.0, 20.0));
            }
            s.arg("mu", if mu { 0.9 } else { 0.0 });
            s.arg("centered", centered);
        }),
        k(
            "adagrad_step",
            "S8.6",
            "w, g, [s:f32], [inv_scale:f32], [found_inf:f32]",
            "lr=0.01, lr_decay=0.0, eps=1e-10, wd=0.0, steps=1, step=1, maximize=false, copy=null",
            "w, [s:f32], [w_copy]",
            STEP,
            adagrad,
        )
        .bound(OPT)
        .sample(|s| {
            draw_decayed(s, &["s"]);
            s.arg("lr_decay", 0.125);
        }),
        k(
            "lars_step",
            "S8.8",
            "w, g, [v:f32], [inv_scale:f32], [found_inf:f32]",
            "lr=0.1, mu=0.9, wd=0.0001, eta=0.001, eps=1e-08, steps=1, step=1, maximize=false",
            "w, v:f32",
            STEP,
            lars,
        )
        .bound(OPT)
        .sample(|s| draw_layerwise(s, &["v"])),
        k(
            "lamb_step",
            "S8.9",
            "w, g, [m:f32], [v:f32], [inv_scale:f32], [found_inf:f32]",
            "lr=0.001, b1=0.9, b2=0.999, eps=1e-06, wd=0.01, steps=1, step=1, maximize=false",
            "w, m:f32, v:f32",
            STEP,
            lamb,
        )
        .bound(OPT)
        .sample(|s| draw_layerwise(s, &["m", "v"])),
    ],
    &[
        k(
            "adadelta_update",
            "O10",
            "w, g, [s:f32], [x:f32], [inv_scale:f32], [found_inf:f32]",
            "lr=1.0, rho=0.9, eps=1e-06, wd=0.0, steps=1, step=1, maximize=false, copy=null",
            "w, [s:f32], [x:f32], [w_copy]",
            STEP,
            adadelta,
        )
        .bound(OPT)
        .sample(|s| draw_decayed(s, &["s", "x"])),
        k(
            "adamax_update",
            "O11",
            "w, g, [m:f32], [u:f32], [inv_scale:f32], [found_inf:f32]",
            "lr=0.002, b1=0.9, b2=0.999, eps=1e-08, wd=0.0, steps=1, step=1, maximize=false, copy=null",
            "w, [m:f32], [u:f32], [w_copy]",
            STEP,
            adamax,
        )
        .bound(OPT)
        .sample(|s| draw_decayed(s, &["m", "u"])),
        k(
            "amsgrad_update",
            "O12",
            "w, g, [m:f32], [v:f32], [x:f32], [inv_scale:f32], [found_inf:f32]",
            "lr=0.001, b1=0.9, b2=0.999, eps=1e-08, wd=0.0, decoupled=false, steps=1, step=1, maximize=false, copy=null",
            "w, [m:f32], [v:f32], [x:f32], [w_copy]",
            STEP,
            amsgrad,
        )
        .bound(OPT)
        .sample(|s| {
            draw_decayed(s, &["m", "v", "x"]);
            let d = s.coin();
            s.arg("decoupled", d);
        }),
        k(
            "nadam_update",
            "O13",
            "w, g, [m:f32], [v:f32], [inv_scale:f32], [found_inf:f32]",
            "lr=0.002, b1=0.9, b2=0.999, eps=1e-08, wd=0.0, psi=0.004, decoupled=false, steps=1, step=1, maximize=false, copy=null",
            "w, [m:f32], [v:f32], [w_copy]",
            STEP,
            nadam,
        )
        .bound(OPT)
        .sample(|s| {
            draw_decayed(s, &["m", "v"]);
            let d = s.coin();
            s.arg("decoupled", d);
            if s.coin() {
                s.arg("psi", serde_json::Value::Null);
            }
        }),
        k(
            "radam_update",
            "O28",
            "w, g, [m:f32], [v:f32], [inv_scale:f32], [found_inf:f32]",
            "lr=0.001, b1=0.9, b2=0.999, eps=1e-08, wd=0.0, decoupled=false, steps=1, step=1, maximize=false, copy=null",
            "w, [m:f32], [v:f32], [w_copy]",
            STEP,
            radam,
        )
        .bound(OPT)
        .sample(|s| {
            draw_decayed(s, &["m", "v"]);
            let d = s.coin();
            s.arg("decoupled", d);
            // Before and behind the step from which the variance is tractable, and where the series ends.
            let step = [3, 4, 5, 6, 40, 499, 500, 5000][s.below(8)];
            s.arg("step", step);
        }),
        k(
            "asgd_update",
            "O29",
            "w, g, [ax:f32], [inv_scale:f32], [found_inf:f32]",
            "lr=0.01, lambd=0.0001, alpha=0.75, t0=1000000.0, wd=0.0, steps=1, step=1, maximize=false, copy=null",
            "w, [ax:f32], [w_copy]",
            STEP,
            asgd,
        )
        .bound(OPT)
        .sample(|s| {
            draw_decayed(s, &["ax"]);
            s.arg("lambd", 0.5);
            let t0 = [0.0, 2.0, 100.0][s.below(3)];
            s.arg("t0", t0);
        }),
        k(
            "rprop_update",
            "O30",
            "w, g, [prev:f32], [size:f32], [inv_scale:f32], [found_inf:f32]",
            "lr=0.01, up=1.2, down=0.5, least=1e-06, most=50.0, steps=1, step=1, maximize=false, copy=null",
            "w, [prev:f32], [size:f32], [w_copy]",
            STEP,
            rprop,
        )
        .bound(OPT)
        .sample(|s| {
            let fresh = s.coin();
            draw(s, if fresh { &[] } else { &["prev", "size"] });
            if fresh {
                s.arg("step", 1);
            }
            s.arg("most", 2.5);
        }),
        k(
            "lion_update",
            "O14",
            "w, g, [m:f32], [inv_scale:f32], [found_inf:f32]",
            "lr=0.0001, b1=0.9, b2=0.99, wd=0.0, steps=1, step=1, maximize=false, copy=null",
            "w, [m:f32], [w_copy]",
            STEP,
            lion,
        )
        .bound(OPT)
        // The sign of a sum.
        .sample(|s| draw_decayed(s, &["m"])),
        k(
            "ftrl_update",
            "O15",
            "w, g, [z:f32], [n:f32], [inv_scale:f32], [found_inf:f32]",
            "lr=0.1, beta=1.0, l1=0.0, l2=0.0, from_w=false, steps=1, step=1, maximize=false, copy=null",
            "w, [z:f32], [n:f32], [w_copy]",
            STEP,
            ftrl,
        )
        .bound(OPT)
        // z + g - sigma w.
        .sample(|s| {
            let from_w = s.coin();
            draw(s, if from_w { &[] } else { &["z", "n"] });
            if from_w {
                s.arg("step", 1);
            }
            s.arg("from_w", from_w);
            s.arg("lr", 0.25);
            s.arg("l1", 0.5);
            s.arg("l2", 0.25);
        }),
        k(
            "proximal_gradient_update",
            "O18",
            "w, g, [inv_scale:f32], [found_inf:f32]",
            "lr, prox=\"elastic\", l1=0.0, l2=0.0, lo=0.0, hi=\"inf\", steps=1, step=1, maximize=false, copy=null",
            "w, [w_copy]",
            STEP,
            proximal,
        )
        .bound(OPT)
        .sample(|s| {
            draw(s, &[]);
            if s.coin() {
                s.arg("l1", 8.0);
                s.arg("l2", 0.5);
            } else {
                s.arg("prox", "box");
                s.arg("lo", -0.5);
            }
        }),
    ],
    &[
        k(
            "gradient_clip_norm",
            "S8.10",
            "g0, g1, ...",
            "max_norm, p=2.0",
            "total, g0, g1, ...",
            &["clip_grad_norm"],
            clip_norm,
        )
        .bound(Derived)
        .sample(|s| {
            draw_grads(s);
            s.arg("max_norm", 1.5);
            let p = [
                serde_json::json!(2.0),
                serde_json::json!(1.0),
                serde_json::json!("inf"),
                serde_json::json!(3.0),
            ][s.below(4)]
            .clone();
            s.arg("p", p);
        }),
        k(
            "grad_factor",
            "M3",
            "g0, g1, ..., [scale:f32], [good:i64], [found_inf:f32], [inv_scale:f32], [step:i64]",
            "max_norm, p=2.0, growth=2.0, backoff=0.5, interval=2000, least=1.0",
            "total:f32, factor:f32, [scale:f32], [good:i64], [found_inf:f32], [inv_scale:f32], [step:i64], [skip:f32], [count:i64]",
            &["grad_factor"],
            grad_factor,
        )
        .bound(ULP)
        .by(oracle::grad_factor)
        .sample(|s| {
            draw_grads(s);
            let most = [0.5, 1e6][s.below(2)];
            s.arg("max_norm", most);
            let p = s.below(3);
            s.arg("p", [serde_json::json!(2.0), serde_json::json!(1.0), serde_json::json!("inf")][p].clone());
            if s.coin() {
                let f32 = DType::F32;
                s.typed("scale", f32, &[], Range(1024.0, 1024.0));
                let good = [0, 6][s.below(2)];
                s.ints("good", DType::I64, &[], &[good]);
                let found = if s.below(4) > 0 { Zero } else { Range(1.0, 1.0) };
                s.typed("found_inf", f32, &[], found);
                s.typed("inv_scale", f32, &[], Range(1.0 / 1024.0, 1.0 / 1024.0));
                s.ints("step", DType::I64, &[], &[41]);
                s.arg("interval", 7);
            }
        }),
        k(
            "gradient_clip_value",
            "S8.11",
            "g0, g1, ...",
            "c",
            "g0, g1, ...",
            &["clip_grad_value"],
            clip_value,
        )
        .bound(Exact)
        .sample(|s| {
            draw_grads(s);
            s.arg("c", 0.5);
        }),
        k(
            "adaptive_clip",
            "C4",
            "w0, w1, ..., g0, g1, ...",
            "k=0.01, least=0.001",
            "g0, g1, ...",
            &["clip_grad_adaptive"],
            clip_adaptive,
        )
        .bound(Derived)
        .sample(|s| {
            draw_grads(s);
            for i in (0..4).filter(|i| s.has(&format!("g{i}"))).collect::<Vec<_>>() {
                let shape = s.shape_of(&format!("g{i}"));
                s.put(&format!("w{i}"), &shape, Any);
            }
            // Some units are clipped, some are not.
            s.arg("k", 1.0);
        }),
        k(
            "unscale_grads",
            "M3",
            "g0, g1, ..., [scale:f32]",
            "-",
            "found_inf:f32, g0, g1, ...",
            &["unscale_grads"],
            unscale,
        )
        .bound(ULP)
        .by(oracle::unscale)
        .sample(|s| {
            draw_grads(s);
            if s.coin() {
                s.typed("scale", DType::F32, &[], Positive);
            }
        }),
        k(
            "update_loss_scale",
            "M3",
            "scale:f32, good:i64, found_inf:f32, [step:i64]",
            "growth=2.0, backoff=0.5, interval=2000, least=1.0",
            "scale:f32, good:i64, found_inf:f32, inv_scale:f32, [step:i64]",
            &["update_loss_scale"],
            loss_scale,
        )
        .bound(ULP)
        .dtypes(F32)
        .by(oracle::loss_scale)
        .sample(|s| {
            let scale = [65536.0, 1.5, 2e38, 1.0][s.below(4)];
            s.typed("scale", DType::F32, &[], Range(scale, scale));
            let good = [0, 5, 6, 7][s.below(4)];
            s.ints("good", DType::I64, &[], &[good]);
            let found = if s.coin() { Zero } else { Range(1.0, 1.0) };
            s.typed("found_inf", DType::F32, &[], found);
            if s.coin() {
                s.ints("step", DType::I64, &[], &[41]);
            }
            s.arg("interval", 7);
        }),
    ],
];
