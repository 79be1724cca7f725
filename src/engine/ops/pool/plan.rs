//! How pooling runs: window by window, or by kernels whose threads make several outputs of what they read once.

use crate::device::Caps;
use crate::dtype::DType;
use crate::engine::launch::{LANES, pow2};
use crate::engine::plan::{Problem, Reason, Variant};
use crate::engine::tune::ProblemKey;
use crate::ops::pool::PoolGeometry;

/// Inner window width from which several threads share an output.
pub(super) const LONG: usize = 32;
/// Rows of y, or backward of x, that a thread of the halving kernels has (`GK_POOL_ROWS`).
const ROWS: usize = 2;

const SOURCE: &str = "kernels/common/pool/pool.c";
const MEAN: Variant = Variant { name: "mean", source: "kernels/common/reduce/reduce.c" };
const MEAN_BWD: Variant = Variant { name: "mean", source: "kernels/common/reduce/backward.c" };
const HALVING: Variant = Variant { name: "halving", source: "kernels/common/pool/halving.c" };
const SLIDING: Variant = Variant { name: "sliding", source: "kernels/common/pool/sliding.c" };
const PATCH: Variant = Variant { name: "patch", source: SOURCE };
const SHARED_WINDOW: Variant = Variant { name: "shared_window", source: SOURCE };
const WINDOW: Variant = Variant { name: "window", source: SOURCE };

/// Windows over planes of contiguous operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Windows {
    pub(crate) g: PoolGeometry,
    pub(crate) dtype: DType,
    /// Whether x, or its gradient, begins at a multiple of 16 bytes.
    pub(crate) x_aligned: bool,
    /// Whether all operands do.
    pub(crate) aligned: bool,
}

/// Pooling that halves rows, as `halving.c` takes it, or keeps planes' sizes, as `sliding.c` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Squares {
    pub(crate) side: usize,
    /// 16-byte items of a row.
    pub(crate) runs: usize,
    /// Groups of rows of a plane.
    pub(crate) groups: usize,
    pub(crate) items: usize,
}

impl Windows {
    /// One window over two axes is one window over both together: planes of global pooling become rows.
    pub(super) fn folded(mut g: PoolGeometry) -> PoolGeometry {
        let whole = |g: &PoolGeometry, a: usize| g.adaptive && g.output[a] == 1;
        while whole(&g, 2) && whole(&g, 1) && g.input[..2] != [1, 1] && g.plane() < 1 << 30 {
            g.input = [1, g.input[0], g.input[1] * g.input[2]];
            g.output = [1, g.output[0], 1];
        }
        if g.adaptive {
            // The longest window, which decides how windows are read.
            g.kernel = std::array::from_fn(|a| (g.input[a].div_ceil(g.output[a]) + 1).min(g.input[a]));
        }
        g
    }

    /// Elements of 16 bytes.
    fn vector(&self) -> usize {
        16 / self.dtype.size()
    }

    /// Square windows of one plane by steps of 2, and rows of x of whole 16-byte items; `rows` is the number of rows of y, or backward of x.
    fn halving(&self, rows: usize) -> Result<Squares, Reason> {
        let (g, side) = (&self.g, self.g.kernel[2]);
        let windows = matches!(side, 2 | 3)
            && !g.adaptive
            && g.kernel == [1, side, side]
            && (g.stride[1], g.stride[2], g.padding) == (2, 2, [0, side - 2, side - 2])
            && g.dilation[1..] == [1, 1];
        let ([d, h, w], [od, _, ow]) = (g.input, g.output);
        if !windows || d != 1 || od != 1 || w != 2 * ow {
            return Err("its windows do not halve rows".into());
        }
        if !self.aligned || !w.is_multiple_of(self.vector()) {
            return Err("its rows are not whole 16-byte items".into());
        }
        self.squares(side, rows.div_ceil(ROWS), h)
    }

