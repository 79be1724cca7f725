//! The segments of cells on the host, and how they learn.

use std::collections::BTreeMap;

use super::{OP, TemporalMemoryOptions};
use crate::core::error::{Result, invalid};
use crate::core::limits;

/// Permanences that count as equal, and as 0.
const EPSILON: f32 = 1e-5;

/// A random order of 0..n.
type Draw<'a> = dyn FnMut(usize) -> Result<Vec<i64>> + 'a;

/// Active cells and winner cells, as 0 and 1.
#[derive(Debug, Clone)]
pub(super) struct Active {
    pub(super) cells: Vec<u8>,
    pub(super) winners: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
struct Synapse {
    cell: usize,
    permanence: f32,
}

/// A segment that some active cells excite.
#[derive(Debug, Clone, Copy)]
struct Excited {
    segment: usize,
    cell: usize,
    /// Synapses with active cells, connected or not.
    potential: usize,
    active: bool,
}

/// Segments by their position in the table; those of cell -1 are free.
#[derive(Debug)]
pub(super) struct Segments {
    options: TemporalMemoryOptions,
    pub(super) cell: Vec<i64>,
    pub(super) last_used: Vec<i64>,
    pub(super) iteration: i64,
    synapses: Vec<Vec<Synapse>>,
}

impl Segments {
    /// Of the buffers. Errors: a cell that the `cells` do not have.
    pub(super) fn new(
        options: TemporalMemoryOptions,
        cells: usize,
        cell: Vec<i64>,
        last_used: Vec<i64>,
        presynaptic: &[i32],
        permanence: &[f32],
        iteration: i64,
    ) -> Result<Self> {
        let within = |c: i64| usize::try_from(c).is_ok_and(|c| c < cells);
        let all = cell.iter().copied().chain(presynaptic.iter().map(|&c| c.into()));
        if let Some(bad) = all.filter(|&c| c != -1).find(|&c| !within(c)) {
            return Err(invalid(OP, "state", format!("cells below {cells}, or -1"), format!("{bad}")));
        }
        let width = options.max_synapses_per_segment;
        let rows = presynaptic.chunks(width).zip(permanence.chunks(width));
        let row = |(cells, permanences): (&[i32], &[f32])| {
            let synapse = |(&cell, &permanence): (&i32, &f32)| {
                usize::try_from(cell).ok().map(|cell| Synapse { cell, permanence })
            };
            cells.iter().zip(permanences).filter_map(synapse).collect()
        };
        Ok(Segments { options, cell, last_used, iteration, synapses: limits::collect(rows.map(row))? })
    }

    /// Cells and permanences of the synapses as padded tables.
    pub(super) fn table(&self) -> Result<(Vec<i32>, Vec<f32>)> {
        let width = self.options.max_synapses_per_segment;
        let (mut cells, mut permanences) = (vec![], vec![]);
        limits::reserve(&mut cells, self.cell.len() * width)?;
        limits::reserve(&mut permanences, self.cell.len() * width)?;
        for row in &self.synapses {
            let padding = width - row.len();
            cells.extend(row.iter().map(|s| s.cell as i32).chain(std::iter::repeat_n(-1, padding)));
            permanences.extend(row.iter().map(|s| s.permanence).chain(std::iter::repeat_n(0.0, padding)));
        }
        Ok((cells, permanences))
    }

    /// The segments with enough synapses from active cells to match, by column and in the order of their cells.
    fn excited(&self, active: &[u8]) -> BTreeMap<usize, Vec<Excited>> {
        let o = &self.options;
        let mut all = BTreeMap::<usize, Vec<Excited>>::new();
        for (segment, &cell) in self.cell.iter().enumerate() {
            let Ok(cell) = usize::try_from(cell) else { continue };
            let on = || self.synapses[segment].iter().filter(|s| active[s.cell] == 1);
            let connected = |s: &&Synapse| s.permanence + EPSILON >= o.connected_permanence as f32;
            let (potential, connected) = (on().count(), on().filter(connected).count());
            let active = connected >= o.activation_threshold;
            if potential >= o.min_threshold {
                let column = all.entry(cell / o.cells_per_column).or_default();
                column.push(Excited { segment, cell, potential, active });
            }
        }
        all.values_mut().for_each(|column| column.sort_by_key(|e| e.cell));
        all
    }

    /// The cells, as 0 and 1, that have an active segment.
    pub(super) fn predicted(&self, active: &Active) -> Vec<u8> {
        let mut cells = vec![0; active.cells.len()];
        for e in self.excited(&active.cells).values().flatten().filter(|e| e.active) {
            cells[e.cell] = 1;
        }
        cells
    }

    /// One step: what is active after these columns were. Errors: more segments than there is room for.
    pub(super) fn step(
        &mut self,
        before: &Active,
        columns: &[usize],
        learn: bool,
        draw: &mut Draw<'_>,
    ) -> Result<Active> {
        let mut excited = self.excited(&before.cells);
        if learn {
            for e in excited.values().flatten().filter(|e| e.active) {
                self.last_used[e.segment] = self.iteration;
            }
            self.iteration += 1;
        }
        let nothing = vec![0; before.cells.len()];
        let mut after = Active { cells: nothing.clone(), winners: nothing };
        for &column in columns {
            let segments = excited.remove(&column).unwrap_or_default();
            if segments.iter().any(|e| e.active) {
                for e in segments.iter().filter(|e| e.active) {
                    (after.cells[e.cell], after.winners[e.cell]) = (1, 1);
                    if learn {
                        self.reinforce(e, before, draw)?;
                    }
                }
                continue;
            }
            let m = self.options.cells_per_column;
            after.cells[column * m..(column + 1) * m].fill(1);
            let winner = self.burst(column, &segments, before, learn, draw)?;
            after.winners[winner] = 1;
        }
        // What is left predicted columns that did not become active.
        let loss = self.options.predicted_segment_decrement as f32;
        if learn && loss > 0.0 {
            for e in excited.values().flatten() {
                self.adapt(e.segment, &before.cells, -loss, 0.0);
            }
        }
        Ok(after)
    }

