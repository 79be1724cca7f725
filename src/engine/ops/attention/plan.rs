//! How attention runs: by a vendor's library, on matrix cores, by warps that copy and warps that multiply or by all alike, or in tiles of FMAs that
//! cut the columns of its results; gradients on matrix cores in one kernel or in two.

use crate::device::{BackendKind, Caps, MatrixCores};
use crate::dtype::DType;
use crate::engine::plan::{Problem, Reason, Variant};
use crate::spec::BLOCK;
use crate::spec::attention::{HEAD_WIDTHS, MATRIX_HEADS, NARROW_HEADS};

/// Columns per block of the narrow and of the wide unit (`HEAD_WIDTHS`, `MATRIX_HEADS`).
const WIDTHS: [usize; 2] = [64, 128];
/// Columns of the units of `matrix.c` and `matrix_backward_fused.c` for narrow heads in f32.
const NARROW: usize = 32;
/// Queries or keys of a block, on matrix cores and elsewhere.
pub(super) const MATRIX_TILE: usize = 128;
/// Queries per block of `attention/matrix.c` for heads of up to [`NARROW`] columns, which are mostly short, and its threads.
const NARROW_TILE: usize = 64;
const NARROW_THREADS: u32 = 128;
const TILE: usize = 64;

/// Threads of a block of the warp-specialized kernel.
const SPECIALIZED_THREADS: u32 = 384;

const SPECIALIZED_SOURCE: &str = "kernels/common/attention/matrix_specialized.c";
const MATRIX_SOURCE: &str = "kernels/common/attention/matrix.c, matrix_backward.c";
const FUSED_SOURCE: &str = "kernels/common/attention/matrix_backward_fused.c";
const SOURCE: &str = "kernels/common/attention/attention.c, backward.c";

/// Attention or its gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct AttentionProblem<'a> {
    pub(crate) dtype: DType,
    /// Columns of queries and keys, and of values.
    pub(crate) d: usize,
    pub(crate) dv: usize,
    /// Columns of the results of one kernel; of the wider one for two.
    pub(crate) columns: usize,
    /// Whether rows of all operands begin at multiples of 16 bytes.
    pub(crate) aligned: bool,
    /// Whether scores are products times a positive factor within a window: no bias, mask, soft cap or dropout.
    pub(crate) plain: bool,
    pub(crate) backward: bool,
    /// Whether the probabilities are wanted, too.
    pub(crate) probabilities: bool,
    /// Whether one kernel is to write the gradients of queries, keys and values.
    pub(crate) all_gradients: bool,
    /// Whether the vendor's library takes it, or why not.
    pub(crate) vendor: Result<(), &'a str>,
    /// Whether the library's gradients repeat bit by bit.
    pub(crate) vendor_repeats: bool,
}

/// Number of the vendor's library among the variants.
pub(crate) const VENDOR: usize = 0;

/// Which of the kernels that compute the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttentionKernel {
    /// By the vendor's library.
    Vendor,
    /// On matrix cores, where some warps copy and others multiply.
    Specialized,
    /// On matrix cores.
    Matrix,
    /// All gradients on matrix cores in one kernel.
    Fused,
    /// By FMAs.
    Fma,
}

/// Geometry of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AttentionPlan {
    pub(crate) kernel: AttentionKernel,
    /// Threads per block.
    pub(crate) threads: u32,
    /// Function of the unit.
    pub(crate) op: &'static str,
    /// Queries or keys per block.
    pub(crate) tile: usize,
    /// Blocks side by side, which each repeat the scores.
    pub(crate) slices: usize,
    /// Bytes of `GK_LOCAL_DYNAMIC`.
    pub(crate) local: usize,
}

