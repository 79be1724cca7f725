//! Matrix products in f32, in f64 for f64 data; what comes before and after them in the same type.

mod bilinear;

use std::borrow::Cow;

use bytemuck::Pod;
use rayon::prelude::*;

use crate::buffer::{GradMut, HostData, View, ViewMut};
use crate::cpu::activation;
use crate::cpu::matmul::{Element, Place, product};
use crate::cpu::scratch::*;
use crate::cpu::values::{Share, Values, change_all, each_chunk, each_chunk_in};
use crate::cpu::vector::{self, simd};
use crate::cpu::{
    HostElement, Kernels, gather, gather_f64, read, store_f64, store_grad, with_dtype, write, wrong_storage,
};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::activation::Activation;
use crate::ops::gemm::*;

/// Multiplications below which one thread is faster than several.
const SMALL: usize = 48 * 48 * 256;
/// Elements of an epilogue below which one thread is faster than several.
const FEW: usize = 1 << 14;

/// The type of the arithmetic: f64 for f64 data, else f32.
trait Real: HostElement + Element {
    /// y = act(y)
    fn activate(act: Activation, y: &mut [Self]);
    /// d times the derivative of an activation at the tensor that [`GemmBwd::saved`] holds.
    fn differentiate(act: Activation, d: &mut [Self], saved: &[Self]);
}

impl Real for f32 {
    fn activate(act: Activation, y: &mut [f32]) {
        vector::activation::activate(act, y);
    }

    fn differentiate(act: Activation, d: &mut [f32], saved: &[f32]) {
        match act.reads_output() {
            true => vector::activation::differentiate_from_output(act, d, saved),
            false => vector::activation::differentiate(act, d, saved),
        }
    }
}

impl Real for f64 {
    fn activate(act: Activation, y: &mut [f64]) {
        y.iter_mut().for_each(|y| *y = activation::value(act, *y));
    }

    fn differentiate(act: Activation, d: &mut [f64], saved: &[f64]) {
        let slope = if act.reads_output() { activation::from_output } else { activation::gradient };
        d.iter_mut().zip(saved).for_each(|(d, s)| *d = slope(act, *d, *s));
    }
}

/// A batch of matrices: first element, and strides by row, column and batch.
struct Matrix<'a, T: Clone> {
    data: Cow<'a, [T]>,
    at: usize,
    steps: [usize; 3],
}

impl<'a, T: Real> Matrix<'a, T> {
    /// The view's elements in place if their storage is readable through `held`, else a copy.
    fn new(op: &'static str, v: &View<'_>, trans: bool, held: Option<&'a HostData>) -> Result<Self> {
        if let Some(s) = held.and_then(T::slice) {
            return Ok(Matrix { data: s.into(), at: v.layout().offset(), steps: steps(v, trans) });
        }
        let repeated = v.shape().len() == 3 && v.shape()[0] > 1 && steps(v, trans)[2] == 0;
        let one = if repeated { v.map("batch", |l| l.select(0, 0))? } else { *v };
        let s = one.shape();
        let (r, c) = (s[s.len() - 2], s[s.len() - 1]);
        let [rows, cols] = if trans { [1, c] } else { [c, 1] };
        let batch = if s.len() == 3 && s[0] > 1 { r * c } else { 0 };
        Ok(Matrix { data: values(op, one)?.into(), at: 0, steps: [rows, cols, batch] })
    }

    /// The same from an element further on.
    fn skip(&self, elements: usize) -> Matrix<'_, T> {
        Matrix { data: Cow::Borrowed(&self.data), at: self.at + elements, steps: self.steps }
    }

    fn transposed(&self) -> Matrix<'_, T> {
        let [r, c, b] = self.steps;
        Matrix { data: Cow::Borrowed(&self.data), at: self.at, steps: [c, r, b] }
    }

    fn place(&self, batch: usize) -> Place {
        Place { at: self.at + batch * self.steps[2], rows: self.steps[0], cols: self.steps[1] }
    }
}

/// The view's elements in row-major order, in the type of the arithmetic.
fn values<T: Real>(op: &'static str, v: View<'_>) -> Result<Vec<T>> {
    if v.dtype() == T::DTYPE {
        return gather(op, v);
    }
    with_dtype!(v.dtype(), S => gather::<S>(op, v)?.into_iter().map(|x| T::from_f64(HostElement::to_f64(x))).try_vec())
}

