//! Quantization, matrix products of 8-bit and 4-bit operands, and of 2:4 sparse ones: validation and launch.

mod plan;

use self::plan::{QuantPlan, QuantProblem};
use crate::buffer::{View, ViewMut};
use crate::driver::{DimsArg, Ptr};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, aligned16, dims, long};
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

/// Whether runs of 8 values and their codes lie in one row and group, at aligned addresses.
fn wide(g: Groups, values: &View<'_>, codes: &View<'_>) -> bool {
    let whole = |n: usize| n.is_multiple_of(8);
    whole(g.k) && whole(g.size) && aligned16(values) && aligned16(codes)
}

impl Engine {
    /// What serves one row of 4096 elements.
    pub(crate) fn explain_quantized(&self, op: &'static str) -> Result<Choice> {
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
        if let QuantPlan::FewRows { wide } = self.plan(OP, &problem)? {
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
                wide: i32::from(wide),
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
        let (n, scales) = (x.numel(), sv.numel());
        let largest = self.scratch(x.dtype(), scales)?;
        self.reduce(Reduce::MaxAbs, &[1], x.reshape(&[scales, g.size])?, largest.alias_mut())?;
        let args = QuantizeArgs {
            x: self.arg_in(&x),
            largest: self.arg_in(&largest.view()),
            q: self.arg_out(&q),
            scale: self.arg_out(&scale),
            n: long(n),
            k: long(g.k),
            scales: long(scales),
            form: form(f, DType::F32),
            most: format.max(),
            wide: i32::from(wide(g, &x, &qv)),
        };
        self.launch(&QUANTIZE, x.dtype(), "", Grid::Stride(n.div_ceil(8).max(scales)), &args)
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
            k: long(g.k),
            form: form(f, DType::F32),
            wide: i32::from(wide(g, &v, &q)),
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
        };
        self.launch(&SPARSE_PACK, x.dtype(), "", Grid::Stride(groups), &args)
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
        };
        self.launch(&SPARSE_UNPACK, values.dtype(), "", Grid::Stride(groups), &args)
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