    /// Items of 16 bytes along W in groups of rows, of which there are `rows` in a plane.
    fn squares(&self, side: usize, groups: usize, rows: usize) -> Result<Squares, Reason> {
        let (g, runs) = (&self.g, self.g.input[2] / self.vector());
        if g.plane() > i32::MAX as usize || g.planes * rows * runs > i32::MAX as usize {
            return Err("it has more than 2^31 items".into());
        }
        Ok(Squares { side, runs, groups, items: g.planes * groups * runs })
    }

    /// Square windows of one plane around every cell, and rows of whole 16-byte items.
    fn sliding(&self) -> Result<Squares, Reason> {
        let (g, side) = (&self.g, self.g.kernel[2]);
        let windows = matches!(side, 3 | 5)
            && !g.adaptive
            && g.kernel == [1, side, side]
            && (g.stride[1], g.stride[2], g.padding) == (1, 1, [0, side / 2, side / 2])
            && g.dilation[1..] == [1, 1];
        if !windows || g.input[0] != 1 || g.input != g.output {
            return Err("its windows are no squares of 3 or 5 cells around every cell".into());
        }
        if !self.aligned || !g.input[2].is_multiple_of(self.vector()) {
            return Err("its rows are not whole 16-byte items".into());
        }
        // Rows of an item (`GK_STRIP`).
        let strip = if self.vector() == 8 { 2 } else { 4 };
        self.squares(side, g.input[1].div_ceil(strip), g.input[1])
    }

    /// The side of a square that holds the sliding windows of H and W, where it is 2 or 3 and taps are neighbours.
    fn patch(&self) -> Result<usize, Reason> {
        let (g, side) = (&self.g, self.g.kernel[1].max(self.g.kernel[2]));
        if !matches!(side, 2 | 3) || g.adaptive || g.dilation != [1; 3] {
            return Err("its windows are not sliding ones within 3 x 3".into());
        }
        if g.plane() > i32::MAX as usize {
            return Err("a plane has more than 2^31 cells".into());
        }
        Ok(side)
    }

    /// How many threads share an output.
    fn lanes(&self) -> Result<usize, Reason> {
        match self.g.kernel[2] {
            n if n < LONG => Err(format!("its windows are narrower than {LONG}").into()),
            n => Ok(pow2(n / 4, LANES)),
        }
    }

    /// What averages divide by where it is the same for all windows.
    pub(super) fn divisor(&self) -> Option<f64> {
        let g = &self.g;
        if let Some(d) = g.divisor {
            return Some(d as f64);
        }
        let whole = |a: usize| {
            let p = g.padding[a];
            let padded = if g.count_include_pad { g.input[a] + 2 * p } else { g.input[a] };
            (g.count_include_pad || p == 0) && (g.output[a] - 1) * g.stride[a] + g.kernel[a] <= padded
        };
        (!g.adaptive && (0..3).all(whole)).then(|| g.kernel.iter().map(|&k| k as f64).product())
    }

    fn one_divisor(&self) -> Result<(), Reason> {
        self.divisor().map(|_| ()).ok_or("its averages do not all divide by one number".into())
    }

    /// The same, or what is inside counts.
    fn divisor_or_inside(&self) -> Result<(), Reason> {
        if self.g.count_include_pad { self.one_divisor() } else { Ok(()) }
    }

    /// How a gradient takes its cells one by one.
    fn cells(&self) -> PoolBwdPlan {
        let [d, h, w] = self.g.input;
        let wide = self.x_aligned && w.is_multiple_of(self.vector());
        PoolBwdPlan::Window { wide, items: [d, h, if wide { w / self.vector() } else { w }] }
    }

    /// Whether planes become rows of a mean.
    fn global(&self) -> Result<(), Reason> {
        let global = self.g.adaptive && self.g.output == [1; 3];
        if !global || self.g.plane() < LONG || self.g.planes == 0 {
            return Err(format!("it is no average of whole planes of at least {LONG} cells").into());
        }
        Ok(())
    }
}