/// Y = alpha A B + beta Y for every batch. `y` starts at element `at` of its slice; batches of it that share their matrix are summed.
#[allow(clippy::too_many_arguments)]
fn multiply<T: Real>(
    op: &'static str,
    e: Extents,
    alpha: f64,
    (a, b): (&Matrix<'_, T>, &Matrix<'_, T>),
    beta: f64,
    y: &mut [T],
    at: usize,
    ys: [usize; 3],
) -> Result<()> {
    let (alpha, k) = (T::from_f64(alpha), if alpha == 0.0 { 0 } else { e.k });
    if e.batch == 0 || e.m == 0 || e.n == 0 {
        return Ok(());
    }
    let size = e.m * e.n * k;
    let one = |i: usize, y: &mut [T], at: usize, threads: bool| {
        let place = Place { at, rows: ys[0], cols: ys[1] };
        let beta = if i > 0 && ys[2] == 0 { 1.0 } else { beta };
        let (a, b) = ((&*a.data, a.place(i)), (&*b.data, b.place(i)));
        product(op, (e.m, e.n, k), alpha, a, b, T::from_f64(beta), (y, place), threads)
    };
    let span = (e.m - 1) * ys[0] + (e.n - 1) * ys[1] + 1;
    if e.batch > 1 && size < SMALL && size * e.batch >= SMALL && ys[2] >= span {
        // Many small products: one thread for each.
        let all = &mut y[at..at + (e.batch - 1) * ys[2] + span];
        each_chunk_in(all, ys[2], Share::ANY, &|| Ok(()), &|(), i, y| one(i, y, 0, false))
    } else {
        (0..e.batch).try_for_each(|i| one(i, y, at + i * ys[2], size >= SMALL))
    }
}

/// The view's elements in row-major order, in the type of the arithmetic: in place where they lie so. `others` as for [`Values::new`].
fn operand<'a, T: Real>(op: &'static str, v: View<'a>, others: &[u64]) -> Result<Values<'a, T>> {
    match v.dtype() == T::DTYPE {
        true => Values::new(op, v, others),
        false => values(op, v).map(Values::Copied),
    }
}

/// What is added to the product, in row-major order, and the activation of the sum.
struct Epilogue<'a, T> {
    scale: Option<(Vec<T>, GemmAxis)>,
    c: Option<(Values<'a, T>, f64)>,
    bias: Option<(Vec<T>, GemmAxis)>,
    residual: Option<Values<'a, T>>,
    act: Activation,
}

impl<T: Real> Epilogue<'_, T> {
    fn is_empty(&self) -> bool {
        let nothing_added = self.scale.is_none() && self.c.is_none() && self.bias.is_none();
        nothing_added && self.residual.is_none() && self.act == Activation::Identity
    }

    /// Applies it to contiguous products in one pass. `z`: room for what the activation reads, if that is wanted.
    fn apply(&self, e: Extents, y: &mut [T], z: Option<&mut [T]>) {
        let Some(z) = z else {
            return each_row(y, e.n, |r, row| {
                self.add(e, r, row);
                T::activate(self.act, row);
            });
        };
        let one = |(r, (row, z)): (usize, (&mut [T], &mut [T]))| {
            self.add(e, r, row);
            z.copy_from_slice(row);
            T::activate(self.act, row);
        };
        match y.len() < FEW {
            true => y.chunks_mut(e.n.max(1)).zip(z.chunks_mut(e.n.max(1))).enumerate().for_each(one),
            false => y
                .par_chunks_mut(e.n)
                .zip(z.par_chunks_mut(e.n))
                .enumerate()
                .for_each(&one as &(dyn Fn(_) + Sync)),
        }
    }

    /// Scales row `r` and adds to it.
    fn add(&self, e: Extents, r: usize, row: &mut [T]) {
        let part = r * e.n..(r + 1) * e.n;
        simd!({
            match &self.scale {
                Some((v, GemmAxis::Row)) => row.iter_mut().for_each(|y| *y = *y * v[r % e.m]),
                Some((v, _)) => row.iter_mut().zip(v).for_each(|(y, v)| *y = *y * *v),
                None => {}
            }
            if let Some((c, beta)) = &self.c {
                let beta = T::from_f64(*beta);
                row.iter_mut().zip(&c[part.clone()]).for_each(|(y, c)| *y = *y + beta * *c);
            }
            match &self.bias {
                Some((v, GemmAxis::Row)) => row.iter_mut().for_each(|y| *y = *y + v[r % e.m]),
                Some((v, _)) => row.iter_mut().zip(v).for_each(|(y, v)| *y = *y + *v),
                None => {}
            }
            if let Some(v) = &self.residual {
                row.iter_mut().zip(&v[part]).for_each(|(y, v)| *y = *y + *v);
            }
        });
    }
}

