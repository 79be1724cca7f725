//! Losses.

use super::Arg::*;
use super::{M, Row, same_bits};
use trefoil_nn::losses::{self as l, Reduction};
use trefoil_nn::{CrossEntropyLoss, LinearCrossEntropyLoss, MseLoss, Result, Tensor};

pub(super) fn losses() -> Vec<Row> {
    let mut all = rows! {
        "CrossEntropyLoss" [F(&[4, 5]), Ids(&[4], 5), F(&[5])] |t| {
            let (weight, plain) = (Some(t[2].detach()), CrossEntropyLoss::default());
            [CrossEntropyLoss { weight, ..plain.clone() }.forward(&t[0], &t[1])?, plain.forward(&t[0], &t[0].detach())?]
        };
        "LinearCrossEntropyLoss" [F(&[4, 3]), F(&[5, 3]), F(&[5]), Ids(&[4], 5)] |t|
            [LinearCrossEntropyLoss::default().forward(&t[0], &t[1], Some(&t[2]), &t[3])?];
        "MseLoss" [F(M), F(M), F(M), Mask(M)] |t| {
            let weighted = MseLoss { weight: Some(t[2].detach()), mask: Some(t[3].clone()), ..Default::default() };
            [weighted.forward(&t[0], &t[1])?, MseLoss { reduction: Reduction::None, ..Default::default() }.forward(&t[0], &t[1])?]
        };
        "BceWithLogitsLoss" [F(M), F(M), F(M), F(&[6])] |t| {
            let loss = l::BceWithLogitsLoss {
                weight: Some(t[2].detach()), pos_weight: Some(t[3].detach()), ..Default::default()
            };
            [loss.forward(&t[0], &t[1])?]
        };
        "InfoNceLoss" [F(M), F(M), F(M)] |t| [l::InfoNceLoss::default().forward(&t[0], &t[1], Some(&t[2]))?];
        "SupConLoss" [F(M), Ids(&[4], 2)] |t| [l::SupConLoss::default().forward(&t[0], &t[1])?];
        "PairwiseRankingLoss" [F(&[5]), F(&[5])] |t| [l::PairwiseRankingLoss::default().forward(&t[0], &t[1])?];
        "MoeBalanceLoss" [F(M), Ids(&[4, 2], 6)] |t| [l::MoeBalanceLoss::default().forward(&t[0], &t[1])?];
        "RotationPredictionLoss" [F(&[3, 4, 4])] |t| [l::RotationPredictionLoss::default().forward(&t[0])?];
        "LovaszLoss" [F(M), Ids(&[4], 6)] |t| [l::LovaszLoss::default().forward(&t[0], &t[1])?];
        "NllLoss" [F(M), Ids(&[4], 6), F(&[6])] |t|
            [l::NllLoss { weight: Some(t[2].clone()), ..Default::default() }.forward(&t[0], &t[1])?];
        "MulticlassFocalLoss" [F(M), Ids(&[4], 6)] |t| [l::MulticlassFocalLoss::default().forward(&t[0], &t[1])?];
        "ArcFaceLoss" [F(M), Ids(&[4], 6)] |t| [l::ArcFaceLoss::default().forward(&t[0], &t[1])?];
        "CircleLoss" [F(M), Ids(&[4], 6)] |t| [l::CircleLoss { scale: 4.0, ..Default::default() }.forward(&t[0], &t[1])?];
        "KtoLoss" [F(&[5]), F(&[5]), Mask(&[5])] |t|
            [l::KtoLoss::default().forward(&t[0], &t[1], &t[2].to_dtype(t[0].dtype())?, None)?];
        "MultiMarginLoss" [F(M), Ids(&[4], 6)] |t| [l::MultiMarginLoss::default().forward(&t[0], &t[1])?];
        "MultiLabelMarginLoss" [F(M), Ids(M, 6)] |t| [l::MultiLabelMarginLoss::default().forward(&t[0], &t[1])?];
        "TripletMarginLoss" [F(M), F(M), F(M)] |t| [l::TripletMarginLoss::default().forward(&t[0], &t[1], &t[2])?];
        "ContrastiveLoss" [F(M), F(M), F(&[4])] |t| [l::ContrastiveLoss::default().forward(&t[0], &t[1], &t[2])?];
        "CosineEmbeddingLoss" [F(M), F(M), Sign(&[4])] |t|
            [l::CosineEmbeddingLoss::default().forward(&t[0], &t[1], &t[2])?];
        "MarginRankingLoss" [F(M), F(M), Sign(M)] |t| [l::MarginRankingLoss::default().forward(&t[0], &t[1], &t[2])?];
        "GaussianNllLoss" [F(M), F(M), F(M)] |t| [l::GaussianNllLoss::default().forward(&t[0], &t[1], &t[2])?];
        "BoxIouLoss" [F(&[5, 4]), F(&[5, 4])] |t| {
            // Corners in order.
            let far = |t: &Tensor| -> Result<Tensor> {
                let (a, b) = (t.narrow(1, 0, 2)?, t.narrow(1, 2, 2)?);
                Tensor::concat(1, &[&a, &b.add_scalar(1.0)?])
            };
            let spread = |t: &Tensor| -> Result<Tensor> { far(t)?.transpose(0, 1)?.contiguous()?.transpose(0, 1) };
            [l::BoxIouLoss::default().forward(&spread(&t[0])?, &spread(&t[1])?)?]
        };
        "QuantumFidelityLoss" [F(&[3, 4, 2]), F(&[3, 4, 2])] |t|
            [l::QuantumFidelityLoss::default().forward(&t[0], &t[1])?];
        "MaskedPatchLoss" [F(&[2, 3, 4]), F(&[2, 3, 4]), Mask(&[2, 3])] |t|
            [l::MaskedPatchLoss::default().forward(&t[0], &t[1], &t[2])?];
        "QuantilesLoss" [F(&[4, 3]), F(&[4]), F(&[3])] |t| [l::QuantilesLoss::default().forward(&t[0], &t[1], &t[2])?];
        "DistillationLoss" [F(M), F(M), Ids(&[4], 6)] |t|
            [l::DistillationLoss::default().forward(&t[0], &t[1], Some(&t[2]))?];
        "DinoLoss" [F(M), F(M), F(&[6])] |t| [l::DinoLoss::default().forward(&t[0], &t[1], &t[2])?];
        "AdversarialLoss" [F(&[4]), F(&[4])] |t| [l::AdversarialLoss::default().forward(&t[0], Some(&t[1]))?];
        "CtcLoss" [F(&[5, 2, 4]), Count(&[2, 2], 4), Equal(&[2], 5), Count(&[2], 2)] |t|
            [l::CtcLoss { zero_infinity: true, ..Default::default() }.forward(&t[0], &t[1], &t[2], &t[3])?];
        "RnntLoss" [F(&[2, 4, 3, 5]), Count(&[2, 2], 5), Count(&[2], 4), Count(&[2], 2)] |t|
            [l::RnntLoss::default().forward(&t[0], &t[1], &t[2], &t[3])?];
        "ZLoss" [F(M)] |t| [l::ZLoss::default().forward(&t[0])?];
        "LossList" [F(M), F(M)] |t| {
            let term = |p: &Tensor, t: &Tensor| l::Term { prediction: p.clone(), target: Some(t.clone()), weight: 0.7 };
            [l::LossList::default().forward(&[term(&t[0], &t[1]), term(&t[1], &t[0])])?]
        };
        "NceLoss" [F(&[4]), F(M), F(&[4]), F(M)] |t|
            [l::NceLoss::default().forward(&t[0], &t[1], Some((&t[2], &t[3])))?];
        "OrdinalLoss" [F(&[4, 3]), Ids(&[4], 4)] |t| [l::OrdinalLoss::default().forward(&t[0], None, &t[1])?];
    };
    macro_rules! pairs {
        ($first:expr; $second:expr; $($name:ident)*) => {
            $(all.push(Row {
                name: stringify!($name),
                args: vec![$first, $second],
                run: Box::new(|t| Ok(vec![l::$name::default().forward(&t[0], &t[1])?])),
            });)*
        };
    }
    pairs!(F(M); F(M); L1Loss SmoothL1Loss HuberLoss LogCoshLoss QuantileLoss CharbonnierLoss MeanBiasLoss HingeLoss
        SquaredHingeLoss ModifiedHuberLoss ExponentialLoss SoftMarginLoss WassersteinLoss PoissonNllLoss
        BornMseLoss BceLoss SigmoidFocalLoss BinaryFocalLoss KlDivLoss NtXentLoss BarlowTwinsLoss
        MultiLabelSoftMarginLoss CategoricalCrossEntropyLoss CapsuleLoss CosineLoss GaussianKlLoss
        RmseLoss ElasticNetLoss SimPoLoss OrpoLoss);
    pairs!(F(M); Sign(M); HingeEmbeddingLoss);
    pairs!(F(&[2, 3, 8]); F(&[2, 3, 8]); DiceLoss TverskyLoss JaccardLoss ScaleInvariantDepthLoss);
    for (name, ipo) in [("DpoLoss", false), ("IpoLoss", true)] {
        all.push(Row {
            name,
            args: vec![F(&[5]); 4],
            run: Box::new(move |t| {
                Ok(vec![match ipo {
                    false => l::DpoLoss::default().forward(&t[0], &t[1], &t[2], &t[3])?,
                    true => l::IpoLoss::default().forward(&t[0], &t[1], &t[2], &t[3])?,
                }])
            }),
        });
    }
    all.push(Row {
        name: "StftLoss",
        args: vec![F(&[2, 64]), F(&[2, 64])],
        run: Box::new(|t| {
            let mut r = l::StftResolution::PARALLEL_WAVEGAN[0];
            (r.fft, r.hop, r.window) = (16, 4, 12);
            Ok(vec![l::StftLoss { resolutions: vec![r] }.forward(&t[0], &t[1])?])
        }),
    });
    all
}

#[test]
fn losses_of_views() {
    same_bits(&losses());
}
