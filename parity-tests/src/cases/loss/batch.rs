//! Losses of a whole batch.

use std::rc::Rc;

use trefoil::View;
use trefoil::ops::loss::{BatchLoss, BatchLossBwd, BatchLossFwd};

use crate::cases::{Kernel, pair};
use crate::device::{Cx, R, Tensor};
use crate::sampler::Dom::{Any, Count, Positive, Range};
use crate::sampler::Sample;

fn operands<'c>(cx: &'c Cx<'_>, names: &[&str]) -> [Option<View<'c>>; 3] {
    let mut x = [None; 3];
    for (v, name) in x.iter_mut().zip(names) {
        *v = cx.opt(name);
    }
    x
}

fn run(cx: &Cx<'_>, kind: BatchLoss, names: &[&str], ids: &str) -> R {
    if cx.is_gradient() {
        return gradient(cx, kind, names, ids);
    }
    let loss = cx.out("loss", cx.dtype.accumulator(), &[])?;
    let io = BatchLossFwd::new(operands(cx, names), loss.m()).ids(cx.opt(ids));
    Ok(cx.gpu.batch_loss(kind, io)?)
}

fn gradient(cx: &Cx<'_>, kind: BatchLoss, names: &[&str], ids: &str) -> R {
    let x = operands(cx, names);
    let mut out: [Option<Rc<Tensor>>; 3] = Default::default();
    for (i, name) in names.iter().enumerate() {
        let name = format!("d{name}");
        if let Some(v) = x[i].filter(|_| cx.has_output(&name) && cx.wants(&name)) {
            out[i] = Some(cx.like(&name, &v)?);
        }
    }
    let dx = [0, 1, 2].map(|i: usize| out[i].as_ref().map(|t| t.g()));
    Ok(cx.gpu.batch_loss_bwd(kind, BatchLossBwd::new(cx.x("gy")?, x).ids(cx.opt(ids)).dx(dx))?)
}

/// Rows and their length.
fn size(s: &mut Sample) -> [usize; 2] {
    if s.small {
        return [3 + s.below(3), 2 + s.below(3)];
    }
    [[4, 17, 65][s.below(3)], [3, 16, 33][s.below(3)]]
}

pub(super) const ROWS: &[&[Kernel]] = &[
    &pair!("nt_xent_loss", "L62", "z1, z2", "tau=0.1", "[dz1], [dz2]", ["batch_loss"], |cx| {
        run(cx, BatchLoss::NtXent { tau: cx.f("tau")? }, &["z1", "z2"], "")
    })
    .sample(|s| {
        let n = size(s);
        s.put("z1", &n, Any);
        s.put("z2", &n, Any);
        s.arg("tau", 0.5);
    }),
    &pair!(
        "info_nce_loss",
        "L63",
        "q, k, [negatives]",
        "tau=0.07",
        "[dq], [dk], [dnegatives]",
        ["batch_loss"],
        |cx| { run(cx, BatchLoss::InfoNce { tau: cx.f("tau")? }, &["q", "k", "negatives"], "") }
    )
    .sample(|s| {
        let n = size(s);
        s.put("q", &n, Range(-0.5, 0.5));
        s.put("k", &n, Range(-0.5, 0.5));
        if s.coin() {
            let extra = 1 + s.below(if s.small { 3 } else { 300 });
            s.put("negatives", &[extra, n[1]], Range(-0.5, 0.5));
        }
        s.arg("tau", 0.5);
    }),
    &pair!("barlow_twins_loss", "L64", "z1, z2", "lambda=0.0051", "[dz1], [dz2]", ["batch_loss"], |cx| {
        run(cx, BatchLoss::Barlow { lambda: cx.f("lambda")? }, &["z1", "z2"], "")
    })
    .sample(|s| {
        let n = size(s);
        s.put("z1", &n, Any);
        s.put("z2", &n, Any);
    }),
    &pair!("supervised_contrastive_loss", "L72", "z, labels:idx", "tau=0.1", "dz", ["batch_loss"], |cx| {
        run(cx, BatchLoss::SupCon { tau: cx.f("tau")? }, &["z"], "labels")
    })
    .sample(|s| {
        let n = size(s);
        s.put("z", &n, Any);
        s.ids("labels", &n[..1], 2);
        s.arg("tau", 0.5);
    }),
    &pair!("pairwise_ranking_loss", "L50", "s, rel", "-", "ds", ["batch_loss"], |cx| {
        run(cx, BatchLoss::PairwiseRanking, &["s", "rel"], "")
    })
    .sample(|s| {
        let n = if s.small { 5 } else { [1, 33, 300][s.below(3)] };
        s.put("s", &[n], Any);
        s.put("rel", &[n], Count);
    }),
    &pair!("moe_load_balance_loss", "L75", "probs, ids:idx", "-", "dprobs", ["batch_loss"], |cx| {
        run(cx, BatchLoss::MoeBalance, &["probs"], "ids")
    })
    .sample(|s| {
        let n = size(s);
        s.put("probs", &n, Positive);
        s.ids("ids", &[n[0], 2], n[1]);
    }),
    &pair!("lovasz_softmax_loss", "L71", "p, target:idx", "-", "dp", ["batch_loss"], |cx| {
        run(cx, BatchLoss::Lovasz, &["p"], "target")
    })
    .sample(|s| {
        let n = size(s);
        s.put("p", &n, Range(0.05, 0.95));
        s.ids("target", &n[..1], n[1]);
    }),
];