/// Calls `f` with each row and its number.
fn each_row<T: Pod>(y: &mut [T], n: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    if n == 0 {
        return;
    }
    if y.len() < FEW {
        y.chunks_mut(n).enumerate().for_each(|(r, row)| f(r, row));
    } else {
        each_chunk(y, n, Share::ANY, &f);
    }
}

impl Kernels {
    fn forward<'a, T: Real>(&self, p: &Gemm, e: Extents, io: GemmIo<'a>) -> Result<()> {
        let op = "gemm";
        let y = io.y;
        let (of_y, of_z) = (y.as_view().block().id(), io.z.as_ref().map(|z| z.as_view().block().id()));
        let written = |v: &View<'_>| v.block().id() == of_y || Some(v.block().id()) == of_z;
        let c = io.c.filter(|_| p.beta != 0.0);
        let onto_c = c.is_some_and(|c| c.block().id() == of_y && c.layout() == y.layout());
        // Beta is left to the product where it can be: C is Y itself and nothing comes between.
        let in_product = onto_c && io.scale.is_none() && y.dtype() == T::DTYPE;
        let list = |v: Option<View<'_>>| v.map(|v| values::<T>(op, v)).transpose();
        let axis = |v: Option<View<'_>>, a: GemmAxis| Ok(list(v)?.map(|v| (v, a)));
        fn broadcast<'a>(c: View<'a>, e: Extents, y: &ViewMut<'_>) -> Result<View<'a>> {
            let mut shape = filled(y.shape().len() - 2, e.batch)?;
            shape.try_extend([e.m, e.n])?;
            let squeezed =
                if shape.len() == 2 && c.shape().len() == 3 { c.map("batch", |l| l.squeeze(0))? } else { c };
            squeezed.broadcast_to(&shape)
        }
        let c = c.filter(|_| !in_product).map(|c| broadcast(c, e, &y)).transpose()?;
        let id = |v: &View<'_>| v.block().id();
        let locked = [Some(of_y), of_z, Some(id(&io.a)), Some(id(&io.b))];
        let epilogue = {
            let [of_c, of_residual] = [c, io.residual].map(|v| v.as_ref().map(id));
            let apart = |v: Option<View<'a>>, other: Option<u64>| {
                let others: Vec<u64> = locked.into_iter().chain([other]).flatten().try_vec()?;
                v.map(|v| operand::<T>(op, v, &others)).transpose()
            };
            Epilogue::<T> {
                scale: axis(io.scale, p.scale_axis)?,
                bias: axis(io.bias, p.bias_axis)?,
                c: apart(c, of_residual)?.map(|v| (v, p.beta)),
                residual: apart(io.residual, of_c)?,
                act: p.act,
            }
        };
        {
            // A and B are read in place unless a block that is locked for writing holds them.
            let ga = if written(&io.a) { None } else { Some(read(op, &io.a)?) };
            let same = io.a.block().id() == io.b.block().id();
            let gb = if written(&io.b) || same { None } else { Some(read(op, &io.b)?) };
            let hb = if same { ga.as_deref() } else { gb.as_deref() };
            let a = Matrix::<T>::new(op, &io.a, p.trans_a, ga.as_deref())?;
            let b = Matrix::<T>::new(op, &io.b, p.trans_b, hb)?;
            let plain = epilogue.is_empty() && io.z.is_none();
            let beta = if in_product { p.beta } else { 0.0 };
            let z_apart = of_z != Some(of_y);
            let finish = |work: &mut [T]| match &io.z {
                None => {
                    epilogue.apply(e, work, None);
                    Ok(())
                }
                Some(z) if z.dtype() == T::DTYPE => change_all(op, z, |z| {
                    epilogue.apply(e, work, Some(z));
                    Ok(())
                }),
                Some(z) => {
                    let mut sums = filled(work.len(), T::default())?;
                    epilogue.apply(e, work, Some(&mut sums));
                    store_real(op, z, &sums)
                }
            };
            if y.dtype() == T::DTYPE && (plain || (y.is_contiguous() && z_apart)) {
                let (at, ys) = (y.layout().offset(), steps(&y.as_view(), false));
                let mut g = write(op, &y)?;
                let s = T::slice_mut(&mut g).ok_or_else(|| wrong_storage(op, T::DTYPE))?;
                multiply(op, e, p.alpha, (&a, &b), beta, s, at, ys)?;
                if !plain {
                    finish(&mut s[at..at + e.batch * e.m * e.n])?;
                }
            } else {
                let mut work = if in_product {
                    values::<T>(op, y.as_view())?
                } else {
                    filled(e.batch * e.m * e.n, T::default())?
                };
                multiply(op, e, p.alpha, (&a, &b), beta, &mut work, 0, [e.n, 1, e.m * e.n])?;
                finish(&mut work)?;
                store_real(op, &y, &work)?;
            }
        }
        // What it holds may lie in the block of the sums.
        drop(epilogue);
        if let Some(colsum) = &io.colsum {
            let values = gather_f64(op, y.as_view())?;
            let mut sums = filled(e.n, 0.0)?;
            values.iter().enumerate().for_each(|(i, v)| sums[i % e.n] += v);
            store_f64(op, colsum, &sums)?;
        }
        Ok(())
    }

    fn backward<T: Real>(&self, p: &Gemm, e: Extents, io: GemmBwd<'_>) -> Result<()> {
        let op = "gemm_bwd";
        // Operands are read in place, unless two of them, or one and a gradient, lie in one block: a block is locked once.
        let read_blocks = [io.dy, io.a, io.b].map(|v| v.block().id());
        let written = [&io.da, &io.db, &io.dbias].into_iter().flatten().map(|g| g.out.block().id());
        let apart = written.into_iter().any(|b| read_blocks.contains(&b))
            || read_blocks[1..].contains(&read_blocks[0]);
        let held = |v| if apart { Ok(None) } else { read(op, v).map(Some) };
        let saved = io.saved.filter(|_| p.act != Activation::Identity);
        let in_place =
            !apart && saved.is_none() && io.dy.dtype() == T::DTYPE && io.dy.layout().is_contiguous();
        let mut changed = Vec::new();
        if let Some(saved) = saved {
            let dy = operand::<T>(op, io.dy, &[])?;
            let saved = operand::<T>(op, saved, &[io.dy.block().id()])?;
            changed = filled(dy.len(), T::default())?;
            each_row(&mut changed, e.n, |r, row| {
                let part = r * e.n..(r + 1) * e.n;
                row.copy_from_slice(&dy[part.clone()]);
                T::differentiate(p.act, row, &saved[part]);
            });
        } else if !in_place {
            changed = values::<T>(op, io.dy)?;
        }
        let guard = if in_place { held(&io.dy)? } else { None };
        let dz = match guard.as_deref().and_then(T::slice) {
            Some(s) => &s[io.dy.layout().offset()..][..e.batch * e.m * e.n],
            None => &changed,
        };
        if let Some(g) = &io.dbias {
            let sums = match p.bias_axis {
                GemmAxis::Row => row_sums(dz, e)?,
                _ => vector::matrix_column_sums(dz, e.n)?,
            };
            store_grad(op, g, &sums)?;
        }
        let dz = Matrix { data: dz.into(), at: 0, steps: [e.n, 1, e.m * e.n] };
        // dA = alpha dZ op(B)^T and dB = alpha op(A)^T dZ, as the stored layout has it.
        if let Some(g) = &io.da {
            let guard = held(&io.b)?;
            let b = Matrix::<T>::new(op, &io.b, p.trans_b, guard.as_deref())?;
            let ext = Extents { batch: e.batch, m: e.m, n: e.k, k: e.n };
            gradient(op, ext, p.alpha, (&dz, &b.transposed()), p.trans_a, g)?;
        }
        if let Some(g) = &io.db {
            let guard = held(&io.a)?;
            let a = Matrix::<T>::new(op, &io.a, p.trans_a, guard.as_deref())?;
            let ext = Extents { batch: e.batch, m: e.k, n: e.n, k: e.m };
            gradient(op, ext, p.alpha, (&a.transposed(), &dz), p.trans_b, g)?;
        }
        Ok(())
    }

    fn ragged<T: Real>(&self, p: &Gemm, e: Extents, io: GemmRagged<'_>) -> Result<()> {
        let op = "gemm_ragged";
        let groups = self.row_groups(op, io.offsets, e.m)?;
        let (a, b) =
            (Matrix::<T>::new(op, &io.a, false, None)?, Matrix::<T>::new(op, &io.b, p.trans_b, None)?);
        let bias = io.bias.map(|v| values::<T>(op, v)).transpose()?;
        let mut out = filled(e.m * e.n, T::default())?;
        for (g, rows) in groups.windows(2).enumerate() {
            let ext = Extents { batch: 1, m: rows[1] - rows[0], n: e.n, k: e.k };
            let (a, b) = (a.skip(rows[0] * a.steps[0]), b.skip(g * b.steps[2]));
            multiply(op, ext, p.alpha, (&a, &b), 0.0, &mut out, rows[0] * e.n, [e.n, 1, 0])?;
            if let Some(bias) = &bias {
                each_row(&mut out[rows[0] * e.n..rows[1] * e.n], e.n, |_, row| {
                    row.iter_mut().zip(&bias[g * e.n..]).for_each(|(y, b)| *y = *y + *b);
                });
            }
        }
        if let Some(z) = &io.z {
            store_real(op, z, &out)?;
        }
        if let (Some(&first), Some(&last)) = (groups.first(), groups.last())
            && p.act != Activation::Identity
        {
            each_row(&mut out[first * e.n..last * e.n], e.n, |_, row| T::activate(p.act, row));
        }
        store_real(op, &io.y, &out)
    }

    /// For each group alpha A^T dZ over its rows; `e` is that of the gradient as it is stored.
    fn ragged_backward<T: Real>(&self, p: &Gemm, e: Extents, io: GemmRaggedBwd<'_>) -> Result<()> {
        let op = "gemm_ragged_bwd";
        let groups = self.row_groups(op, io.offsets, e.k)?;
        let (a, dz) = (Matrix::<T>::new(op, &io.a, false, None)?, Matrix::<T>::new(op, &io.dz, false, None)?);
        let (left, right) = if p.trans_b { (dz, a) } else { (a, dz) };
        let mut out = filled(e.batch * e.m * e.n, T::default())?;
        for (g, rows) in groups.windows(2).enumerate() {
            let ext = Extents { batch: 1, k: rows[1] - rows[0], ..e };
            let (left, right) = (left.skip(rows[0] * left.steps[0]), right.skip(rows[0] * right.steps[0]));
            let factors = (&left.transposed(), &right);
            multiply(op, ext, p.alpha, factors, 0.0, &mut out, g * e.m * e.n, [e.n, 1, 0])?;
        }
        store_gradient(op, &io.db, &out)?;
        let Some(g) = &io.dbias else { return Ok(()) };
        let (n, dz) = (io.dz.shape()[1], gather_f64(op, io.dz)?);
        let mut sums = filled(e.batch * n, 0.0)?;
        for (g, rows) in groups.windows(2).enumerate() {
            for r in rows[0]..rows[1] {
                let row = &dz[r * n..(r + 1) * n];
                sums[g * n..(g + 1) * n].iter_mut().zip(row).for_each(|(s, x)| *s += x);
            }
        }
        store_grad(op, g, &sums)
    }

    /// Where groups of rows begin and the last one ends; wrong offsets are reported and taken as the nearest valid ones.
    pub(crate) fn row_groups(&self, op: &'static str, offsets: View<'_>, rows: usize) -> Result<Vec<usize>> {
        let offsets = gather::<i32>(op, offsets)?;
        let mut bounds = with_capacity(offsets.len())?;
        let mut low = 0;
        for &o in &offsets {
            let valid = usize::try_from(o).unwrap_or(0).clamp(low, rows);
            if valid as i64 != i64::from(o) {
                self.flag_index_error(op);
            }
            bounds.try_push(valid)?;
            low = valid;
        }
        Ok(bounds)
    }
}

