//! Row losses with kernels of their own.

use crate::spec::kernels::loss::*;
use crate::buffer::View;
use crate::driver::Arg;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, code_of_op, int, long, real};
use crate::engine::ops::index::scatter::wide_index;
use crate::engine::ops::loss::{Finish, flag, lanes_for};
use crate::error::Result;
use crate::ops::loss::*;
use crate::spec::BLOCK;

/// Kind and numbers of a loss of `loss_margin.c`, and the places of its operands x, y, ref and kl.
pub(in crate::engine::ops) struct Margin {
    kind: i32,
    p: [f64; 3],
    places: [Option<usize>; 4],
}

pub(in crate::engine::ops) fn margin_kernel(kind: RowLoss) -> Option<Margin> {
    match kind {
        RowLoss::Circle { scale, margin, detach } => Some(Margin {
            kind: 0,
            p: [scale, margin, f64::from(u8::from(detach))],
            places: [Some(0), Some(1), None, None],
        }),
        RowLoss::Kto { beta, desirable, undesirable } => Some(Margin {
            kind: 1,
            p: [beta, desirable, undesirable],
            places: [Some(0), Some(2), Some(1), Some(3)],
        }),
        _ => None,
    }
}

impl Engine {
    /// Arguments that both kernels have, and the grid.
    fn margin_head(
        &self,
        op: &'static str,
        m: &Margin,
        s: &RowShape,
        x: &[Option<View<'_>>; 4],
        ids: Option<&View<'_>>,
    ) -> (Vec<Arg>, Grid) {
        let lanes = lanes_for(s.len);
        let mut args: Vec<Arg> =
            m.places.iter().map(|p| self.arg_opt(p.and_then(|p| x[p].as_ref()))).collect();
        args.extend([
            self.arg_opt(ids),
            ids.map_or(Arg::I32(0), wide_index),
            self.arg_error(),
            Arg::I32(code_of_op(op)),
            long(s.rows),
            long(s.len),
            int(lanes),
            Arg::I32(m.kind),
        ]);
        args.extend(m.p.map(|p| real(s.dtype, p)));
        let blocks = s.rows.div_ceil(BLOCK as usize / lanes).min(1 << 20);
        (args, Grid::Blocks([blocks, 1, 1]))
    }

    pub(in crate::engine::ops) fn margin_loss(
        &self,
        op: &'static str,
        m: &Margin,
        s: &RowShape,
        reduction: Reduction,
        io: &RowLossFwd<'_>,
    ) -> Result<()> {
        let (mut args, grid) = self.margin_head(op, m, s, &io.x, io.ids.as_ref());
        if reduction == Reduction::None {
            args.extend([self.arg_out(&io.loss), Arg::Mem(None), Arg::Mem(None)]);
            return self.launch_list(&MARGIN_ITEMS.spec, s.dtype, "", grid, &args);
        }
        let items = self.scratch(s.dtype.accumulator(), 2 * s.rows)?;
        let half = |i: usize| Ok::<_, crate::GpuError>(self.arg_in(&items.view().range(i * s.rows, s.rows)?));
        args.extend([Arg::Mem(None), half(0)?, half(1)?]);
        self.launch_list(&MARGIN_ITEMS.spec, s.dtype, "", grid, &args)?;
        let how = Finish::new(reduction == Reduction::Mean, s.rows as f64);
        self.finish_items(s.dtype, &items, s.rows, how, Some(&io.loss), None)
    }

    pub(in crate::engine::ops) fn margin_loss_bwd(
        &self,
        op: &'static str,
        m: &Margin,
        s: &RowShape,
        reduction: Reduction,
        io: &RowLossBwd<'_>,
    ) -> Result<()> {
        let Some(dx) = &io.dx[0] else { return Ok(()) };
        let (mut args, grid) = self.margin_head(op, m, s, &io.x, io.ids.as_ref());
        let factor = if reduction == Reduction::Mean { 1.0 / s.rows as f64 } else { 1.0 };
        args.extend([
            self.arg_in(&io.gy),
            flag(reduction == Reduction::None),
            flag(io.gy.dtype() == DType::F32),
            real(s.dtype, factor),
            self.arg_out(&dx.out),
            flag(dx.accumulate),
        ]);
        self.launch_list(&MARGIN_GRAD.spec, s.dtype, "", grid, &args)
    }
}
