//! Losses: values against plain formulas, gradients against central differences, devices against the CPU.

use crate::common::{close, cpu, devices, gradcheck, noise, tensor};
use trefoil::DType;
use trefoil::ops::loss::CrossEntropy;
use trefoil_nn::losses::*;
use trefoil_nn::{CrossEntropyLoss, Device, MseLoss, Result, Tensor};

fn f(d: &Device, v: &[f64], shape: &[usize]) -> Tensor {
    Tensor::from_slice(d, v, shape).unwrap()
}

fn ids(d: &Device, v: &[i64], shape: &[usize]) -> Tensor {
    Tensor::from_slice(d, v, shape).unwrap()
}

fn same(x: f64) -> f64 {
    x
}

/// In (0.05, 0.95).
fn share(x: f64) -> f64 {
    0.5 + 0.45 * x
}

/// -1 or 1.
fn signs(d: &Device, shape: &[usize]) -> Tensor {
    let v: Vec<f64> = noise(7, shape.iter().product()).iter().map(|x| x.signum()).collect();
    f(d, &v, shape)
}

fn shares(d: &Device, seed: u64, shape: &[usize]) -> Tensor {
    let v: Vec<f64> = noise(seed, shape.iter().product()).into_iter().map(share).collect();
    f(d, &v, shape)
}

/// Rows that sum to 1.
fn distributions(d: &Device, rows: usize, n: usize) -> Tensor {
    let mut v: Vec<f64> = noise(8, rows * n).into_iter().map(share).collect();
    for row in v.chunks_mut(n) {
        let sum: f64 = row.iter().sum();
        row.iter_mut().for_each(|x| *x /= sum);
    }
    f(d, &v, &[rows, n])
}

const REDUCTIONS: [Reduction; 3] = [Reduction::None, Reduction::Mean, Reduction::Sum];

/// Items, mean and sum of an elementwise loss against a plain formula.
fn values(
    what: &str,
    (p, t): (f64, f64),
    want: f64,
    loss: impl Fn(Reduction, &Tensor, &Tensor) -> Result<Tensor>,
) {
    let d = cpu();
    let (pt, tt) = (f(&d, &[p, p, p], &[3]), f(&d, &[t, t, t], &[3]));
    for (r, want) in REDUCTIONS.into_iter().zip([vec![want; 3], vec![want], vec![3.0 * want]]) {
        let got = loss(r, &pt, &tt).unwrap_or_else(|e| panic!("{what}: {e}"));
        close(&got.to_vec::<f64>().unwrap(), &want, 1e-12, &format!("{what} {r:?}"));
    }
}

macro_rules! value {
    ($name:ident { $($field:ident : $v:expr),* }, $p:expr, $t:expr, $want:expr) => {
        values(stringify!($name), ($p, $t), $want, |reduction, p, t| {
            #[allow(clippy::needless_update)]
            $name { reduction, $($field: $v,)* ..Default::default() }.forward(p, t)
        })
    };
}

