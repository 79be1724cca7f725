//! All steps of an LSTM or a GRU in one kernel, whose blocks wait for each other.

use super::plan::{Persistent, TURN_STEP};
use super::{States, part_mut};
use crate::buffer::Buffer;
use crate::driver::Ptr;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::Grid;
use crate::error::{GpuError, Result};
use crate::ops::rnn::RnnSizes;
use crate::spec::kernels::rnn::*;

/// What the kernel of a whole sequence reads and writes besides states and gates.
pub(super) struct Sequence {
    pub(super) dtype: DType,
    pub(super) plan: Persistent,
    pub(super) sizes: RnnSizes,
    pub(super) reverse: bool,
    pub(super) w: Ptr,
    pub(super) bias: Ptr,
    pub(super) lengths: Ptr,
    /// Products of x with W_ih, and outputs: pointer, and how far apart steps and rows are.
    pub(super) a: (Ptr, (usize, usize)),
    pub(super) y: (Ptr, (usize, usize)),
    pub(super) last: [Ptr; 2],
}

/// The same of the gradients; `dx` are gradients of the gates in the order of x.
pub(super) struct SequenceBwd {
    pub(super) dtype: DType,
    pub(super) plan: Persistent,
    pub(super) sizes: RnnSizes,
    pub(super) reverse: bool,
    pub(super) keep: bool,
    pub(super) w: Ptr,
    pub(super) lengths: Ptr,
    pub(super) dy: (Ptr, (usize, usize)),
    pub(super) dx: (Ptr, (usize, usize)),
    pub(super) last: [Ptr; 2],
    pub(super) dh: Ptr,
    pub(super) dz: Ptr,
}

/// What an LSTM's gradients read and write besides: gates, cell states, the gradient of these.
pub(super) struct CellsBwd {
    pub(super) gates: Ptr,
    pub(super) c: Ptr,
    pub(super) dc: Ptr,
}

/// Scratch memory by which blocks work together.
struct Together {
    exchange: Buffer,
    turns: Buffer,
}

impl States<'_> {
    /// A place for all states that has the first, and whether it keeps them, as 1.
    fn in_place(&self, engine: &Engine) -> Result<(Ptr, i32)> {
        match (&self.saved, &self.turns) {
            (Some(all), _) => Ok((engine.arg_in(all), 1)),
            (None, Some(two)) => {
                if self.first.is_some() {
                    engine.first_state(self.first, part_mut(two, 0, &self.shape)?)?;
                }
                Ok((engine.arg_in(&two.view()), 0))
            }
            _ => Err(GpuError::invalid("rnn", "h", "a place for states", "none")),
        }
    }
}

impl Engine {
    fn together(&self, plan: Persistent, zeros: bool) -> Result<Together> {
        let exchange = self.scratch(DType::F32, plan.exchanged)?;
        let turns = self.scratch(DType::I32, plan.blocks[1] * TURN_STEP)?;
        for cleared in [Some(turns.view()), zeros.then(|| exchange.view())].iter().flatten() {
            self.fill_pattern(&[0; 8], cleared)?;
        }
        Ok(Together { exchange, turns })
    }