impl AttentionProblem<'_> {
    /// Bytes of local memory of a block of so many queries on matrix cores: of `GK_LOCAL_DYNAMIC`, and in all.
    fn local(&self, width: usize, queries: usize, caps: &Caps) -> (usize, usize) {
        let row = width * self.dtype.size();
        // Where `GK_MATRIX_LOCAL_KB` is defined.
        let cores = caps.matrix_cores_for(self.dtype);
        let short = match cores {
            Some(MatrixCores::Ptx) => caps.id.kind == BackendKind::OpenCl,
            Some(MatrixCores::Mfma | MatrixCores::Wmma) => true,
            None => false,
        };
        // What fragments need that are no registers (`matrix_portable.h`); elsewhere arrays of one element.
        let (scratch, maxima) = match cores {
            Some(_) => (16, 4),
            None => (MATRIX_TILE * WIDTHS[0] * self.dtype.size(), 4 * BLOCK as usize),
        };
        if self.backward {
            // Two tiles of 128 rows that stay, four that pass, two times two statistics of as many queries.
            let pass = if self.dtype == DType::F32 || short { 32 } else { 64 };
            let tiles = 2 * MATRIX_TILE * row + 4 * pass * row + 4 * pass * 4;
            return (tiles, tiles + scratch);
        }
        // Two tiles of keys and two of values, and queries where they fit.
        let keys = if row > if short { 128 } else { 256 } { 32 } else { 64 };
        let tiles = (4 * keys + if short { 0 } else { queries }) * row;
        (tiles, tiles + scratch + maxima)
    }

    /// Which of [`WIDTHS`] a head has room in, if matrix cores take it.
    fn matrix_width(&self) -> Result<usize, Reason> {
        let fits = |n: usize| (8..=WIDTHS[1]).contains(&n) && n.is_multiple_of(8);
        if !fits(self.d) || !fits(self.dv) {
            return Err("a head has no multiple of 8 columns up to 128".into());
        }
        if !self.aligned {
            return Err("rows do not begin at multiples of 16 bytes".into());
        }
        Ok(usize::from(self.d.max(self.dv) > WIDTHS[0]))
    }

    fn by_vendor(&self) -> Result<AttentionPlan, Reason> {
        let kernel = AttentionKernel::Vendor;
        let plan = AttentionPlan { kernel, threads: 0, op: "", tile: MATRIX_TILE, slices: 1, local: 0 };
        self.vendor.map(|()| plan).map_err(|why| why.to_string().into())
    }

    /// Whether warps may have different work, and scores are plain.
    fn by_warp_groups(&self, caps: &Caps) -> Result<(), Reason> {
        if !caps.warp_groups {
            return Err("the device has no groups of warps that multiply together".into());
        }
        if caps.max_block < SPECIALIZED_THREADS {
            return Err(
                format!("it needs blocks of {SPECIALIZED_THREADS} threads, of {}", caps.max_block).into()
            );
        }
        if !self.plain {
            return Err(
                "scores have a bias, a mask, a soft cap, dropout or a factor that is not positive".into()
            );
        }
        Ok(())
    }

    /// Whether a block has `local` bytes of local memory, beside gates.
    fn fits(&self, local: usize, caps: &Caps) -> Result<(), Reason> {
        match local + 1024 <= caps.shared_bytes as usize {
            true => Ok(()),
            false => Err(format!("it needs {local} bytes of local memory, of {}", caps.shared_bytes).into()),
        }
    }

    fn specialized(&self, caps: &Caps) -> Result<AttentionPlan, Reason> {
        self.by_warp_groups(caps)?;
        if !matches!(self.dtype, DType::F16 | DType::Bf16) {
            return Err(format!("{} is not f16 or bf16", self.dtype).into());
        }
        let wide = self.matrix_width()?;
        // A tile of queries, two of keys and two of values.
        let local = 5 * MATRIX_TILE * WIDTHS[wide] * self.dtype.size();
        self.fits(local, caps)?;
        let (kernel, threads) = (AttentionKernel::Specialized, SPECIALIZED_THREADS);
        Ok(AttentionPlan { kernel, threads, op: HEAD_WIDTHS[wide], tile: MATRIX_TILE, slices: 1, local })
    }

    fn is_narrow(&self) -> bool {
        self.dtype == DType::F32 && self.d.max(self.dv) <= NARROW
    }

    /// The unit of `matrix_backward_fused.c` and its columns.
    pub(super) fn fused_unit(&self) -> (&'static str, usize) {
        if self.is_narrow() {
            return (NARROW_HEADS[0], NARROW);
        }
        let wide = usize::from(self.d.max(self.dv) > WIDTHS[0]);
        (HEAD_WIDTHS[wide], WIDTHS[wide])
    }

    /// Sizes as in `matrix_backward_fused.c`; `tile` is that of queries, `GK_DQ_ROWS`.
    fn fused(&self, caps: &Caps) -> Result<AttentionPlan, Reason> {
        if !self.all_gradients {
            return Err("a part of the gradients is wanted".into());
        }
        self.by_warp_groups(caps)?;
        let pass = match self.dtype {
            DType::F32 => 32,
            DType::F16 | DType::Bf16 => 64,
            other => return Err(format!("{other} is not f32, f16 or bf16").into()),
        };
        self.matrix_width()?;
        let ((op, width), size) = (self.fused_unit(), self.dtype.size());
        let (tile, stages) = (pass * WIDTHS[1] / width, if width * size == 512 { 2 } else { 3 });
        let (keys, queries) = (2 * MATRIX_TILE * width * size, 2 * pass * (width * size + 4));
        let local = keys + stages * queries + tile * (MATRIX_TILE * size + width * 4);
        self.fits(local, caps)?;
        let (kernel, threads) = (AttentionKernel::Fused, SPECIALIZED_THREADS);
        Ok(AttentionPlan { kernel, threads, op, tile, slices: 1, local })
    }

    fn matrix(&self, caps: &Caps) -> Result<AttentionPlan, Reason> {
        if !matches!(self.dtype, DType::F32 | DType::F16 | DType::Bf16) {
            return Err(format!("{} is not f32, f16 or bf16", self.dtype).into());
        }
        // They are powers of scores less their logarithm, and show errors of both.
        if self.probabilities && self.dtype == DType::F32 && caps.matrix_cores == Some(MatrixCores::Ptx) {
            return Err(
                "probabilities in f32 are wanted, for which products in TF32 are not exact enough".into()
            );
        }
        let wide = self.matrix_width()?;
        let narrow = self.is_narrow() && self.plain && !self.backward;
        let (op, width) = match narrow {
            true => (NARROW_HEADS[0], NARROW),
            false => (MATRIX_HEADS[wide + if self.plain { 0 } else { 2 }], WIDTHS[wide]),
        };
        let (tile, threads) = if narrow { (NARROW_TILE, NARROW_THREADS) } else { (MATRIX_TILE, BLOCK) };
        let (local, all) = self.local(width, tile, caps);
        if all > caps.shared_bytes as usize {
            return Err(format!("it needs {all} bytes of local memory, of {}", caps.shared_bytes).into());
        }
        Ok(AttentionPlan { kernel: AttentionKernel::Matrix, threads, op, tile, slices: 1, local })
    }
}