#[test]
fn elementwise_losses_follow_their_formulas() {
    value!(MseLoss {}, 0.7, 0.2, 0.25);
    value!(L1Loss {}, 0.7, 0.2, 0.5);
    value!(SmoothL1Loss {}, 0.7, 0.2, 0.125);
    value!(SmoothL1Loss { beta: 0.2 }, 0.7, 0.2, 0.4);
    value!(HuberLoss { delta: 0.2 }, 0.7, 0.2, 0.2 * 0.4);
    value!(LogCoshLoss {}, 0.7, 0.2, 0.5f64.cosh().ln());
    value!(QuantileLoss { q: 0.9 }, 0.7, 0.2, 0.1 * 0.5);
    value!(CharbonnierLoss { eps: 0.1 }, 0.7, 0.2, 0.26f64.sqrt());
    value!(MeanBiasLoss {}, 0.7, 0.2, -0.5);
    value!(HingeLoss {}, 0.7, -1.0, 1.7);
    value!(SquaredHingeLoss {}, 0.7, -1.0, 2.89);
    value!(ModifiedHuberLoss {}, 1.5, -1.0, 6.0);
    value!(ExponentialLoss {}, 0.7, -1.0, 0.7f64.exp());
    value!(SoftMarginLoss {}, 0.7, -1.0, 0.7f64.exp().ln_1p());
    value!(HingeEmbeddingLoss { margin: 0.9 }, 0.7, -1.0, 0.2);
    value!(WassersteinLoss {}, 0.7, -1.0, 0.7);
    value!(PoissonNllLoss {}, 0.7, 2.0, 0.7f64.exp() - 1.4);
    value!(PoissonNllLoss { log_input: false, eps: 0.0 }, 0.7, 2.0, 0.7 - 2.0 * 0.7f64.ln());
    value!(BornMseLoss {}, 0.7, 0.2, 0.29f64.powi(2));
    value!(BceLoss {}, 0.7, 0.2, -(0.2 * 0.7f64.ln() + 0.8 * 0.3f64.ln()));
    value!(BceWithLogitsLoss {}, 0.7, 0.2, 0.7f64.exp().ln_1p() - 0.14);
    value!(KlDivLoss {}, 0.7, 0.2, 0.2 * (0.2f64.ln() - 0.7));
    value!(KlDivLoss { log_input: false }, 0.7, 0.2, 0.2 * (0.2f64 / 0.7).ln());
    let focal = 0.25 * 0.3f64.powi(2) * -(0.7f64.ln());
    value!(BinaryFocalLoss {}, 0.7, 1.0, focal);
    value!(SigmoidFocalLoss {}, (0.7f64 / 0.3).ln(), 1.0, focal);
    value!(MarginRankingPair { margin: 0.1 }, 0.2, 0.7, 0.6);
}

/// Ranking with y = 1, so that it can stand among losses of two tensors.
#[derive(Default)]
struct MarginRankingPair {
    margin: f64,
    reduction: Reduction,
}

impl MarginRankingPair {
    fn forward(&self, p: &Tensor, t: &Tensor) -> Result<Tensor> {
        let y = Tensor::ones(p.device(), p.dtype(), p.shape())?;
        MarginRankingLoss { margin: self.margin, reduction: self.reduction }.forward(p, t, &y)
    }
}

/// Gradients of a loss of one output against a constant, for every reduction.
fn check(
    what: &str,
    shape: &[usize],
    map: fn(f64) -> f64,
    loss: impl Fn(Reduction, &Tensor) -> Result<Tensor>,
) {
    for r in REDUCTIONS {
        gradcheck(&format!("{what} {r:?}"), &[shape], map, |t| loss(r, &t[0]));
    }
}

/// The same of two outputs.
fn check2(
    what: &str,
    shapes: [&[usize]; 2],
    map: fn(f64) -> f64,
    loss: impl Fn(Reduction, &Tensor, &Tensor) -> Result<Tensor>,
) {
    for r in REDUCTIONS {
        gradcheck(&format!("{what} {r:?}"), &shapes, map, |t| loss(r, &t[0], &t[1]));
    }
}

macro_rules! with {
    ($name:ident { $($field:ident : $v:expr),* }) => {
        |reduction: Reduction| {
            #[allow(clippy::needless_update)]
            $name { reduction, $($field: $v,)* ..Default::default() }
        }
    };
}

#[test]
fn gradients_of_differences_go_to_both_sides() {
    macro_rules! both {
        ($($name:ident { $($field:ident : $v:expr),* }),* $(,)?) => {$(
            check2(stringify!($name), [&[3, 4], &[3, 4]], same, |r, p, t| {
                with!($name { $($field: $v),* })(r).forward(p, t)
            });
        )*};
    }
    both!(
        MseLoss {},
        L1Loss {},
        SmoothL1Loss { beta: 0.5 },
        HuberLoss { delta: 0.4 },
        LogCoshLoss {},
        QuantileLoss { q: 0.8 },
        CharbonnierLoss { eps: 0.1 },
        MeanBiasLoss {},
        CosineLoss { scale: 2.0 },
    );
    let d = cpu();
    let weight = shares(&d, 3, &[3, 4]);
    let mask = Tensor::from_slice(&d, &[1u8, 0, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1], &[3, 4]).unwrap();
    check("weights and mask", &[3, 4], same, |reduction, p| {
        let l = MseLoss { reduction, weight: Some(weight.clone()), mask: Some(mask.clone()) };
        l.forward(p, &shares(&d, 4, &[3, 4]))
    });
}

