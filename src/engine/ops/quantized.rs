//! Products of operands in 8 and 4 bits, and of sparse ones: validation and launch.

use crate::spec::kernels::quantized::*;
use crate::buffer::{View, ViewMut};
use crate::driver::Arg;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, aligned16, dims, long};
use crate::error::Result;
use crate::ops::gemm::{Gemm, GemmIo, GemmOps};
use crate::ops::quantized::*;

/// Rows of x up to which weights are read once for all of them (`GK_MOST_ROWS`).
const FEW_ROWS: usize = 8;
/// Side of the tiles (`GK_TILE`).
const TILE: usize = 64;

/// The form of an operand as kernels take it.
fn form(f: Form, scale: DType) -> Arg {
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

impl QuantizedOps for Engine {
    fn gemm_quantized(&self, x: View<'_>, w: QuantWeight<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "gemm_quantized";
        let (e, f) = check_gemm_quantized(&x, &w, &y)?;
        let (q, scale, zero) = match w {
            QuantWeight::Int8 { q, scale } => (q, scale, None),
            QuantWeight::Int4 { q, scale, zero } => (q, scale, zero),
        };
        let (v, dt) = (y.as_view(), x.dtype());
        self.own_all(
            OP,
            &[("x", Some(x)), ("q", Some(q)), ("scale", Some(scale)), ("zero", zero), ("y", Some(v))],
        )?;
        if v.numel() == 0 {
            return Ok(());
        }
        let coded = form(f, scale.dtype());
        if e.m <= FEW_ROWS {
            // Groups of 8 products lie in one scale's group and at multiples of 4 bytes.
            let wide =
                e.k.is_multiple_of(8) && f.products_per.is_multiple_of(8) && aligned16(&x) && aligned16(&q);
            let args = [
                self.arg_in(&x),
                self.arg_in(&q),
                self.arg_in(&scale),
                self.arg_opt(zero.as_ref()),
                self.arg_in(&v),
                Arg::I32(e.m as i32),
                long(e.n),
                long(e.k),
                coded,
                Arg::I32(wide as i32),
            ];
            return self.launch_list(&QUANT_ROWS.spec, dt, "", Grid::Blocks([e.n.div_ceil(8), 1, 1]), &args);
        }
        let args = [
            self.arg_in(&x),
            self.arg_in(&q),
            Arg::Mem(None),
            self.arg_in(&scale),
            self.arg_opt(zero.as_ref()),
            self.arg_in(&v),
            long(e.m),
            long(e.n),
            long(e.k),
            form(Form::plain(e.k), DType::F32),
            coded,
        ];
        self.launch_list(&QUANT_TILE.spec, dt, "", tiles(e), &args)
    }

    fn gemm_w8a8(&self, io: GemmW8A8<'_>) -> Result<()> {
        const OP: &str = "gemm_w8a8";
        let e = check_gemm_w8a8(&io)?;
        let y = io.y.as_view();
        let all = [("xq", io.xq), ("wq", io.wq), ("x_scale", io.x_scale), ("w_scale", io.w_scale), ("y", y)];
        self.own_all(OP, &all)?;
        let mut args: Vec<Arg> = all.iter().map(|(_, v)| self.arg_in(v)).collect();
        args.extend([long(e.m), long(e.n), long(e.k)]);
        self.launch_list(&QUANT_INT.spec, DType::F32, "", tiles(e), &args)
    }

    fn gemm_fp8(&self, io: GemmFp8<'_>) -> Result<()> {
        const OP: &str = "gemm_fp8";
        let (e, fa, fb) = check_gemm_fp8(&io)?;
        let y = io.y.as_view();
        let inputs = [("a", io.a), ("b", io.b), ("scale_a", io.scale_a), ("scale_b", io.scale_b)];
        self.own_all(OP, &inputs)?;
        self.own(OP, "y", &y)?;
        let mut args: Vec<Arg> = inputs.iter().map(|(_, v)| self.arg_in(v)).collect();
        args.extend([Arg::Mem(None), self.arg_in(&y), long(e.m), long(e.n), long(e.k)]);
        args.extend([form(fa, DType::F32), form(fb, DType::F32)]);
        self.launch_list(&QUANT_TILE.spec, DType::F32, "", tiles(e), &args)
    }

    fn sparse_compress(&self, x: View<'_>, values: ViewMut<'_>, index: ViewMut<'_>) -> Result<()> {
        let groups = check_sparse_compress(&x, &values, &index)?;
        let all = [("x", x), ("values", values.as_view()), ("index", index.as_view())];
        self.own_all("sparse_compress", &all)?;
        let args = [self.arg_in(&x), self.arg_out(&values), self.arg_out(&index), long(groups)];
        self.launch_list(&SPARSE_PACK.spec, x.dtype(), "", Grid::Stride(groups), &args)
    }

    fn sparse_decompress(&self, values: View<'_>, index: View<'_>, y: ViewMut<'_>) -> Result<()> {
        let groups = check_sparse_decompress(&values, &index, &y)?;
        self.own_all("sparse_decompress", &[("values", values), ("index", index), ("y", y.as_view())])?;
        let args = [self.arg_in(&values), self.arg_in(&index), self.arg_out(&y), long(groups)];
        self.launch_list(&SPARSE_UNPACK.spec, values.dtype(), "", Grid::Stride(groups), &args)
    }

    fn gemm_2to4(&self, values: View<'_>, index: View<'_>, b: View<'_>, y: ViewMut<'_>) -> Result<()> {
        let e = check_gemm_2to4(&values, &index, &b, &y)?;
        self.own_all("gemm_2to4", &[("values", values), ("index", index), ("b", b), ("y", y.as_view())])?;
        // The dense form costs little beside the product, and any kernel can multiply it.
        let dense = self.scratch(values.dtype(), e.m * e.k)?;
        self.sparse_decompress(values, index, dense.alias_mut().reshape(&[e.m, e.k])?)?;
        self.gemm(&Gemm::new(), GemmIo::new(dense.shaped(&[e.m, e.k])?, b, y))
    }
}