const LIBRARY: Variant = Variant { name: "cudnn", source: "vendor library" };
const MATRIX: Variant = Variant { name: "matrix_cores", source: MATRIX_SOURCE };
const HEAD_64: Variant = Variant { name: "head_64", source: SOURCE };
const HEAD_128: Variant = Variant { name: "head_128", source: SOURCE };

impl Problem for AttentionProblem<'_> {
    type Plan = AttentionPlan;

    const VARIANTS: &'static [Variant] = &[
        LIBRARY,
        Variant { name: "warp_specialized", source: SPECIALIZED_SOURCE },
        MATRIX,
        HEAD_64,
        HEAD_128,
    ];

    fn plan(&self, variant: usize, caps: &Caps) -> Result<AttentionPlan, Reason> {
        match variant {
            VENDOR => self.by_vendor(),
            1 => self.specialized(caps),
            _ => self.plan_of_both(variant - 2, caps),
        }
    }

    fn prefers(&self, variant: usize, caps: &Caps) -> bool {
        variant < 2 || self.prefers_of_both(variant - 2, caps)
    }
}

/// Gradients of attention: all ways to run but warps with different work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct AttentionBwdProblem<'a>(pub(crate) AttentionProblem<'a>);

impl Problem for AttentionBwdProblem<'_> {
    type Plan = AttentionPlan;

    const VARIANTS: &'static [Variant] =
        &[LIBRARY, Variant { name: "fused", source: FUSED_SOURCE }, MATRIX, HEAD_64, HEAD_128];

    fn plan(&self, variant: usize, caps: &Caps) -> Result<AttentionPlan, Reason> {
        match variant {
            VENDOR => self.0.by_vendor(),
            1 => self.0.fused(caps),
            _ => self.0.plan_of_both(variant - 2, caps),
        }
    }

    /// The library's gradients are faster than those of one kernel only if they need not repeat.
    fn prefers(&self, variant: usize, caps: &Caps) -> bool {
        match variant {
            VENDOR => !(self.0.vendor_repeats && self.0.fused(caps).is_ok()),
            1 => true,
            _ => self.0.prefers_of_both(variant - 2, caps),
        }
    }
}

