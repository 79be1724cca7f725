//! Quantization, matrix products of 8-bit and 4-bit operands, and of 2:4 sparse ones: validation and launch.

mod plan;

use self::plan::{QuantPlan, QuantProblem, QuantizePlan, QuantizeProblem};
use crate::buffer::{View, ViewMut};
use crate::driver::{DimsArg, Ptr};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, aligned16, dims, int, long};
use crate::error::Result;
use crate::ops::core::Choice;
use crate::ops::gemm::{Gemm, GemmIo, GemmOps};
use crate::ops::quantized::*;
use crate::ops::reduce::{Reduce, ReduceOps};
use crate::spec::kernels::quantized::*;

/// Side of the tiles (`GK_TILE`).
const TILE: usize = 64;

/// The form of an operand as kernels take it.
fn form(f: Form, scale: DType) -> DimsArg {
    let kind = match scale {
        DType::F16 => 1,
        DType::Bf16 => 2,
        _ => 0,
    };
    dims([f.code, kind, f.rows_per, f.products_per, f.stride, f.pitch])
}

fn tiles(e: Low) -> Grid {
    Grid::Blocks([e.m.div_ceil(TILE) * e.n.div_ceil(TILE), 1, 1])
}

/// Groups of a checked quantization of `values`.
fn quantize_problem(g: Groups, values: &View<'_>, codes: &View<'_>) -> QuantizeProblem {
    let groups = values.numel().checked_div(g.size).unwrap_or(0);
    QuantizeProblem { groups, size: g.size, aligned: aligned16(values) && aligned16(codes) }
}

/// Runs of groups of four that a thread takes at a time (`GK_SPARSE_GROUPS`).
fn sparse_runs(groups: usize, dt: DType) -> usize {
    groups.div_ceil(8 / dt.size())
}

impl Engine {
    /// What serves one row of 4096 elements, and groups of 32 of 4096 such rows.
    pub(crate) fn explain_quantized(&self, op: &'static str) -> Result<Choice> {
        if op == "quantize" {
            return self.explain_problem(op, &QuantizeProblem { groups: 1 << 19, size: 32, aligned: true });
        }
        self.explain_problem(op, &QuantProblem { m: 1, k: 4096, products_per: 128, aligned: true })
    }
}

impl QuantizedOps for Engine {
    fn gemm_quantized(&self, x: View<'_>, w: QuantWeight<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "gemm_quantized";
        let (e, f) = check_gemm_quantized(&x, &w, &y)?;
        let (q, scale, zero) = match w {
            QuantWeight::Int8 { q, scale } => (q, scale, None),
            QuantWeight::Int4 { q, scale, zero } => (q, scale, zero),
        };
        let (v, dt) = (y.as_view(), x.dtype());
        self.check_owner_all(
            OP,
            &[("x", Some(x)), ("q", Some(q)), ("scale", Some(scale)), ("zero", zero), ("y", Some(v))],
        )?;
        if v.numel() == 0 {
            return Ok(());
        }
        let coded = form(f, scale.dtype());
        let aligned = aligned16(&x) && aligned16(&q);
        let problem = QuantProblem { m: e.m, k: e.k, products_per: f.products_per, aligned };
        if let QuantPlan::FewRows { shift } = self.plan(OP, &problem)? {
            let args = QuantRowsArgs {
                x: self.arg_in(&x),
                b: self.arg_in(&q),
                scale: self.arg_in(&scale),
                zero: self.arg_opt(zero.as_ref()),
                y: self.arg_in(&v),
                m: e.m as i32,
                n: long(e.n),
                k: long(e.k),
                form: coded,
                shift: shift.map_or(-1, |s| s as i32),
            };
            return self.launch(&QUANT_ROWS, dt, "", Grid::Blocks([e.n.div_ceil(8), 1, 1]), &args);
        }
        let args = QuantTileArgs {
            a: self.arg_in(&x),
            b: self.arg_in(&q),
            scale_a: Ptr::NULL,
            scale_b: self.arg_in(&scale),
            zero: self.arg_opt(zero.as_ref()),
            y: self.arg_in(&v),
            m: long(e.m),
            n: long(e.n),
            k: long(e.k),
            fa: form(Form::plain(e.k), DType::F32),
            fb: coded,
        };
        self.launch(&QUANT_TILE, dt, "", tiles(e), &args)
    }

    fn gemm_w8a8(&self, io: GemmW8A8<'_>) -> Result<()> {
        const OP: &str = "gemm_w8a8";
        let e = check_gemm_w8a8(&io)?;
        let y = io.y.as_view();
        let all = [("xq", io.xq), ("wq", io.wq), ("x_scale", io.x_scale), ("w_scale", io.w_scale), ("y", y)];
        self.check_owner_all(OP, &all)?;
        let args = QuantIntArgs {
            a: self.arg_in(&io.xq),
            b: self.arg_in(&io.wq),
            scale_a: self.arg_in(&io.x_scale),
            scale_b: self.arg_in(&io.w_scale),
            y: self.arg_in(&y),
            m: long(e.m),
            n: long(e.n),
            k: long(e.k),
        };
        self.launch(&QUANT_INT, DType::F32, "", tiles(e), &args)
    }