/// Stores or adds alpha A B, or its transposes; the sum over all batches where the gradient has one matrix for them.
fn gradient<T: Real>(
    op: &'static str,
    e: Extents,
    alpha: f64,
    factors: (&Matrix<'_, T>, &Matrix<'_, T>),
    trans: bool,
    g: &GradMut<'_>,
) -> Result<()> {
    let sum = repeats(&g.out.as_view(), e.batch);
    let per_batch = if sum { 0 } else { e.m * e.n };
    let [rows, cols] = if trans { [1, e.m] } else { [e.n, 1] };
    let out = &g.out;
    if out.dtype() == T::DTYPE && out.is_contiguous() {
        let mut guard = write(op, out)?;
        let y = T::slice_mut(&mut guard).ok_or_else(|| wrong_storage(op, T::DTYPE))?;
        let beta = if g.accumulate { 1.0 } else { 0.0 };
        return multiply(op, e, alpha, factors, beta, y, out.layout().offset(), [rows, cols, per_batch]);
    }
    let mut work = filled(if sum { e.m * e.n } else { e.batch * e.m * e.n }, T::default())?;
    multiply(op, e, alpha, factors, 0.0, &mut work, 0, [rows, cols, per_batch])?;
    store_gradient(op, g, &work)
}

/// Sums of the rows of m columns each, over all batches.
fn row_sums<T: Real>(x: &[T], e: Extents) -> Result<Vec<f64>> {
    let mut sums = filled(e.m, 0.0)?;
    for (r, row) in x.chunks(e.n.max(1)).enumerate() {
        sums[r % e.m] += row.iter().map(|x| x.to_f64()).sum::<f64>();
    }
    Ok(sums)
}