impl AttentionProblem<'_> {
    /// The ways to run that attention and its gradients share.
    fn plan_of_both(&self, variant: usize, caps: &Caps) -> Result<AttentionPlan, Reason> {
        let Some(unit) = variant.checked_sub(1) else { return self.matrix(caps) };
        let slices = self.columns.div_ceil(WIDTHS[unit]);
        let kernel = AttentionKernel::Fma;
        Ok(AttentionPlan { kernel, threads: BLOCK, op: HEAD_WIDTHS[unit], tile: TILE, slices, local: 0 })
    }

    /// Matrix cores where there are any; else the widest block whose columns are used.
    fn prefers_of_both(&self, variant: usize, caps: &Caps) -> bool {
        match variant {
            0 => caps.matrix_cores_for(self.dtype).is_some(),
            1 => self.columns <= WIDTHS[0],
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceId;
    use crate::engine::geometry::tests::gpu;
    use crate::engine::plan::best;

    fn problem(dtype: DType, columns: usize) -> AttentionProblem<'static> {
        AttentionProblem {
            dtype,
            d: columns,
            dv: columns,
            columns,
            aligned: true,
            plain: true,
            backward: false,
            probabilities: false,
            all_gradients: false,
            vendor: Err("no vendor library was found"),
            vendor_repeats: true,
        }
    }

    fn hopper() -> Caps {
        Caps { matrix_cores: Some(MatrixCores::Ptx), max_block: 1024, shared_bytes: 227 << 10, ..gpu() }
    }

    #[test]
    fn blocks_of_fmas_are_as_wide_as_heads() {
        let plan = |columns| best(&problem(DType::F32, columns), &gpu()).map(|(_, p)| (p.op, p.slices));
        assert_eq!(plan(1), Some(("gk_head64", 1)));
        assert_eq!(plan(64), Some(("gk_head64", 1)));
        assert_eq!(plan(65), Some(("gk_head128", 1)));
        assert_eq!(plan(256), Some(("gk_head128", 2)));
        // A pinned narrow block repeats the scores more often.
        assert_eq!(problem(DType::F32, 256).plan(3, &gpu()).map(|p| (p.tile, p.slices)), Ok((64, 4)));
    }

    #[test]
    fn matrix_cores_take_heads_that_are_aligned_and_fit() {
        let half = problem(DType::F16, 64);
        let is_matrix = |p: AttentionPlan| p.kernel == AttentionKernel::Matrix;
        let plan = |p: AttentionProblem<'_>| {
            let plan =
                if p.backward { best(&AttentionBwdProblem(p), &hopper()) } else { best(&p, &hopper()) };
            plan.map(|(_, p)| (is_matrix(p), p.op, p.tile, p.local))
        };
        assert_eq!(plan(half), Some((true, "gk_head64", 128, 48 << 10)));
        assert_eq!(
            plan(AttentionProblem { dv: 72, plain: false, ..half }),
            Some((true, "gk_head128_rules", 128, 96 << 10))
        );
        assert_eq!(plan(AttentionProblem { backward: true, ..half }), Some((true, "gk_head64", 128, 66_560)));
        let single = problem(DType::F32, 64);
        assert_eq!(plan(single), Some((true, "gk_head64", 128, 96 << 10)));
        assert_eq!(plan(problem(DType::F32, 128)), Some((true, "gk_head128", 128, 128 << 10)));
        let narrow = problem(DType::F32, 32);
        assert_eq!(plan(narrow), Some((true, "gk_head32", 64, 40 << 10)));
        let of = |p| plan(p).map(|p| p.1);
        assert_eq!(of(AttentionProblem { plain: false, ..narrow }), Some("gk_head64_rules"));
        assert_eq!(of(AttentionProblem { backward: true, ..narrow }), Some("gk_head64"));
        assert_eq!(of(problem(DType::Bf16, 32)), Some("gk_head64"));
        assert_eq!(plan(AttentionProblem { backward: true, ..single }).map(|p| p.3), Some((96 << 10) + 512));
        let wide = AttentionProblem { backward: true, ..problem(DType::F32, 128) };
        assert_eq!(plan(wide).map(|p| p.3), Some((192 << 10) + 512));
        for other in [
            AttentionProblem { aligned: false, ..half },
            AttentionProblem { d: 60, ..half },
            AttentionProblem { probabilities: true, ..single },
            AttentionProblem { d: 0, ..half },
            problem(DType::Bf16, 136),
            problem(DType::F64, 64),
        ] {
            assert_eq!(plan(other).map(|p| p.0), Some(false), "{other:?}");
        }
        // NVIDIA's OpenCL has 48 KiB: enough for the result, not for gradients.
        let id = DeviceId::new(BackendKind::OpenCl, 0);
        let opencl = Caps { id, shared_bytes: 48 << 10, ..hopper() };
        assert_eq!(problem(DType::F16, 128).matrix(&opencl).map(|p| p.local), Ok(32 << 10));
        assert_eq!(single.matrix(&opencl).map(|p| p.local), Ok(32 << 10));
        assert_eq!(narrow.matrix(&opencl).map(|p| p.local), Ok(32 << 10));
        assert!(problem(DType::F32, 128).matrix(&opencl).is_err());
        assert!(AttentionProblem { backward: true, ..half }.matrix(&opencl).is_err());
        assert!(!best(&half, &gpu()).is_some_and(|(_, p)| is_matrix(p)));
        // AMD's devices have 64 KiB.
        let cdna = Caps { matrix_cores: Some(MatrixCores::Mfma), shared_bytes: 64 << 10, ..gpu() };
        assert_eq!(half.matrix(&cdna).map(|p| p.local), Ok(32 << 10));
        assert_eq!(single.matrix(&cdna).map(|p| p.local), Ok(32 << 10));
        assert!(problem(DType::F32, 128).matrix(&cdna).is_err());
        assert_eq!(
            AttentionProblem { backward: true, ..half }.matrix(&cdna).map(|p| p.local),
            Ok((48 << 10) + 512)
        );
        assert!(AttentionProblem { backward: true, ..single }.matrix(&cdna).is_err());
        assert!(best(&half, &cdna).is_some_and(|(_, p)| is_matrix(p)));
        // Those of RDNA multiply numbers of 16 bits alone.
        let rdna = Caps { matrix_cores: Some(MatrixCores::Wmma), ..cdna };
        assert!(best(&half, &rdna).is_some_and(|(_, p)| is_matrix(p) && p.local == 32 << 10));
        let gradients = AttentionBwdProblem(AttentionProblem { backward: true, ..half });
        assert!(best(&gradients, &rdna).is_some_and(|(_, p)| is_matrix(p) && p.local == (48 << 10) + 512));
        assert!(best(&problem(DType::Bf16, 128), &rdna).is_some_and(|(_, p)| is_matrix(p)));
        assert!(!best(&single, &rdna).is_some_and(|(_, p)| is_matrix(p)));
    }

    #[test]
    fn the_vendor_library_comes_first_where_it_takes_the_problem() {
        let p = problem(DType::F16, 64);
        assert!(p.plan(VENDOR, &hopper()).is_err_and(|why| why.contains("no vendor library")));
        let taken = AttentionProblem { vendor: Ok(()), ..p };
        let kernel = |plan: Option<(usize, AttentionPlan)>| plan.map(|(at, p)| (at, p.kernel));
        assert_eq!(kernel(best(&taken, &hopper())), Some((VENDOR, AttentionKernel::Vendor)));
        assert_eq!(
            kernel(best(&AttentionBwdProblem(taken), &hopper())),
            Some((VENDOR, AttentionKernel::Vendor))
        );
        assert_eq!(kernel(best(&AttentionBwdProblem(p), &hopper())), Some((2, AttentionKernel::Matrix)));
    }

    #[test]
    fn warps_with_different_work_serve_plain_heads_of_16_bits() {
        let caps = Caps { warp_groups: true, ..hopper() };
        let plan =
            |p: AttentionProblem<'_>| best(&p, &caps).map(|(_, p)| (p.kernel, p.op, p.threads, p.local));
        let half = problem(DType::Bf16, 64);
        assert_eq!(plan(half), Some((AttentionKernel::Specialized, "gk_head64", 384, 80 << 10)));
        assert_eq!(
            plan(AttentionProblem { dv: 72, ..half }),
            Some((AttentionKernel::Specialized, "gk_head128", 384, 160 << 10))
        );
        for (other, why) in [
            (AttentionProblem { plain: false, ..half }, "a soft cap"),
            (AttentionProblem { aligned: false, ..half }, "16 bytes"),
            (problem(DType::F32, 64), "not f16 or bf16"),
            (problem(DType::F16, 136), "multiple of 8"),
        ] {
            assert!(other.specialized(&caps).is_err_and(|e| e.contains(why)), "{other:?}");
        }
        assert!(half.specialized(&hopper()).is_err());
        assert!(half.specialized(&Caps { shared_bytes: 64 << 10, ..caps }).is_err());
    }

    #[test]
    fn all_gradients_of_plain_heads_take_one_kernel() {
        let plan = |p: AttentionProblem<'_>, caps: &Caps| {
            best(&AttentionBwdProblem(p), caps).map(|(_, p)| (p.kernel, p.op, p.tile, p.local))
        };
        let hopper = Caps { warp_groups: true, ..hopper() };
        let all = |dtype, columns| AttentionProblem {
            backward: true,
            all_gradients: true,
            ..problem(dtype, columns)
        };
        let fused = AttentionKernel::Fused;
        assert_eq!(plan(all(DType::Bf16, 64), &hopper), Some((fused, "gk_head64", 128, (144 << 10) + 1536)));
        assert_eq!(plan(all(DType::Bf16, 128), &hopper), Some((fused, "gk_head128", 64, (208 << 10) + 1536)));
        assert_eq!(plan(all(DType::F32, 64), &hopper), Some((fused, "gk_head64", 64, (160 << 10) + 768)));
        assert_eq!(plan(all(DType::F32, 128), &hopper), Some((fused, "gk_head128", 32, (224 << 10) + 512)));
        assert_eq!(plan(all(DType::F32, 32), &hopper), Some((fused, "gk_head32", 128, (136 << 10) + 768)));
        assert_eq!(plan(all(DType::Bf16, 32), &hopper), plan(all(DType::Bf16, 64), &hopper));
        let kernel = |p, caps: &Caps| plan(p, caps).map(|p| p.0);
        let part = AttentionProblem { all_gradients: false, ..all(DType::Bf16, 64) };
        assert_eq!(kernel(part, &hopper), Some(AttentionKernel::Matrix));
        assert_eq!(
            kernel(AttentionProblem { plain: false, ..all(DType::Bf16, 64) }, &hopper),
            Some(AttentionKernel::Matrix)
        );
        let taken = AttentionProblem { vendor: Ok(()), ..all(DType::Bf16, 64) };
        assert_eq!(kernel(taken, &hopper), Some(fused));
        let fast = AttentionProblem { vendor_repeats: false, ..taken };
        assert_eq!(kernel(fast, &hopper), Some(AttentionKernel::Vendor));
        let ampere = Caps { warp_groups: false, ..hopper };
        assert_eq!(kernel(all(DType::Bf16, 64), &ampere), Some(AttentionKernel::Matrix));
    }
}