    fn gemm_fp8(&self, io: GemmFp8<'_>) -> Result<()> {
        const OP: &str = "gemm_fp8";
        let (e, fa, fb) = check_gemm_fp8(&io)?;
        let y = io.y.as_view();
        let inputs = [("a", io.a), ("b", io.b), ("scale_a", io.scale_a), ("scale_b", io.scale_b)];
        self.check_owner_all(OP, &inputs)?;
        self.check_owner(OP, "y", &y)?;
        let args = QuantTileArgs {
            a: self.arg_in(&io.a),
            b: self.arg_in(&io.b),
            scale_a: self.arg_in(&io.scale_a),
            scale_b: self.arg_in(&io.scale_b),
            zero: Ptr::NULL,
            y: self.arg_in(&y),
            m: long(e.m),
            n: long(e.n),
            k: long(e.k),
            fa: form(fa, DType::F32),
            fb: form(fb, DType::F32),
        };
        self.launch(&QUANT_TILE, DType::F32, "", tiles(e), &args)
    }

    fn quantize(&self, format: QuantFormat, x: View<'_>, q: ViewMut<'_>, scale: ViewMut<'_>) -> Result<()> {
        const OP: &str = "quantize";
        let (g, f) = check_quantize(format, &x, &q, &scale)?;
        let (qv, sv) = (q.as_view(), scale.as_view());
        self.check_owner_all(OP, &[("x", x), ("q", qv), ("scale", sv)])?;
        let (n, scales, code, most) = (x.numel(), sv.numel(), int(f.code), format.max());
        // A tensor without elements still has scales, which the reduction of nothing gives.
        let problem = quantize_problem(g, &x, &qv);
        let plan = if n == 0 { QuantizePlan::Reduced { wide: false } } else { self.plan(OP, &problem)? };
        match plan {
            QuantizePlan::Groups { runs, lanes, size, blocks } => {
                let args = QuantizeShortArgs {
                    x: self.arg_in(&x),
                    q: self.arg_out(&q),
                    scale: self.arg_out(&scale),
                    groups: long(problem.groups),
                    runs: int(runs),
                    lanes: int(lanes),
                    code,
                    most,
                };
                let kernel = [&QUANTIZE_SHORT, &QUANTIZE_LONG][size];
                self.launch(kernel, x.dtype(), "", Grid::Blocks([blocks, 1, 1]), &args)
            }
            QuantizePlan::Reduced { wide } => {
                let largest = self.scratch(x.dtype(), scales)?;
                self.reduce(Reduce::MaxAbs, &[1], x.reshape(&[scales, g.size])?, largest.alias_mut())?;
                let args = QuantizeArgs {
                    x: self.arg_in(&x),
                    largest: self.arg_in(&largest.view()),
                    q: self.arg_out(&q),
                    scale: self.arg_out(&scale),
                    n: long(n),
                    size: long(g.size),
                    scales: long(scales),
                    code,
                    most,
                    wide: i32::from(wide),
                };
                self.launch(&QUANTIZE, x.dtype(), "", Grid::Stride(n.div_ceil(8).max(scales)), &args)
            }
        }
    }

    fn dequantize(&self, format: QuantFormat, q: View<'_>, scale: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "dequantize";
        let (g, f) = check_dequantize(format, &q, &scale, &y)?;
        let v = y.as_view();
        self.check_owner_all(OP, &[("q", q), ("scale", scale), ("y", v)])?;
        let args = DequantizeArgs {
            q: self.arg_in(&q),
            scale: self.arg_in(&scale),
            y: self.arg_out(&y),
            n: long(v.numel()),
            size: long(g.size),
            code: int(f.code),
            wide: i32::from(quantize_problem(g, &v, &q).wide()),
        };
        self.launch(&DEQUANTIZE, v.dtype(), "", Grid::Stride(v.numel().div_ceil(8)), &args)
    }

    fn sparse_compress(&self, x: View<'_>, values: ViewMut<'_>, index: ViewMut<'_>) -> Result<()> {
        let groups = check_sparse_compress(&x, &values, &index)?;
        let all = [("x", x), ("values", values.as_view()), ("index", index.as_view())];
        self.check_owner_all("sparse_compress", &all)?;
        let args = SparsePackArgs {
            x: self.arg_in(&x),
            values: self.arg_out(&values),
            index: self.arg_out(&index),
            groups: long(groups),
            wide: i32::from(aligned16(&x) && aligned16(&values.as_view())),
        };
        self.launch(&SPARSE_PACK, x.dtype(), "", Grid::Stride(sparse_runs(groups, x.dtype())), &args)
    }

    fn sparse_decompress(&self, values: View<'_>, index: View<'_>, y: ViewMut<'_>) -> Result<()> {
        let groups = check_sparse_decompress(&values, &index, &y)?;
        self.check_owner_all(
            "sparse_decompress",
            &[("values", values), ("index", index), ("y", y.as_view())],
        )?;
        let args = SparseUnpackArgs {
            values: self.arg_in(&values),
            index: self.arg_in(&index),
            y: self.arg_out(&y),
            groups: long(groups),
            wide: i32::from(aligned16(&values) && aligned16(&y.as_view())),
        };
        self.launch(
            &SPARSE_UNPACK,
            values.dtype(),
            "",
            Grid::Stride(sparse_runs(groups, values.dtype())),
            &args,
        )
    }

    fn gemm_2to4(&self, values: View<'_>, index: View<'_>, b: View<'_>, y: ViewMut<'_>) -> Result<()> {
        let e = check_gemm_2to4(&values, &index, &b, &y)?;
        self.check_owner_all(
            "gemm_2to4",
            &[("values", values), ("index", index), ("b", b), ("y", y.as_view())],
        )?;
        // The dense form costs little beside the product, and any kernel can multiply it.
        let dense = self.scratch(values.dtype(), e.m * e.k)?;
        self.sparse_decompress(values, index, dense.alias_mut().reshape(&[e.m, e.k])?)?;
        self.gemm(&Gemm::new(), GemmIo::new(dense.shaped(&[e.m, e.k])?, b, y))
    }
}