/// Stores row-major values of the arithmetic's type, rounded to the view's dtype.
fn store_real<T: Real>(op: &'static str, v: &ViewMut<'_>, data: &[T]) -> Result<()> {
    if v.dtype() == T::DTYPE {
        return super::store(op, v, data);
    }
    with_dtype!(v.dtype(), S => super::update::<S>(op, v, |i, x| *x = HostElement::from_f64(data[i].to_f64())))
}

/// Stores or adds row-major values.
fn store_gradient<T: Real>(op: &'static str, g: &GradMut<'_>, data: &[T]) -> Result<()> {
    if !g.accumulate {
        return store_real(op, &g.out, data);
    }
    with_dtype!(g.out.dtype(), S => super::update::<S>(op, &g.out, |i, x| {
        *x = HostElement::from_f64(HostElement::to_f64(*x) + data[i].to_f64());
    }))
}

impl GemmOps for Kernels {
    fn gemm(&self, p: &Gemm, io: GemmIo<'_>) -> Result<()> {
        let e = check_gemm(p, &io)?;
        let _timed = self.count("gemm");
        match io.a.dtype() {
            DType::F64 => self.forward::<f64>(p, e, io),
            _ => self.forward::<f32>(p, e, io),
        }
    }

    fn gemm_bwd(&self, p: &Gemm, io: GemmBwd<'_>) -> Result<()> {
        let e = check_gemm_bwd(p, &io)?;
        let _timed = self.count("gemm_bwd");
        match io.a.dtype() {
            DType::F64 => self.backward::<f64>(p, e, io),
            _ => self.backward::<f32>(p, e, io),
        }
    }