#[test]
fn gradients_of_elementwise_losses() {
    let d = cpu();
    let (y, t) = (signs(&d, &[3, 4]), shares(&d, 5, &[3, 4]));
    macro_rules! each {
        ($map:expr, $target:expr; $($name:ident { $($field:ident : $v:expr),* }),* $(,)?) => {$(
            check(stringify!($name), &[3, 4], $map, |r, p| {
                with!($name { $($field: $v),* })(r).forward(p, $target)
            });
        )*};
    }
    each!(same, &y;
        HingeLoss {}, SquaredHingeLoss {}, ModifiedHuberLoss {}, ExponentialLoss {}, SoftMarginLoss {},
        HingeEmbeddingLoss { margin: 0.8 }, WassersteinLoss {});
    each!(same, &t;
        PoissonNllLoss { full: true }, BornMseLoss {}, BceWithLogitsLoss {}, SigmoidFocalLoss { gamma: 1.5 },
        KlDivLoss {}, KlDivLoss { batch_mean: true }, KlDivLoss { log_target: true },
        RmseLikeMse {});
    each!(share, &t;
        PoissonNllLoss { log_input: false }, BceLoss {}, BinaryFocalLoss { alpha: -1.0 },
        KlDivLoss { log_input: false, batch_mean: true });
    let (w, pos) = (shares(&d, 6, &[3, 4]), shares(&d, 7, &[4]));
    check("pos_weight", &[3, 4], same, |reduction, p| {
        let (weight, pos_weight) = (Some(w.clone()), Some(pos.clone()));
        BceWithLogitsLoss { reduction, weight, pos_weight, ..Default::default() }.forward(p, &t)
    });
}

/// Mean squared error under its square root, squared again: scalar losses in a table of losses with items.
#[derive(Default)]
struct RmseLikeMse {
    reduction: Reduction,
}

impl RmseLikeMse {
    fn forward(&self, p: &Tensor, t: &Tensor) -> Result<Tensor> {
        assert!(RmseLoss { reduction: Reduction::None }.forward(p, t).is_err());
        let reduction = if self.reduction == Reduction::None { Reduction::Mean } else { self.reduction };
        let net = ElasticNetLoss { reduction, alpha: 0.3, l1_ratio: 0.4 }.forward(p, t)?;
        RmseLoss { reduction }.forward(p, t)?.add(&net)
    }
}

#[test]
fn gradients_of_losses_of_classes() {
    let d = cpu();
    let (labels, t) = (ids(&d, &[2, 0, 1], &[3]), shares(&d, 5, &[3, 4]));
    let weight = Some(shares(&d, 6, &[4]));
    let w = || weight.clone();
    check("nll", &[3, 4], same, |r, x| {
        NllLoss { reduction: r, weight: w(), ignore_index: 1, floor: None }.forward(x, &labels)
    });
    check("nll of probabilities", &[3, 4], share, |r, x| {
        NllLoss { reduction: r, floor: Some(1e-7), ..Default::default() }.forward(x, &labels)
    });
    check("focal", &[3, 4], same, |r, x| {
        MulticlassFocalLoss { reduction: r, gamma: 1.5, alpha: w() }.forward(x, &labels)
    });
    check("arcface", &[3, 4], share, |r, x| {
        ArcFaceLoss { reduction: r, scale: 4.0, margin: 0.3 }.forward(x, &labels)
    });
    for squared in [false, true] {
        check("multi margin", &[3, 4], same, |r, x| {
            MultiMarginLoss { reduction: r, squared, margin: 0.7, weight: w() }.forward(x, &labels)
        });
    }
    let lists = ids(&d, &[3, 0, -1, 1, 1, -1, 0, 2, 0, 1, 2, -1], &[3, 4]);
    check("multi-label margin", &[3, 4], same, |reduction, x| {
        MultiLabelMarginLoss { reduction }.forward(x, &lists)
    });
    check("multi-label soft margin", &[3, 4], same, |reduction, x| {
        MultiLabelSoftMarginLoss { reduction, weight: w() }.forward(x, &t)
    });
    check("categorical", &[3, 4], share, |reduction, x| {
        CategoricalCrossEntropyLoss { reduction, label_smoothing: 0.1 }.forward(x, &distributions(&d, 3, 4))
    });
    check("capsule", &[3, 4], share, |reduction, x| {
        CapsuleLoss { reduction, ..Default::default() }.forward(x, &labels.one_hot(4, DType::F64)?)
    });
    check("ordinal", &[3, 2], same, |reduction, x| OrdinalLoss { reduction }.forward(x, None, &labels));
    check2("ordinal with thresholds", [&[3], &[2]], same, |reduction, s, theta| {
        OrdinalLoss { reduction }.forward(s, Some(theta), &labels)
    });
    let teacher = tensor(&d, &[3, 4], 31);
    for target in [None, Some(&labels)] {
        check("distillation", &[3, 4], same, |reduction, z| {
            DistillationLoss { reduction, temperature: 3.0, alpha: 0.3 }.forward(z, &teacher, target)
        });
    }
    check("dino", &[3, 4], same, |reduction, z| {
        let l = DinoLoss { reduction, student_temp: 0.5, teacher_temp: 0.4 };
        l.forward(z, &teacher, &tensor(&d, &[4], 32))
    });
    check("z", &[3, 4], same, |reduction, x| ZLoss { reduction, coef: 0.5 }.forward(x));
    for reduction in REDUCTIONS {
        let options = CrossEntropy::new().reduction(reduction).label_smoothing(0.1);
        let l = CrossEntropyLoss { options, weight: w() };
        gradcheck("cross entropy", &[&[3, 4]], same, |x| l.forward(&x[0], &labels));
    }
}