/// Pooling by maxima.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct MaxPoolProblem(pub(crate) Windows);

/// Pooling by averages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct AvgPoolProblem(pub(crate) Windows);

/// The gradient of pooling by maxima.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct MaxPoolBwdProblem(pub(crate) Windows);

/// The gradient of pooling by averages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct AvgPoolBwdProblem(pub(crate) Windows);

/// How pooling runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PoolPlan {
    /// As the mean of rows.
    Mean,
    /// Two rows of outputs at a time.
    Halving(Squares),
    /// Some rows of outputs at a time, which share cells.
    Sliding(Squares),
    /// An output per thread, which loads a square of that side at once.
    Patch { side: usize },
    /// An output per `lanes` threads.
    SharedWindow { lanes: usize },
    /// An output per thread.
    Window,
}

/// How the gradient of pooling runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PoolBwdPlan {
    /// As the gradient of the mean of rows.
    Mean,
    /// Two rows of cells at a time.
    Halving(Squares),
    /// A cell, or with `wide` 16 bytes of them, per thread; `items` are those of a plane.
    Window { wide: bool, items: [usize; 3] },
}

impl Problem for MaxPoolProblem {
    type Plan = PoolPlan;

    const VARIANTS: &'static [Variant] = &[HALVING, SLIDING, PATCH, SHARED_WINDOW, WINDOW];

    fn plan(&self, variant: usize, _: &Caps) -> Result<PoolPlan, Reason> {
        let w = &self.0;
        match variant {
            0 => w.halving(w.g.output[1]).map(PoolPlan::Halving),
            1 => w.sliding().map(PoolPlan::Sliding),
            2 => w.patch().map(|side| PoolPlan::Patch { side }),
            3 => w.lanes().map(|lanes| PoolPlan::SharedWindow { lanes }),
            _ => Ok(PoolPlan::Window),
        }
    }

    fn key(&self) -> Option<&dyn ProblemKey> {
        Some(self)
    }
}

impl Problem for AvgPoolProblem {
    type Plan = PoolPlan;

    const VARIANTS: &'static [Variant] = &[MEAN, HALVING, SLIDING, PATCH, SHARED_WINDOW, WINDOW];

    fn plan(&self, variant: usize, _: &Caps) -> Result<PoolPlan, Reason> {
        let w = &self.0;
        match variant {
            0 => w.global().map(|()| PoolPlan::Mean),
            1 => w.divisor_or_inside().and(w.halving(w.g.output[1])).map(PoolPlan::Halving),
            2 => w.divisor_or_inside().and(w.sliding()).map(PoolPlan::Sliding),
            3 => w.one_divisor().and(w.patch()).map(|side| PoolPlan::Patch { side }),
            4 => w.lanes().map(|lanes| PoolPlan::SharedWindow { lanes }),
            _ => Ok(PoolPlan::Window),
        }
    }

    fn key(&self) -> Option<&dyn ProblemKey> {
        Some(self)
    }
}

impl Problem for MaxPoolBwdProblem {
    type Plan = PoolBwdPlan;

    const VARIANTS: &'static [Variant] = &[HALVING, WINDOW];

    fn plan(&self, variant: usize, _: &Caps) -> Result<PoolBwdPlan, Reason> {
        let w = &self.0;
        match variant {
            0 => w.halving(w.g.input[1]).map(PoolBwdPlan::Halving),
            _ => Ok(w.cells()),
        }
    }

    fn key(&self) -> Option<&dyn ProblemKey> {
        Some(self)
    }
}

impl Problem for AvgPoolBwdProblem {
    type Plan = PoolBwdPlan;

    const VARIANTS: &'static [Variant] = &[MEAN_BWD, HALVING, WINDOW];

    fn plan(&self, variant: usize, _: &Caps) -> Result<PoolBwdPlan, Reason> {
        let w = &self.0;
        match variant {
            0 => w.global().map(|()| PoolBwdPlan::Mean),
            1 => w.one_divisor().and(w.halving(w.g.input[1])).map(PoolBwdPlan::Halving),
            _ => Ok(w.cells()),
        }
    }

