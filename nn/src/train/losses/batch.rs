//! Losses of a whole batch: scalars that cannot be split into items.

use trefoil::ops::loss::{BatchLoss, Reduction};

use super::kernel::{Kernel, run};
use super::losses;
use crate::core::error::Result;
use crate::core::tensor::Tensor;

fn batch(op: &'static str, kind: BatchLoss, x: [Option<&Tensor>; 3], ids: Option<&Tensor>) -> Result<Tensor> {
    run(op, Kernel::Batch(kind), [x[0], x[1], x[2], None], [ids, None, None])
}

losses! {
    /// SimCLR's contrastive loss (Chen et al., 2020): each normalised row against its partner among the 2B - 1 others.
    NtXentLoss {
        /// Temperature.
        tau: f64 = 0.5,
    }
    /// Loss of two views `z1*`, `z2*` `[B, E]`.
    (z1: &Tensor, z2: &Tensor) |s|
        batch("nt_xent_loss", BatchLoss::NtXent { tau: s.tau }, [Some(z1), Some(z2), None], None);

    /// InfoNCE (van den Oord et al., 2018): cross entropy of q.k/tau with the own key as the target.
    InfoNceLoss {
        /// Temperature.
        tau: f64 = 0.1,
    }
    /// Loss of queries and keys `q*`, `k*` `[B, E]`; against `negatives*` `[K, E]`, or without them the batch's other keys.
    (q: &Tensor, k: &Tensor, negatives: Option<&Tensor>) |s|
        batch("info_nce_loss", BatchLoss::InfoNce { tau: s.tau }, [Some(q), Some(k), negatives], None);

    /// Supervised contrastive loss (Khosla et al., 2020); mean over rows that share their label with another.
    SupConLoss {
        /// Temperature.
        tau: f64 = 0.1,
    }
    /// Loss of embeddings `z*` `[B, E]` with labels `[B]` (i32, i64).
    (z: &Tensor, labels: &Tensor) |s|
        batch("sup_con_loss", BatchLoss::SupCon { tau: s.tau }, [Some(z), None, None], Some(labels));

    /// Barlow Twins (Zbontar et al., 2021): distance of the cross-correlation of standardised columns from the identity.
    BarlowTwinsLoss {
        /// Weight of the off-diagonal elements.
        lambda: f64 = 5e-3,
    }
    /// Loss of two views `z1*`, `z2*` `[B, E]`.
    (z1: &Tensor, z2: &Tensor) |s|
        batch("barlow_twins_loss", BatchLoss::Barlow { lambda: s.lambda }, [Some(z1), Some(z2), None], None);

    /// RankNet (Burges et al., 2005): mean of softplus(s_j - s_i) over pairs whose relevance of i is higher; 0 without pairs.
    PairwiseRankingLoss {}
    /// Loss of scores `s*` `[n]` with relevances `[n]` of their dtype.
    (scores: &Tensor, relevance: &Tensor) |_s| batch(
        "pairwise_ranking_loss",
        BatchLoss::PairwiseRanking,
        [Some(scores), Some(&relevance.detach()), None],
        None
    );

    /// Load balance of a mixture of experts (Fedus et al., 2022): E * sum of share of assignments times mean probability.
    MoeBalanceLoss {}
    /// Loss of gate probabilities `p*` `[N, E]` with the experts chosen `[N, k]` (i32, i64).
    (probs: &Tensor, experts: &Tensor) |_s|
        batch("moe_balance_loss", BatchLoss::MoeBalance, [Some(probs), None, None], Some(experts));

    /// Lovasz-Softmax (Berman et al., 2018): extension of the Jaccard loss, mean over the classes that occur.
    LovaszLoss {}
    /// Loss of probabilities `p*` `[N, C]` with class ids `[N]` (i32, i64).
    (probs: &Tensor, target: &Tensor) |_s|
        batch("lovasz_loss", BatchLoss::Lovasz, [Some(probs), None, None], Some(target));
}

/// Batch losses of an output and a target have one value, which is their mean.
macro_rules! whole {
    ($($name:ident),*) => {$(
        impl super::Criterion for $name {
            fn loss(&self, output: &Tensor, target: &Tensor) -> Result<Tensor> {
                self.forward(output, target)
            }
            fn reduction(&self) -> Reduction {
                Reduction::Mean
            }
        }
    )*};
}
whole!(NtXentLoss, SupConLoss, BarlowTwinsLoss, PairwiseRankingLoss, MoeBalanceLoss, LovaszLoss);
