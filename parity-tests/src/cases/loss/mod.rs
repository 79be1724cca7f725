//! Losses.

use super::Kernel;

mod basic;
mod batch;
mod elementwise;
mod margin;
mod mixed;
mod regions;
mod rows;
mod sequence;
mod spectrogram;

pub(super) use self::basic::{draw_reduction, reduction};

pub(super) const TABLES: &[&[&[Kernel]]] = &[
    basic::ROWS,
    elementwise::ROWS,
    rows::ROWS,
    regions::ROWS,
    mixed::ROWS,
    sequence::ROWS,
    batch::ROWS,
    spectrogram::ROWS,
    margin::ROWS,
];