    fn gemm_grouped(&self, p: &Gemm, a: &[View<'_>], b: &[View<'_>], y: &mut [ViewMut<'_>]) -> Result<()> {
        check_gemm_grouped(p, a, b, y)?;
        let p = Gemm::new().scaled(p.alpha, 0.0).trans(p.trans_a, p.trans_b);
        a.iter().zip(b).zip(y).try_for_each(|((a, b), y)| self.gemm(&p, GemmIo::new(*a, *b, y.reborrow())))
    }

    fn gemm_ragged(&self, p: &Gemm, io: GemmRagged<'_>) -> Result<()> {
        let e = check_gemm_ragged(p, &io)?;
        let _timed = self.count("gemm_ragged");
        match io.a.dtype() {
            DType::F64 => self.ragged::<f64>(p, e, io),
            _ => self.ragged::<f32>(p, e, io),
        }
    }

    fn gemm_ragged_bwd(&self, p: &Gemm, io: GemmRaggedBwd<'_>) -> Result<()> {
        let e = check_gemm_ragged_bwd(p, &io)?;
        let _timed = self.count("gemm_ragged_bwd");
        match io.a.dtype() {
            DType::F64 => self.ragged_backward::<f64>(p, e, io),
            _ => self.ragged_backward::<f32>(p, e, io),
        }
    }
}