    /// The winner of a column that no cell had predicted.
    fn burst(
        &mut self,
        column: usize,
        matching: &[Excited],
        before: &Active,
        learn: bool,
        draw: &mut Draw<'_>,
    ) -> Result<usize> {
        // The first of those that match best.
        if let Some(best) = matching.iter().rev().max_by_key(|e| e.potential) {
            if learn {
                self.reinforce(best, before, draw)?;
            }
            return Ok(best.cell);
        }
        let winner = self.least_used(column, draw)?;
        let previous = before.winners.iter().filter(|&&w| w == 1).count();
        if learn && previous > 0 {
            let segment = self.create(winner)?;
            self.grow(segment, self.options.max_new_synapse_count, before, draw)?;
        }
        Ok(winner)
    }

    /// The cell of a column with the fewest segments; of several a random one.
    fn least_used(&self, column: usize, draw: &mut Draw<'_>) -> Result<usize> {
        let m = self.options.cells_per_column;
        let mut counts = vec![0usize; m];
        for &cell in &self.cell {
            if let Some(k) =
                usize::try_from(cell).ok().and_then(|c| c.checked_sub(column * m)).filter(|&k| k < m)
            {
                counts[k] += 1;
            }
        }
        let least = counts.iter().min().copied().unwrap_or(0);
        let ties: Vec<usize> = (0..m).filter(|&k| counts[k] == least).collect();
        let chosen = if ties.len() > 1 { draw(ties.len())?[0] as usize } else { 0 };
        Ok(column * m + ties[chosen])
    }

    /// A new segment of a cell, in place of its longest unused one where it has too many. Errors: no room.
    fn create(&mut self, cell: usize) -> Result<usize> {
        let own: Vec<usize> = (0..self.cell.len()).filter(|&s| self.cell[s] == cell as i64).collect();
        if own.len() >= self.options.max_segments_per_cell
            && let Some(&oldest) = own.iter().min_by_key(|&&s| self.last_used[s])
        {
            self.remove(oldest);
        }
        let Some(free) = self.cell.iter().position(|&c| c < 0) else {
            let expected = format!("room for more than {} segments", self.cell.len());
            return Err(invalid(OP, "capacity", expected, format!("{}", self.options.capacity)));
        };
        (self.cell[free], self.last_used[free]) = (cell as i64, self.iteration);
        Ok(free)
    }

    fn remove(&mut self, segment: usize) {
        (self.cell[segment], self.last_used[segment]) = (-1, 0);
        self.synapses[segment].clear();
    }

    /// Strengthens what a segment has learned, and adds to it.
    fn reinforce(&mut self, e: &Excited, before: &Active, draw: &mut Draw<'_>) -> Result<()> {
        let (inc, dec) = (self.options.permanence_increment, self.options.permanence_decrement);
        self.adapt(e.segment, &before.cells, inc as f32, dec as f32);
        let more = self.options.max_new_synapse_count.saturating_sub(e.potential);
        self.grow(e.segment, more, before, draw)
    }

    /// Moves the permanences of synapses with active cells up by `inc` and of others down by `dec`. What comes to 0 goes.
    fn adapt(&mut self, segment: usize, active: &[u8], inc: f32, dec: f32) {
        for s in &mut self.synapses[segment] {
            let change = if active[s.cell] == 1 { inc } else { -dec };
            s.permanence = (s.permanence + change).clamp(0.0, 1.0);
        }
        self.synapses[segment].retain(|s| s.permanence >= EPSILON);
        if self.synapses[segment].is_empty() {
            self.remove(segment);
        }
    }

    /// Adds up to `n` synapses with random winners of the step before that the segment has none with.
    fn grow(&mut self, segment: usize, n: usize, before: &Active, draw: &mut Draw<'_>) -> Result<()> {
        let has = |c: usize| self.synapses[segment].iter().any(|s| s.cell == c);
        let candidates: Vec<usize> =
            (0..before.winners.len()).filter(|&c| before.winners[c] == 1 && !has(c)).collect();
        let n = n.min(candidates.len());
        self.make_room(segment, n, &before.winners);
        let n = n.min(self.options.max_synapses_per_segment - self.synapses[segment].len());
        let chosen: Vec<usize> = match n == candidates.len() {
            true => candidates,
            false if n == 0 => vec![],
            false => draw(candidates.len())?.iter().take(n).map(|&i| candidates[i as usize]).collect(),
        };
        let permanence = self.options.initial_permanence as f32;
        self.synapses[segment].extend(chosen.into_iter().map(|cell| Synapse { cell, permanence }));
        Ok(())
    }

    /// Removes the weakest synapses, but for those with winners, where `n` more would be too many.
    fn make_room(&mut self, segment: usize, n: usize, winners: &[u8]) {
        let row = &mut self.synapses[segment];
        for _ in self.options.max_synapses_per_segment..row.len() + n {
            let others = row.iter().enumerate().filter(|(_, s)| winners[s.cell] == 0);
            let Some((weakest, _)) = others.min_by(|a, b| a.1.permanence.total_cmp(&b.1.permanence)) else {
                return;
            };
            row.remove(weakest);
        }
    }
}