    fn key(&self) -> Option<&dyn ProblemKey> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::geometry::tests::{chosen, gpu};

    /// Windows of that side and step over images of 64 x 64, without padding.
    fn windows(side: usize, step: usize) -> Windows {
        let size = (64 - side) / step + 1;
        let g = PoolGeometry {
            planes: 8,
            input: [1, 64, 64],
            output: [1, size, size],
            kernel: [1, side, side],
            stride: [1, step, step],
            padding: [0; 3],
            dilation: [1; 3],
            adaptive: false,
            count_include_pad: true,
            divisor: None,
        };
        Windows { g, dtype: DType::F32, x_aligned: true, aligned: true }
    }

    fn global(plane: [usize; 3]) -> Windows {
        let w = windows(2, 2);
        let g = PoolGeometry { input: plane, output: [1; 3], adaptive: true, ..w.g };
        Windows { g: Windows::folded(g), ..w }
    }

    fn max_pool(w: Windows) -> &'static str {
        chosen(&MaxPoolProblem(w), &gpu())
    }

    fn avg_pool(w: Windows) -> &'static str {
        chosen(&AvgPoolProblem(w), &gpu())
    }

    #[test]
    fn windows_are_read_together_where_they_allow_it() {
        for (w, name) in [
            (windows(2, 2), "halving"),
            (windows(3, 1), "patch"),
            (windows(2, 3), "patch"),
            (windows(4, 4), "window"),
            (windows(40, 1), "shared_window"),
        ] {
            assert_eq!((max_pool(w), avg_pool(w)), (name, name));
        }
        assert_eq!(max_pool(global([7, 7, 7])), "shared_window");
        assert_eq!(avg_pool(global([7, 7, 7])), "mean");
        assert_eq!(avg_pool(global([1, 5, 5])), "window");
    }

    #[test]
    fn windows_around_every_cell_share_rows() {
        let w = windows(5, 1);
        let g = PoolGeometry { output: w.g.input, padding: [0, 2, 2], count_include_pad: false, ..w.g };
        let around = Windows { g, ..w };
        assert_eq!((max_pool(around), avg_pool(around)), ("sliding", "sliding"));
        assert_eq!(around.sliding(), Ok(Squares { side: 5, runs: 16, groups: 16, items: 8 * 16 * 16 }));
        assert_eq!(max_pool(Windows { aligned: false, ..around }), "window");
    }

    #[test]
    fn averages_by_different_numbers_take_each_window_alone() {
        let w = windows(2, 2);
        let ceil = Windows { g: PoolGeometry { input: [1, 64, 63], output: [1, 32, 32], ..w.g }, ..w };
        assert_eq!(ceil.divisor(), None);
        assert_eq!((max_pool(ceil), avg_pool(ceil)), ("patch", "window"));
        let g = PoolGeometry { divisor: Some(3), ..ceil.g };
        assert_eq!(avg_pool(Windows { g, ..ceil }), "patch");
    }

    #[test]
    fn gradients_move_rows_of_whole_items() {
        let (w, caps) = (windows(2, 2), gpu());
        let p = MaxPoolBwdProblem(w);
        let halving = Squares { side: 2, runs: 16, groups: 32, items: 8 * 32 * 16 };
        assert_eq!(p.plan(0, &caps), Ok(PoolBwdPlan::Halving(halving)));
        assert_eq!(p.plan(1, &caps), Ok(PoolBwdPlan::Window { wide: true, items: [1, 64, 16] }));
        let odd = AvgPoolBwdProblem(Windows { aligned: false, x_aligned: false, ..w });
        assert!(odd.plan(1, &caps).is_err_and(|e| e.contains("16-byte")));
        assert_eq!(odd.plan(2, &caps), Ok(PoolBwdPlan::Window { wide: false, items: [1, 64, 64] }));
    }
}
