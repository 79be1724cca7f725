//! The operands of each row loss: where their numbers stand, which have a gradient, and which axes make a row.

use crate::ops::loss::rows::RowLoss;
use Role::{Element, Last, Lead, Row, Shared};

/// Where an operand's numbers stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// One per element.
    Element = 0,
    /// One per row.
    Row = 1,
    /// A vector that all rows share.
    Shared = 2,
    /// A vector along the last axis, where rows are single elements.
    Last = 3,
    /// A number per all axes but the last, where rows are single elements.
    Lead = 4,
}

/// An operand of a row loss.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operand {
    pub(crate) name: &'static str,
    pub(crate) role: Role,
    pub(crate) optional: bool,
    pub(crate) grad: bool,
}

/// Class ids of a row loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ids {
    No,
    PerRow { classes_beyond: usize, optional: bool },
    List,
}

/// Which axes make a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rows {
    /// All but the last.
    LastAxis,
    /// All but the class axis: axis 1 of [N, C, S..], axis 0 of \[C\].
    ClassAxis,
    /// The first `n` axes number the rows.
    First(usize),
    /// One row.
    Whole,
    /// Every element.
    Each,
}

const fn x(name: &'static str, role: Role) -> Operand {
    Operand { name, role, optional: false, grad: false }
}

impl Operand {
    const fn g(mut self) -> Self {
        self.grad = true;
        self
    }
    const fn opt(mut self) -> Self {
        self.optional = true;
        self
    }
}
const PT: &[Operand] = &[x("p", Element).g(), x("t", Element)];
const WL: &[Operand] = &[x("w", Element).g(), x("l", Element).g()];
const WL_REF: &[Operand] =
    &[x("w", Element).g(), x("l", Element).g(), x("w_ref", Element), x("l_ref", Element)];

impl RowLoss {
    pub(crate) const fn operands(&self) -> &'static [Operand] {
        match self {
            RowLoss::Triplet { .. } => {
                const { &[x("a", Element).g(), x("p", Element).g(), x("q", Element).g()] }
            }
            RowLoss::Contrastive { .. } => const { &[x("u", Element).g(), x("v", Element).g(), x("y", Row)] },
            RowLoss::Cosine { .. } => const { &[x("p", Element).g(), x("t", Element).g()] },
            RowLoss::CosineEmbedding { .. } => {
                const { &[x("x1", Element).g(), x("x2", Element).g(), x("y", Row)] }
            }
            RowLoss::Nce => {
                const {
                    &[
                        x("s0", Row).g(),
                        x("sn", Element).g(),
                        x("logq0", Row).opt(),
                        x("logqn", Element).opt(),
                    ]
                }
            }
            RowLoss::Nll { .. } | RowLoss::MultiMargin { .. } => {
                const { &[x("x", Element).g(), x("weight", Shared).opt()] }
            }
            RowLoss::MulticlassFocal { .. } => const { &[x("x", Element).g(), x("alpha", Shared).opt()] },
            RowLoss::Ordinal => {
                const { &[x("f", Element).g().opt(), x("s", Row).g().opt(), x("theta", Shared).g().opt()] }
            }
            RowLoss::Distillation { .. } => const { &[x("z", Element).g(), x("y", Element)] },
            RowLoss::Dino { .. } => const { &[x("z", Element).g(), x("y", Element), x("center", Shared)] },
            RowLoss::ArcFace { .. } | RowLoss::Z { .. } | RowLoss::MultilabelMargin => {
                const { &[x("x", Element).g()] }
            }
            RowLoss::MultilabelSoftMargin => {
                const { &[x("x", Element).g(), x("t", Element), x("weight", Shared).opt()] }
            }
            RowLoss::GaussianKl => const { &[x("mu", Element).g(), x("lv", Element).g()] },
            RowLoss::GaussianNll { .. } => {
                const { &[x("p", Element).g(), x("t", Element), x("var", Element).g()] }
            }
            RowLoss::MarginRanking { .. } => {
                const { &[x("x1", Element).g(), x("x2", Element).g(), x("y", Element)] }
            }
            RowLoss::Circle { .. } => const { &[x("x", Element).g(), x("y", Element).opt()] },
            RowLoss::Kto { .. } => {
                const { &[x("w", Element).g(), x("w_ref", Element), x("y", Element), x("kl", Shared).opt()] }
            }
            RowLoss::Dpo { .. } | RowLoss::Ipo { .. } => WL_REF,
            RowLoss::SimPo { .. } | RowLoss::Orpo => WL,
            RowLoss::BcePosWeight => {
                const { &[x("x", Element).g(), x("t", Element), x("weight", Element).opt(), x("pos_weight", Last)] }
            }
            RowLoss::Quantiles => const { &[x("p", Element).g(), x("t", Lead), x("levels", Last)] },
            RowLoss::Adversarial { .. } => {
                const { &[x("d_fake", Element).g(), x("d_real", Element).g().opt()] }
            }
            _ => PT,
        }
    }

    pub(crate) const fn ids(&self) -> Ids {
        match self {
            RowLoss::Nll { .. }
            | RowLoss::MulticlassFocal { .. }
            | RowLoss::ArcFace { .. }
            | RowLoss::MultiMargin { .. } => Ids::PerRow { classes_beyond: 0, optional: false },
            RowLoss::Ordinal => Ids::PerRow { classes_beyond: 1, optional: false },
            RowLoss::Distillation { .. } | RowLoss::Circle { .. } => {
                Ids::PerRow { classes_beyond: 0, optional: true }
            }
            RowLoss::MultilabelMargin => Ids::List,
            _ => Ids::No,
        }
    }

    /// Whether `Mean` divides by weights of the rows.
    pub(crate) const fn weighted(&self) -> bool {
        matches!(self, RowLoss::Nll { .. } | RowLoss::Patches { .. })
    }

    /// Whether the elements of a row lie [`RowShape::width`] apart.
    pub(crate) const fn strided(&self) -> bool {
        matches!(self.rows(), Rows::ClassAxis)
    }

    /// Whether every element is a row.
    pub(crate) const fn single_elements(&self) -> bool {
        matches!(self.rows(), Rows::Each)
    }

    pub(super) const fn rows(&self) -> Rows {
        match self {
            RowLoss::Dice { per_channel: true, .. } => Rows::First(2),
            RowLoss::Dice { .. } | RowLoss::Tversky { .. } | RowLoss::Quantum | RowLoss::Depth { .. } => {
                Rows::First(1)
            }
            RowLoss::Rmse | RowLoss::ElasticNet { .. } => Rows::Whole,
            RowLoss::Nll { .. } => Rows::ClassAxis,
            RowLoss::GaussianNll { .. }
            | RowLoss::MarginRanking { .. }
            | RowLoss::Dpo { .. }
            | RowLoss::Ipo { .. }
            | RowLoss::SimPo { .. }
            | RowLoss::Kto { .. }
            | RowLoss::Orpo
            | RowLoss::BcePosWeight
            | RowLoss::Quantiles
            | RowLoss::Adversarial { .. } => Rows::Each,
            _ => Rows::LastAxis,
        }
    }
}