#[test]
fn gradients_of_losses_of_embeddings_and_distributions() {
    let d = cpu();
    let y = signs(&d, &[3]);
    let similar = f(&d, &[1.0, 0.0, 1.0], &[3]);
    for (swap, squared, p) in [(false, false, 2.0), (true, false, 3.0), (false, true, 2.0)] {
        for reduction in REDUCTIONS {
            let l = TripletMarginLoss { reduction, swap, squared, p, margin: 2.0, ..Default::default() };
            gradcheck("triplet", &[&[3, 4], &[3, 4], &[3, 4]], same, |t| l.forward(&t[0], &t[1], &t[2]));
        }
    }
    let two: [&[usize]; 2] = [&[3, 4], &[3, 4]];
    check2("contrastive", two, same, |reduction, u, v| {
        ContrastiveLoss { reduction, margin: 3.0, half: true }.forward(u, v, &similar)
    });
    check2("cosine embedding", two, same, |reduction, u, v| {
        CosineEmbeddingLoss { reduction, margin: -0.9 }.forward(u, v, &y)
    });
    check2("ranking", two, same, |reduction, u, v| {
        MarginRankingLoss { reduction, margin: 0.5 }.forward(u, v, &signs(&d, &[3, 4]))
    });
    check2("gaussian", two, share, |reduction, p, var| {
        GaussianNllLoss { reduction, full: true, eps: 1e-6 }.forward(p, &tensor(&d, &[3, 4], 40), var)
    });
    check2("gaussian kl", two, same, |reduction, mu, lv| GaussianKlLoss { reduction }.forward(mu, lv));
    let (q0, qn) = (tensor(&d, &[3], 41), tensor(&d, &[3, 4], 42));
    for noise in [None, Some((&q0, &qn))] {
        check2("nce", [&[3], &[3, 4]], same, |reduction, s0, sn| {
            NceLoss { reduction }.forward(s0, sn, noise)
        });
    }
    let pair: [&[usize]; 2] = [&[5], &[5]];
    let (rw, rl) = (tensor(&d, &[5], 43), tensor(&d, &[5], 44));
    check2("dpo", pair, same, |reduction, w, l| DpoLoss { reduction, beta: 0.5 }.forward(w, l, &rw, &rl));
    check2("ipo", pair, same, |reduction, w, l| IpoLoss { reduction, beta: 0.5 }.forward(w, l, &rw, &rl));
    check2("simpo", pair, same, |reduction, w, l| {
        SimPoLoss { reduction, beta: 1.5, gamma: 0.3 }.forward(w, l)
    });
    check2("orpo", pair, |x| x - 1.5, |reduction, w, l| OrpoLoss { reduction }.forward(w, l));
    for mode in [Adversary::Vanilla, Adversary::Hinge, Adversary::LeastSquares] {
        let l = |reduction| AdversarialLoss { reduction, mode };
        check("generator", &[5], same, |r, fake| l(r).forward(fake, None));
        check2("discriminator", pair, same, |r, fake, real| l(r).forward(fake, Some(real)));
    }
}