    /// The states of all steps, cell states too for an LSTM; `gates`: where those of an LSTM go, `save`: those of a GRU.
    pub(super) fn persistent(
        &self,
        s: &Sequence,
        hidden: &States<'_>,
        cells: Option<&States<'_>>,
        gates: Ptr,
        save: [Ptr; 4],
    ) -> Result<()> {
        let Persistent { blocks: [x, y], columns, rows, local, .. } = s.plan;
        // Only chunks behind the last column are read without having been written.
        let with = self.together(s.plan, !s.sizes.hidden.is_multiple_of(4))?;
        let (h, kept) = hidden.in_place(self)?;
        let grid = Grid::Cooperative([x, y, 1], local);
        let (n, steps) = (s.sizes.batch * s.sizes.hidden, s.sizes.steps as i32);
        let ((a, (step_a, row_a)), (y, (step_y, row_y))) = (s.a, s.y);
        let [row_a, row_y, step_a, step_y] = [row_a, row_y, step_a, step_y].map(|v| v as i64);
        let &Sequence { dtype, w, bias, lengths, last: [h_last, c_last], .. } = s;
        let (exchange, turns) = (self.arg_in(&with.exchange.view()), self.arg_in(&with.turns.view()));
        let (n, hidden, reverse) = (n as i64, s.sizes.hidden as i64, i32::from(s.reverse));
        let (columns, rows) = (columns as i32, rows as i32);
        if let Some(cells) = cells {
            let (c, kept_c) = cells.in_place(self)?;
            let kept = kept | kept_c << 1;
            let args = LstmPersistentArgs {
                w,
                a,
                bias,
                lengths,
                h,
                c,
                y,
                gates,
                h_last,
                c_last,
                exchange,
                turns,
                n,
                hidden,
                row_a,
                row_y,
                step_a,
                step_y,
                steps,
                columns,
                rows,
                reverse,
                kept,
            };
            return self.launch(&LSTM_PERSISTENT, dtype, "", grid, &args);
        }
        let [save_r, save_z, save_n, save_u] = save;
        let args = GruPersistentArgs {
            w,
            a,
            bias,
            lengths,
            h,
            y,
            save_r,
            save_z,
            save_n,
            save_u,
            h_last,
            exchange,
            turns,
            n,
            hidden,
            row_a,
            row_y,
            step_a,
            step_y,
            steps,
            columns,
            rows,
            reverse,
            kept,
        };
        self.launch(&GRU_PERSISTENT, dtype, "", grid, &args)
    }

    /// The gradients of the gates of all steps, and of the first states but for the product with the first step's. `gru`: gates r, z, n, u and states.
    pub(super) fn persistent_bwd(
        &self,
        s: &SequenceBwd,
        cells: Option<&CellsBwd>,
        gru: [Ptr; 5],
    ) -> Result<()> {
        let Persistent { blocks: [x, y], columns, rows, local, .. } = s.plan;
        let with = self.together(s.plan, false)?;
        let grid = Grid::Cooperative([x, y, 1], local);
        let (n, steps) = ((s.sizes.batch * s.sizes.hidden) as i64, s.sizes.steps as i32);
        let ((dy, (step_y, row_y)), (dx, (step_x, row_x))) = (s.dy, s.dx);
        let [row_y, row_x, step_y, step_x] = [row_y, row_x, step_y, step_x].map(|v| v as i64);
        let &SequenceBwd { dtype, w, lengths, last: [dh_last, dc_last], dh, dz, .. } = s;
        let (exchange, turns) = (self.arg_in(&with.exchange.view()), self.arg_in(&with.turns.view()));
        let (hidden, reverse, keep) = (s.sizes.hidden as i64, i32::from(s.reverse), i32::from(s.keep));
        let (columns, rows) = (columns as i32, rows as i32);
        if let Some(&CellsBwd { gates, c, dc }) = cells {
            let args = LstmPersistentBwdArgs {
                w,
                gates,
                c,
                dy,
                dh_last,
                dc_last,
                lengths,
                dh,
                dc,
                dz,
                dx,
                exchange,
                turns,
                n,
                hidden,
                row_y,
                row_x,
                step_y,
                step_x,
                steps,
                columns,
                rows,
                reverse,
                keep,
            };
            return self.launch(&LSTM_PERSISTENT_BWD, dtype, "", grid, &args);
        }
        let [r, z, m, un, h] = gru;
        let args = GruPersistentBwdArgs {
            w,
            r,
            z,
            m,
            un,
            h,
            dy,
            dh_last,
            lengths,
            dh,
            dz,
            dx,
            exchange,
            turns,
            n,
            hidden,
            row_y,
            row_x,
            step_y,
            step_x,
            steps,
            columns,
            rows,
            reverse,
        };
        self.launch(&GRU_PERSISTENT_BWD, dtype, "", grid, &args)
    }
}
