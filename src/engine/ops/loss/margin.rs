//! Row losses with kernels of their own.

use crate::buffer::View;
use crate::driver::Ptr;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, args_from, code_of_op, int, long};
use crate::engine::ops::index::scatter::wide_index;
use crate::engine::ops::loss::{Finish, flag, lanes_for};
use crate::error::Result;
use crate::ops::loss::*;
use crate::spec::BLOCK;
use crate::spec::kernels::loss::*;

/// A loss of `kernels/common/loss/margin.c`: its kind, its numbers, and the places of its operands x, y, reference and kl.
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
    /// Arguments of the forward kernel, its outputs still null, and the grid of both kernels.
    fn margin_args(
        &self,
        op: &'static str,
        m: &Margin,
        s: &RowShape,
        operands: &[Option<View<'_>>; 4],
        ids: Option<&View<'_>>,
    ) -> (MarginItemsArgs, Grid) {
        let lanes = lanes_for(s.len);
        let [x, y, reference, kl] = m.places.map(|p| self.arg_opt(p.and_then(|p| operands[p].as_ref())));
        let [p0, p1, p2] = m.p;
        let args = MarginItemsArgs {
            x,
            y,
            reference,
            kl,
            ids: self.arg_opt(ids),
            wide: ids.map_or(0, wide_index),
            err: self.arg_error(),
            code: code_of_op(op),
            rows: long(s.rows),
            len: long(s.len),
            lanes: int(lanes),
            kind: m.kind,
            p0,
            p1,
            p2,
            loss: Ptr::NULL,
            item: Ptr::NULL,
            weight: Ptr::NULL,
        };
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
        let (base, grid) = self.margin_args(op, m, s, &io.x, io.ids.as_ref());
        if reduction == Reduction::None {
            let args = MarginItemsArgs { loss: self.arg_out(&io.loss), ..base };
            return self.launch(&MARGIN_ITEMS, s.dtype, "", grid, &args);
        }
        let items = self.scratch(s.dtype.accumulator(), 2 * s.rows)?;
        let args = MarginItemsArgs {
            item: self.arg_in(&items.view().range(0, s.rows)?),
            weight: self.arg_in(&items.view().range(s.rows, s.rows)?),
            ..base
        };
        self.launch(&MARGIN_ITEMS, s.dtype, "", grid, &args)?;
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
        let (base, grid) = self.margin_args(op, m, s, &io.x, io.ids.as_ref());
        let args = args_from! { base => MarginGradArgs
            [x y reference kl ids wide err code rows len lanes kind p0 p1 p2]
            {
                gy: self.arg_in(&io.gy),
                each: flag(reduction == Reduction::None),
                narrow: flag(io.gy.dtype() == DType::F32),
                factor: if reduction == Reduction::Mean { 1.0 / s.rows as f64 } else { 1.0 },
                dx: self.arg_out(&dx.out),
                accumulate: flag(dx.accumulate),
            }
        };
        self.launch(&MARGIN_GRAD, s.dtype, "", grid, &args)
    }
}