#[test]
fn gradients_of_losses_of_regions_and_values() {
    let d = cpu();
    let t = shares(&d, 50, &[2, 3, 4]);
    for (squared, from_logits, per_channel) in [(false, false, false), (true, true, true)] {
        check("dice", &[2, 3, 4], share, |reduction, p| {
            DiceLoss { reduction, smooth: 0.5, squared, from_logits, per_channel }.forward(p, &t)
        });
    }
    check("tversky", &[2, 3, 4], share, |reduction, p| {
        TverskyLoss { reduction, a: 0.3, b: 0.7, smooth: 0.5, gamma: 1.5 }.forward(p, &t)
    });
    check("jaccard", &[2, 3, 4], share, |reduction, p| JaccardLoss { reduction, smooth: 0.5 }.forward(p, &t));
    let boxes = f(&d, &[0.0, 0.1, 0.9, 1.1, 0.2, 0.0, 1.0, 0.8], &[2, 4]);
    let base = f(&d, &[0.1, 0.0, 1.0, 1.0, 0.0, 0.2, 0.9, 1.2], &[2, 4]);
    for overlap in [BoxOverlap::Iou, BoxOverlap::Giou, BoxOverlap::Diou] {
        check(
            "boxes",
            &[2, 4],
            |x| 0.05 * x,
            |reduction, p| BoxIouLoss { reduction, overlap, eps: 1e-7 }.forward(&p.add(&base)?, &boxes),
        );
    }
    check("quantum", &[3, 4, 2], same, |reduction, psi| {
        QuantumFidelityLoss { reduction }.forward(psi, &tensor(&d, &[3, 4, 2], 51))
    });
    let mask: Vec<u8> = (0..24).map(|i| u8::from(i % 5 != 0)).collect();
    let mask = Tensor::from_slice(&d, &mask, &[2, 3, 4]).unwrap();
    for (root, mask) in [(false, None), (true, Some(mask))] {
        check("depth", &[2, 3, 4], share, |reduction, p| {
            let mask = mask.clone();
            ScaleInvariantDepthLoss { reduction, lambda: 0.5, root, mask }.forward(p, &t)
        });
    }
    let mask = Tensor::from_slice(&d, &[1u8, 0, 1, 1, 1, 0], &[2, 3]).unwrap();
    for normalize in [false, true] {
        check("patches", &[2, 3, 4], same, |reduction, p| {
            MaskedPatchLoss { reduction, normalize }.forward(p, &t, &mask)
        });
    }
    check("quantiles", &[5, 3], same, |reduction, p| {
        QuantilesLoss { reduction }.forward(p, &tensor(&d, &[5], 52), &f(&d, &[0.1, 0.5, 0.9], &[3]))
    });
}

