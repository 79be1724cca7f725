//! Fourier transforms of a vendor library: what one is asked for, and what a library of a driver offers.

use super::{RawMem, RawStream};
use crate::DType;
use crate::error::Result;

/// What a transform reads and writes. Nothing is scaled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FftKind {
    /// n complex numbers to n, with exp(-2 pi i j k / n).
    Forward,
    /// n complex numbers to n, with exp(+2 pi i j k / n).
    Inverse,
    /// n real numbers to the first n/2 + 1 bins of their forward transform.
    RealToBins,
    /// The first n/2 + 1 bins and their conjugates to n real numbers, inverse. The first bin and, for even n, the last have no imaginary part.
    BinsToReal,
}

impl FftKind {
    /// Numbers of a sequence, read and written.
    pub fn lengths(self, n: usize) -> [usize; 2] {
        match self {
            FftKind::Forward | FftKind::Inverse => [n, n],
            FftKind::RealToBins => [n, n / 2 + 1],
            FftKind::BinsToReal => [n / 2 + 1, n],
        }
    }

    /// Reals of a number, read and written: complex numbers are pairs.
    pub fn widths(self) -> [usize; 2] {
        match self {
            FftKind::Forward | FftKind::Inverse => [2, 2],
            FftKind::RealToBins => [1, 2],
            FftKind::BinsToReal => [2, 1],
        }
    }
}

/// Transforms of a batch of sequences for a vendor library. Distances are in numbers, real or complex as the kind has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct VendorFftProblem {
    /// What is computed.
    pub kind: FftKind,
    /// Length of the transform.
    pub n: usize,
    /// Sequences.
    pub batch: usize,
    /// From one number of a sequence to the next, read and written.
    pub stride: usize,
    /// From one sequence to the next, read and written.
    pub distance: [usize; 2],
    /// Type of the reals: f32 or f64.
    pub dtype: DType,
}

impl VendorFftProblem {
    /// Sequences one after the other, without gaps.
    pub(crate) fn rows(kind: FftKind, n: usize, batch: usize, dtype: DType) -> Self {
        VendorFftProblem { kind, n, batch, stride: 1, distance: kind.lengths(n), dtype }
    }

    /// Complex sequences side by side: the columns of a matrix of n rows.
    pub(crate) fn columns(kind: FftKind, n: usize, columns: usize, dtype: DType) -> Self {
        VendorFftProblem { kind, n, batch: columns, stride: columns, distance: [1, 1], dtype }
    }

    /// Reals from the first to behind the last, read and written.
    pub fn reals(&self) -> [usize; 2] {
        let (lengths, widths) = (self.kind.lengths(self.n), self.kind.widths());
        [0, 1].map(|side| {
            let last = self.batch.saturating_sub(1).saturating_mul(self.distance[side]);
            let own = lengths[side].saturating_sub(1).saturating_mul(self.stride);
            last.saturating_add(own).saturating_add(1).saturating_mul(widths[side])
        })
    }
}

/// Fourier transforms of a vendor library, loaded at run time.
pub trait VendorFft: Send + Sync {
    /// Its name, for messages.
    fn name(&self) -> &'static str;

    /// Whether the library takes this problem; the reason if not. Cheap after the first call of a problem.
    fn applicable(&self, p: &VendorFftProblem) -> std::result::Result<(), String>;

    /// Bytes of workspace that the problem wants.
    fn workspace(&self, p: &VendorFftProblem) -> usize;

    /// Whether a first run of the problem may do more than queue its work: load kernels, say. It is then run once before it is recorded.
    fn first_run_loads(&self, p: &VendorFftProblem) -> bool {
        let _ = p;
        false
    }

    /// Queues the transforms of x to y: (memory, byte offset) each. Those of [`FftKind::BinsToReal`] may overwrite x.
    ///
    /// # Safety
    /// All memory is live and as large as the problem says; x and y begin at multiples of a complex number and overlap nothing; the workspace has the
    /// size that was asked for and overlaps nothing.
    unsafe fn run(
        &self,
        s: RawStream,
        p: &VendorFftProblem,
        x: (RawMem, u64),
        y: (RawMem, u64),
        workspace: Option<(RawMem, u64, usize)>,
    ) -> Result<()>;
}
