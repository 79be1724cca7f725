//! Functions of two operands.

use super::{Settled, is_flat, map_problem, merged, merged_axes, vector};
use crate::buffer::View;
use crate::engine::Engine;
use crate::engine::launch::{Grid, Merged, aligned16, code_of_op, long};
use crate::engine::ops::shape::strided::magic;
use crate::error::Result;
use crate::ops::elementwise::*;
use crate::spec::elementwise::{BINARY_SPECIAL, binary_function};
use crate::spec::kernels::elementwise::*;

/// Items that a thread of `binary_nd` takes (`GK_ND_RUNS`).
const ND_RUNS: usize = 2;

/// Makes an item of `w` elements along the innermost axis where all operands either step by 1 from aligned places or repeat there. Bit k of the
/// answer says that operand k steps; 0 means that nothing was changed.
pub(super) fn widen<const N: usize>(m: &mut Merged<N>, views: [&View<'_>; N], w: usize) -> i32 {
    let last = m.shape.len() - 1;
    let mut bits = 0;
    for (k, v) in views.into_iter().enumerate() {
        let s = &m.strides[k];
        let steps = s[last] == 1 && aligned16(v) && s[..last].iter().all(|x| x.is_multiple_of(w));
        if !steps && s[last] != 0 {
            return 0;
        }
        bits |= i32::from(steps) << k;
    }
    if !m.shape[last].is_multiple_of(w) {
        return 0;
    }
    m.shape[last] /= w;
    for s in m.strides.iter_mut().filter(|s| s[last] == 1) {
        s[last] = w;
    }
    bits
}

/// Whether a function has the kernels of `elementwise/binary_special.c`.
pub(super) fn is_binary_special(function: &str) -> bool {
    BINARY_SPECIAL.contains(&function)
}

impl Engine {
    /// y = f(a, b); operands have y's shape.
    pub(super) fn map2(&self, op: Binary, a: &View<'_>, b: &View<'_>, y: &View<'_>) -> Result<()> {
        const OP: &str = "binary";
        let (dt, count) = (a.dtype(), y.numel());
        let Some((name, [p, q])) = binary_function(op, dt) else { return self.ldexp(a, b, y, false) };
        let by_vector = |wide: bool| Grid::Stride(if wide { count.div_ceil(vector(dt)) } else { count });
        let (views, n) = ([*y, *a, *b], long(count));
        let divides = !dt.is_float() && matches!(op, Binary::DivFloor | Binary::DivTrunc);
        if divides || y.dtype() != dt {
            let m = merged(&views, 0);
            let problem = map_problem(&m, views.each_ref(), 0);
            let (rank, shape, [sy, sa, sb]) = merged_axes(&m);
            let [y, a, b] = views.each_ref().map(|v| self.arg_in(v));
            let grid = by_vector(problem.flat && problem.aligned);
            let wide = i32::from(problem.flat && problem.aligned);
            if divides {
                let (err, code) = (self.arg_error(), code_of_op(OP));
                let args = BinaryIntDivArgs { a, b, y, n, wide, rank, shape, sa, sb, sy, err, code };
                return self.launch(&BINARY_INT_DIV, dt, name, grid, &args);
            }
            let args = BinaryMaskArgs { a, b, y, n, wide, rank, shape, sa, sb, sy, p, q };
            return self.launch(&BINARY_MASK, dt, name, grid, &args);
        }
        let (mut homes, special) = ([const { None }; 3], is_binary_special(name));
        let Settled { views, mut m, flat } = self.settle(OP, views, 0, &mut homes)?;
        let [y, a, b] = views.each_ref().map(|v| self.arg_in(v));
        if let Some(wide) = flat {
            let (wide, kernel) = if special { (false, &BINARY_SPECIAL_FLAT) } else { (wide, &BINARY_FLAT) };
            let args = BinaryFlatArgs { a, b, y, n, wide: i32::from(wide), p, q };
            return self.launch(kernel, dt, name, by_vector(wide), &args);
        }
        let wide = if special { 0 } else { widen(&mut m, views.each_ref(), vector(dt)) };
        let items: usize = m.shape.iter().product();
        let (rank, shape, [sy, sa, sb]) = merged_axes(&m);
        let (n, magic) = (long(items), magic(m.shape.iter().copied()));
        let args = BinaryNdArgs { a, b, y, n, rank, shape, magic, sa, sb, sy, wide, p, q };
        match special {
            true => self.launch(&BINARY_SPECIAL_ND, dt, name, Grid::Stride(items), &args),
            false => self.launch(&BINARY_ND, dt, name, Grid::Stride(items.div_ceil(ND_RUNS)), &args),
        }
    }

    /// y (+)= a * 2^e; operands have one shape.
    pub(super) fn ldexp(&self, a: &View<'_>, e: &View<'_>, y: &View<'_>, accumulate: bool) -> Result<()> {
        let n = y.numel();
        let m = Merged::in_order_of(2, [a.layout(), e.layout(), y.layout()]);
        let wide = is_flat(&m, [a, e, y]);
        let (rank, shape, [sa, se, sy]) = merged_axes(&m);
        let args = LdexpNdArgs {
            a: self.arg_in(a),
            e: self.arg_in(e),
            y: self.arg_in(y),
            n: n as i64,
            wide: i32::from(wide),
            rank,
            shape,
            sa,
            se,
            sy,
            accumulate: i32::from(accumulate),
        };
        let grid = Grid::Stride(if wide { n.div_ceil(vector(a.dtype())) } else { n });
        self.launch(&LDEXP_ND, a.dtype(), "", grid, &args)
    }
}