#[test]
fn gradients_of_losses_of_batches() {
    let d = cpu();
    let two: [&[usize]; 2] = [&[4, 3], &[4, 3]];
    gradcheck("nt-xent", &two, same, |t| NtXentLoss { tau: 0.7 }.forward(&t[0], &t[1]));
    gradcheck("info-nce", &two, same, |t| InfoNceLoss { tau: 0.7 }.forward(&t[0], &t[1], None));
    gradcheck("info-nce with negatives", &[&[4, 3], &[4, 3], &[5, 3]], same, |t| {
        InfoNceLoss { tau: 0.7 }.forward(&t[0], &t[1], Some(&t[2]))
    });
    let labels = ids(&d, &[0, 1, 0, 1], &[4]);
    gradcheck("sup-con", &[&[4, 3]], same, |t| SupConLoss { tau: 0.7 }.forward(&t[0], &labels));
    gradcheck("barlow", &two, same, |t| BarlowTwinsLoss { lambda: 0.1 }.forward(&t[0], &t[1]));
    let rel = f(&d, &[2.0, 0.0, 1.0, 1.0], &[4]);
    gradcheck("ranking", &[&[4]], same, |t| PairwiseRankingLoss {}.forward(&t[0], &rel));
    let experts = ids(&d, &[0, 1, 2, 0, 1, 2, 0, 2], &[4, 2]);
    gradcheck("balance", &[&[4, 3]], share, |t| MoeBalanceLoss {}.forward(&t[0], &experts));
    let classes = ids(&d, &[0, 2, 1, 2], &[4]);
    gradcheck("lovasz", &[&[4, 3]], share, |t| LovaszLoss {}.forward(&t[0], &classes));
    let (a, b) = (tensor(&d, &[2, 3], 60), tensor(&d, &[4], 61));
    gradcheck("list", &[&[2, 3], &[4], &[5]], same, |t| {
        LossList { kind: Loss::Square }.forward(&[
            Term { prediction: t[0].sub(&a)?, target: None, weight: 0.5 },
            Term { prediction: t[1].sub(&b)?, target: None, weight: 2.0 },
            Term { prediction: t[2].clone(), target: None, weight: 1.0 },
        ])
    });
    let list = [
        Term { prediction: a.clone(), target: Some(a.mul_scalar(0.5).unwrap()), weight: 4.0 },
        Term { prediction: b.clone(), target: Some(b.clone()), weight: 1.0 },
    ];
    let got = LossList::default().forward(&list).unwrap().to_vec::<f64>().unwrap();
    let want = a.square().unwrap().mean().unwrap().to_vec::<f64>().unwrap();
    close(&got, &want, 1e-12, "list");
    assert!(LossList::default().forward(&[]).is_err());
}

#[test]
fn gradients_of_losses_of_sequences_and_signals() {
    let d = cpu();
    let (targets, lengths) = (ids(&d, &[1, 2, 2, 0], &[2, 2]), ids(&d, &[5, 4], &[2]));
    let labels = ids(&d, &[2, 1], &[2]);
    for batch_first in [false, true] {
        let shape: &[usize] = if batch_first { &[2, 5, 3] } else { &[5, 2, 3] };
        check("ctc", shape, same, |reduction, x| {
            let l = CtcLoss { reduction, batch_first, ..Default::default() };
            l.forward(&x.log_softmax(-1)?, &targets, &lengths, &labels)
        });
    }
    check("rnnt", &[2, 5, 3, 3], same, |reduction, x| {
        let t = ids(&d, &[1, 2, 2, 1], &[2, 2]);
        RnntLoss { reduction, blank: 0 }.forward(x, &t, &lengths, &labels)
    });
    let l = StftLoss { resolutions: vec![StftResolution::new(8, 3, 6), StftResolution::new(16, 4, 12)] };
    let t = tensor(&d, &[2, 40], 70);
    gradcheck("stft", &[&[2, 40]], same, |p| l.forward(&p[0], &t));
    // One sample whose labels are as many as its steps: a single path.
    let x = tensor(&d, &[2, 1, 3], 71).log_softmax(-1).unwrap();
    let got = CtcLoss { reduction: Reduction::Sum, ..Default::default() }
        .forward(&x, &ids(&d, &[1, 2], &[1, 2]), &ids(&d, &[2], &[1]), &ids(&d, &[2], &[1]))
        .unwrap();
    let v = x.to_vec::<f64>().unwrap();
    close(&got.to_vec::<f64>().unwrap(), &[-(v[1] + v[5])], 1e-12, "ctc of one path");
}

#[test]
fn nll_takes_classes_along_the_axis_of_cross_entropy() {
    let d = cpu();
    for shape in [&[3, 3, 3][..], &[2, 3, 4, 5], &[4, 3]] {
        let items = [&shape[..1], &shape[2..]].concat();
        let n: usize = items.iter().product();
        let labels = ids(&d, &(0..n as i64).map(|i| i * i % 3).collect::<Vec<_>>(), &items);
        let weight = Some(shares(&d, 6, &[3]));
        for reduction in REDUCTIONS {
            let (x, z) = (tensor(&d, shape, 1).with_grad(), tensor(&d, shape, 1).with_grad());
            let nll = NllLoss { reduction, weight: weight.clone(), ignore_index: 1, ..Default::default() };
            let got = nll.forward(&x.log_softmax(1).unwrap(), &labels).unwrap();
            let options = CrossEntropy::new().reduction(reduction).ignore_index(1);
            let want = CrossEntropyLoss { options, weight: weight.clone() }.forward(&z, &labels).unwrap();
            assert_eq!(got.shape(), want.shape());
            close(&got.to_vec::<f64>().unwrap(), &want.to_vec::<f64>().unwrap(), 1e-12, "nll");
            got.sum().unwrap().backward().unwrap();
            want.sum().unwrap().backward().unwrap();
            let grad = |t: &Tensor| t.grad().unwrap().to_vec::<f64>().unwrap();
            close(&grad(&x), &grad(&z), 1e-12, "gradient of nll");
        }
    }
    let one = NllLoss::default().forward(&tensor(&d, &[3], 1), &ids(&d, &[2], &[])).unwrap();
    assert_eq!(one.to_vec::<f64>().unwrap(), [-tensor(&d, &[3], 1).to_vec::<f64>().unwrap()[2]]);
}

#[test]
fn constants_get_no_gradient_and_misfits_are_errors() {
    let d = cpu();
    let (x, t) = (tensor(&d, &[3, 4], 1).with_grad(), shares(&d, 2, &[3, 4]).with_grad());
    BceWithLogitsLoss::default().forward(&x, &t).unwrap().backward().unwrap();
    assert!(x.grad().is_some() && t.grad().is_none());
    assert!(BceWithLogitsLoss::default().forward(&x, &tensor(&d, &[4, 3], 1)).is_err());
    assert!(HuberLoss { delta: 0.0, ..Default::default() }.forward(&x, &t).is_err());
    assert!(NllLoss::default().forward(&x, &ids(&d, &[0, 1], &[2])).is_err());
    assert!(NtXentLoss { tau: 0.0 }.forward(&x, &x).is_err());
    let blank = CtcLoss { blank: 9, ..Default::default() };
    let (targets, n) = (ids(&d, &[1], &[1, 1]), ids(&d, &[1], &[1]));
    assert!(blank.forward(&tensor(&d, &[2, 1, 3], 1), &targets, &n, &n).is_err());
    // Strided operands give what dense ones give.
    let (a, b) = (x.detach().transpose(0, 1).unwrap(), t.detach().transpose(0, 1).unwrap());
    let strided = MseLoss::default().forward(&a, &b).unwrap().item::<f64>().unwrap();
    assert_eq!(
        strided,
        MseLoss::default().forward(&a.copy().unwrap(), &b.copy().unwrap()).unwrap().item::<f64>().unwrap()
    );
}

#[test]
fn devices_agree_and_halves_work() {
    let host = cpu();
    for d in devices() {
        for dtype in [DType::F32, DType::F16, DType::Bf16] {
            let rtol = if dtype == DType::F32 { 1e-5 } else { 4e-2 };
            let run = |d: &Device, dtype: DType| -> Vec<f64> {
                let x = tensor(d, &[6, 5], 1).to_dtype(dtype).unwrap().with_grad();
                let y = tensor(d, &[6, 5], 2).to_dtype(dtype).unwrap().with_grad();
                let labels = ids(d, &[0, 4, 2, 2, 1, 3], &[6]);
                let losses = [
                    SmoothL1Loss::default().forward(&x, &y).unwrap(),
                    CosineLoss::default().forward(&x, &y).unwrap(),
                    MulticlassFocalLoss::default().forward(&x, &labels).unwrap(),
                    InfoNceLoss::default().forward(&x, &y, None).unwrap(),
                ];
                let mut all = vec![];
                for l in &losses {
                    all.extend(l.to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap());
                    l.backward().unwrap();
                }
                for t in [&x, &y] {
                    all.extend(t.grad().unwrap().to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap());
                }
                all.into_iter().map(f64::from).collect()
            };
            // Halves have their own inputs: compare on the CPU in the same dtype for f32, roughly for halves.
            close(
                &run(&d, dtype),
                &run(&host, DType::F32),
                rtol,
                &format!("{dtype} on {}", crate::common::id(&d)),
            );
        }
    }
}
