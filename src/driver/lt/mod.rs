//! Matrix products of cuBLASLt and of hipBLASLt, whose interfaces have the same calls.
//!
//! The libraries are column-major. A row-major matrix is the transpose of the column-major one in the same memory, so D = A B is asked for as
//! Dᵀ = Bᵀ Aᵀ: the operands change places ([`ColumnMajor::of`]) and nothing is copied. The bias, which the library adds along the rows of its
//! result, then runs along our columns. Descriptors, algorithm and workspace are determined once per problem and kept. What the libraries call by
//! other names and numbers is in their [`Names`].

#[cfg(test)]
mod stand_in;

use std::ffi::{c_int, c_void};
use std::ptr;

use super::plan_cache::PlanCache;
use super::{BlasAct, BlasProblem, RawMem, RawStream, VendorBlas};
use crate::device::DeviceId;
use crate::dtype::DType;
use crate::error::{GpuError, Result};

/// The most workspace that an algorithm may want.
const MAX_WORKSPACE: usize = 32 << 20;
/// Alignment that the usual plans require of all matrices; others get a plan for the alignment of their elements.
const ALIGN: u64 = 16;
/// Plans kept.
const MAX_PLANS: usize = 4096;
/// 64-bit words of a heuristic's result behind the algorithm: workspace, state with the number of waves, and four reserved numbers.
const REST: usize = 4;
/// Words of the longest algorithm.
const MAX_ALGO: usize = 8;

/// A handle of the library, or a pointer to memory.
type Raw = *mut c_void;

macro_rules! table {
    ($($(#[$m:meta])* $field:ident = $suffix:literal ($($arg:ty),* $(,)?);)*) => {
        /// Functions of a library; numbers of enums are 32 bits wide.
        #[derive(Debug, Clone, Copy)]
        pub(super) struct Table {
            $($(#[$m])* pub(super) $field: unsafe extern "C" fn($($arg),*) -> u32,)*
        }

        /// Names of the calls, for messages.
        #[derive(Debug, Clone, Copy)]
        pub(super) struct Calls {
            $(pub(super) $field: &'static str,)*
        }

        /// The calls of a library whose functions begin with `prefix`.
        macro_rules! calls {
            ($prefix:literal) => {
                $crate::driver::lt::Calls { $($field: concat!($prefix, $suffix),)* }
            };
        }

        impl Table {
            /// Resolves all functions; names the first that is missing.
            ///
            /// # Safety
            /// The library's functions of these names have these prototypes.
            pub(super) unsafe fn resolve(
                lib: &super::loader::DynLib,
                calls: &Calls,
            ) -> std::result::Result<Self, crate::error::Unavailable> {
                // SAFETY: the caller's promise.
                unsafe { Ok(Table { $($field: lib.function(calls.$field)?,)* }) }
            }
        }
    };
}

table! {
    create = "Create"(*mut Raw);
    destroy = "Destroy"(Raw);
    /// Numbers of the type of the computation and of alpha and beta.
    desc_create = "MatmulDescCreate"(*mut Raw, u32, u32);
    desc_destroy = "MatmulDescDestroy"(Raw);
    desc_set = "MatmulDescSetAttribute"(Raw, u32, *const c_void, usize);
    layout_create = "MatrixLayoutCreate"(*mut Raw, u32, u64, u64, i64);
    layout_destroy = "MatrixLayoutDestroy"(Raw);
    layout_set = "MatrixLayoutSetAttribute"(Raw, u32, *const c_void, usize);
    preference_create = "MatmulPreferenceCreate"(*mut Raw);
    preference_destroy = "MatmulPreferenceDestroy"(Raw);
    preference_set = "MatmulPreferenceSetAttribute"(Raw, u32, *const c_void, usize);
    /// Handle, descriptor, layouts of A, B, C and D, preference, room for results, results, their count.
    heuristic = "MatmulAlgoGetHeuristic"(Raw, Raw, Raw, Raw, Raw, Raw, Raw, c_int, *mut c_void, *mut c_int);
    /// Handle, descriptor, alpha, A, its layout, B, its layout, beta, C, its layout, D, its layout, algorithm, workspace, its bytes, stream.
    matmul = "Matmul"(
        Raw, Raw, *const c_void, *const c_void, Raw, *const c_void, Raw, *const c_void, *const c_void, Raw,
        *mut c_void, Raw, *const c_void, *mut c_void, usize, Raw,
    );
}
pub(super) use calls;

/// Attributes of 32 bits of a preference, for a problem and whether its matrices are aligned.
type Preferences = fn(&BlasProblem, bool) -> [(u32, u32); 5];

/// In what the libraries differ.
#[derive(Debug)]
pub(super) struct Names {
    /// Name of the library, and of its variant.
    pub(super) library: &'static str,
    pub(super) calls: Calls,
    /// Name of a status.
    pub(super) status: fn(u32) -> &'static str,
    /// The statuses for an argument out of range and for what is not supported.
    pub(super) invalid_value: u32,
    pub(super) not_supported: u32,
    /// Numbers of an operand as it is and transposed.
    pub(super) ops: [i32; 2],
    /// Numbers of computations in f32 and f64.
    pub(super) compute: [u32; 2],
    /// That of f32 from operands in TF32, where there is one that every device has.
    pub(super) compute_tf32: Option<u32>,
    /// Attributes of a descriptor: both operands' transposition, epilogue, bias, its type.
    pub(super) desc: [u32; 5],
    /// Attributes of a layout: count of batches, elements from one to the next.
    pub(super) layout: [u32; 2],
    /// The attribute of a preference for the bytes of workspace.
    pub(super) max_workspace: u32,
    /// Further attributes of a preference; none if the library cannot be told of alignment.
    pub(super) preferences: Option<Preferences>,
    /// 64-bit words of an algorithm.
    pub(super) algo: usize,
    /// Whether it adds a bias to a result of another type than the operands'.
    pub(super) bias_into_wider: bool,
}

/// Makes the device current in this thread.
type Enter = Box<dyn Fn() -> Result<()> + Send + Sync>;

/// One matrix as the library sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Matrix {
    rows: usize,
    cols: usize,
    ld: usize,
    batch_stride: usize,
    transposed: bool,
}

/// A problem in column-major terms: first operand, second operand, C and D.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ColumnMajor([Matrix; 4]);

impl ColumnMajor {
    /// The first operand is our B, the second our A.
    fn of(p: &BlasProblem) -> Self {
        let matrix = |i: usize, (rows, cols), transposed| Matrix {
            rows,
            cols,
            ld: p.ld[i],
            batch_stride: p.batch_stride[i],
            transposed,
        };
        // A row-major [r, c] is a column-major [c, r].
        let b = if p.trans_b { (p.k, p.n) } else { (p.n, p.k) };
        let a = if p.trans_a { (p.m, p.k) } else { (p.k, p.m) };
        ColumnMajor([
            matrix(1, b, p.trans_b),
            matrix(0, a, p.trans_a),
            matrix(2, (p.n, p.m), false),
            matrix(3, (p.n, p.m), false),
        ])
    }
}

/// What was determined for a problem. Handles are pointers as numbers.
#[derive(Debug, Clone, Copy, Default)]
struct Plan {
    desc: u64,
    layouts: [u64; 4],
    algo: [u64; MAX_ALGO],
    workspace: usize,
}

/// A problem and whether all its matrices are aligned.
type Key = (BlasProblem, bool);

/// The loaded library.
pub(super) struct Lt {
    table: Table,
    names: &'static Names,
    device: DeviceId,
    enter: Enter,
    /// The library's own handle.
    handle: u64,
    /// Also held while a descriptor's bias pointer is set and the product queued.
    plans: PlanCache<Key, Plan>,
}

impl std::fmt::Debug for Lt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.names.library)
    }
}

/// A handle or an address as the pointer that the library takes.
fn pointer(raw: u64) -> Raw {
    ptr::with_exposed_provenance_mut(raw as usize)
}

fn number(raw: Raw) -> u64 {
    raw.expose_provenance() as u64
}

/// The number of a type: CUDA's and HIP's are the same.
fn data_type(d: DType) -> Option<u32> {
    match d {
        DType::F32 => Some(0),
        DType::F64 => Some(1),
        DType::F16 => Some(2),
        DType::Bf16 => Some(14),
        _ => None,
    }
}

/// The number of an epilogue, which is the same in both libraries.
fn epilogue(p: &BlasProblem) -> u32 {
    const BIAS: u32 = 4;
    match (p.act, p.bias) {
        (BlasAct::Identity, false) => 1,
        (BlasAct::Identity, true) => BIAS,
        (BlasAct::Relu, bias) => 2 + if bias { BIAS } else { 0 },
        (BlasAct::GeluTanh, bias) => 32 + if bias { BIAS } else { 0 },
    }
}

/// Whether the problem is one that the library is asked about at all.
fn eligible(p: &BlasProblem, names: &Names) -> std::result::Result<(), String> {
    if p.m == 0 || p.n == 0 || p.k == 0 || p.batch == 0 {
        return Err("an extent is 0".into());
    }
    if c_int::try_from(p.batch).is_err() {
        return Err(format!("{} batches", p.batch));
    }
    let types = matches!(
        (p.dtype, p.out_dtype),
        (DType::F32, DType::F32)
            | (DType::F64, DType::F64)
            | (DType::F16, DType::F16 | DType::F32)
            | (DType::Bf16, DType::Bf16 | DType::F32)
    );
    if !types {
        return Err(format!("{} products into {}", p.dtype, p.out_dtype));
    }
    if p.dtype == DType::F64 && (p.bias || p.act != BlasAct::Identity) {
        return Err("no fused bias or activation in f64".into());
    }
    if p.bias && p.dtype != p.out_dtype && !names.bias_into_wider {
        return Err(format!("no bias of {} to {}", p.dtype, p.out_dtype));
    }
    Ok(())
}

impl Lt {
    /// The library on the device that `enter` makes current; the reason if it does not start.
    pub(super) fn new(
        table: Table,
        names: &'static Names,
        device: DeviceId,
        enter: Enter,
    ) -> std::result::Result<Self, String> {
        let mut blas = Lt { table, names, device, enter, handle: 0, plans: PlanCache::new(MAX_PLANS) };
        (blas.enter)().map_err(|e| e.to_string())?;
        let mut handle = ptr::null_mut();
        // SAFETY: writes one pointer; the device is current.
        let code = unsafe { (blas.table.create)(&mut handle) };
        blas.check(names.calls.create, code).map_err(|e| e.to_string())?;
        blas.handle = number(handle);
        Ok(blas)
    }

    /// The library's handle.
    #[cfg(feature = "driver-hip")]
    pub(super) fn handle(&self) -> Raw {
        pointer(self.handle)
    }

    fn error(&self, call: &'static str, code: u32) -> GpuError {
        GpuError::driver(call, code.into(), (self.names.status)(code))
    }

    fn check(&self, call: &'static str, code: u32) -> Result<()> {
        if code == 0 { Ok(()) } else { Err(self.error(call, code)) }
    }

    /// Runs `f` with the plan of a problem, made if there is none.
    fn with_plan<T>(
        &self,
        p: &BlasProblem,
        aligned: bool,
        f: impl FnOnce(&Plan) -> T,
    ) -> std::result::Result<T, String> {
        // The caller has room for the aligned plan's workspace only.
        let room = if aligned { MAX_WORKSPACE } else { 0 };
        let make =
            || eligible(p, self.names).and_then(|()| self.plan(p, aligned, room).map_err(|e| e.to_string()));
        self.plans.with(&(*p, aligned), make, |plan| self.destroy(plan), |plan| f(plan))
    }

    fn plan(&self, p: &BlasProblem, aligned: bool, room: usize) -> Result<Plan> {
        (self.enter)()?;
        let mut plan = Plan::default();
        match self.fill(&mut plan, p).and_then(|()| self.choose(&mut plan, p, aligned, room)) {
            Ok(()) => Ok(plan),
            Err(e) => {
                self.destroy(plan);
                Err(e)
            }
        }
    }

    fn destroy(&self, plan: Plan) {
        // SAFETY: made by `fill`, released once; null handles are skipped.
        unsafe {
            if plan.desc != 0 {
                (self.table.desc_destroy)(pointer(plan.desc));
            }
            for l in plan.layouts.into_iter().filter(|&l| l != 0) {
                (self.table.layout_destroy)(pointer(l));
            }
        }
    }

    fn set_desc<T>(&self, desc: u64, attribute: usize, value: T) -> Result<()> {
        // SAFETY: the descriptor is live, and the value has the size that is passed.
        let code = unsafe {
            let at = ptr::from_ref(&value).cast();
            (self.table.desc_set)(pointer(desc), self.names.desc[attribute], at, size_of::<T>())
        };
        self.check(self.names.calls.desc_set, code)
    }

    fn set_layout<T>(&self, layout: u64, attribute: usize, value: T) -> Result<()> {
        // SAFETY: the layout is live, and the value has the size that is passed.
        let code = unsafe {
            let at = ptr::from_ref(&value).cast();
            (self.table.layout_set)(pointer(layout), self.names.layout[attribute], at, size_of::<T>())
        };
        self.check(self.names.calls.layout_set, code)
    }

    /// Makes the descriptors. On failure, `plan` holds what was made so far.
    fn fill(&self, plan: &mut Plan, p: &BlasProblem) -> Result<()> {
        let (t, names) = (&self.table, self.names);
        let unsupported = || self.error(names.calls.matmul, names.not_supported);
        let input = data_type(p.dtype).ok_or_else(unsupported)?;
        let output = data_type(p.out_dtype).ok_or_else(unsupported)?;
        let [single, double] = names.compute;
        let (compute, scale) = match (p.dtype, p.tf32) {
            (DType::F64, _) => (double, DType::F64),
            (DType::F32, true) => (names.compute_tf32.unwrap_or(single), DType::F32),
            _ => (single, DType::F32),
        };
        let scale = data_type(scale).ok_or_else(unsupported)?;
        let ColumnMajor(matrices) = ColumnMajor::of(p);

        let mut desc = ptr::null_mut();
        // SAFETY: writes one pointer.
        self.check(names.calls.desc_create, unsafe { (t.desc_create)(&mut desc, compute, scale) })?;
        plan.desc = number(desc);
        let op = |m: &Matrix| names.ops[usize::from(m.transposed)];
        self.set_desc(plan.desc, 0, op(&matrices[0]))?;
        self.set_desc(plan.desc, 1, op(&matrices[1]))?;
        self.set_desc(plan.desc, 2, epilogue(p))?;
        if p.bias {
            self.set_desc(plan.desc, 4, input)?;
        }

        let types = [input, input, output, output];
        for ((m, ty), layout) in matrices.iter().zip(types).zip(&mut plan.layouts) {
            let mut l = ptr::null_mut();
            // SAFETY: writes one pointer.
            self.check(names.calls.layout_create, unsafe {
                (t.layout_create)(&mut l, ty, m.rows as u64, m.cols as u64, m.ld as i64)
            })?;
            *layout = number(l);
            self.set_layout(*layout, 0, p.batch as c_int)?;
            self.set_layout(*layout, 1, m.batch_stride as i64)?;
        }
        Ok(())
    }

    /// Asks for the algorithm that the library expects to be the fastest within `room` bytes of workspace.
    fn choose(&self, plan: &mut Plan, p: &BlasProblem, aligned: bool, room: usize) -> Result<()> {
        let (t, names) = (&self.table, self.names);
        let mut preference = ptr::null_mut();
        // SAFETY: writes one pointer.
        self.check(names.calls.preference_create, unsafe { (t.preference_create)(&mut preference) })?;
        let attributes = names.preferences.map(|of| of(p, aligned));
        let mut result = [0u64; MAX_ALGO + REST];
        let mut found = 0;
        let layout = |i: usize| pointer(plan.layouts[i]);
        // SAFETY: all handles are live, the attributes have the sizes that the library documents, and there is room for one result.
        let code = unsafe {
            let set = |a: u32, v: *const c_void, n: usize| (t.preference_set)(preference, a, v, n);
            let mut code = set(names.max_workspace, ptr::from_ref(&room).cast(), size_of::<usize>());
            for (a, v) in attributes.iter().flatten() {
                code = code.max(set(*a, ptr::from_ref(v).cast(), size_of::<u32>()));
            }
            if code == 0 {
                code = (t.heuristic)(
                    pointer(self.handle),
                    pointer(plan.desc),
                    layout(0),
                    layout(1),
                    layout(2),
                    layout(3),
                    preference,
                    1,
                    result.as_mut_ptr().cast(),
                    &mut found,
                );
            }
            (t.preference_destroy)(preference);
            code
        };
        self.check(names.calls.heuristic, code)?;
        if found == 0 {
            return Err(self.error(names.calls.heuristic, names.not_supported));
        }
        // The state is the first half of its word.
        let (workspace, state) = (result[names.algo], result[names.algo + 1].to_ne_bytes());
        self.check(names.calls.heuristic, u32::from_ne_bytes([state[0], state[1], state[2], state[3]]))?;
        plan.algo[..names.algo].copy_from_slice(&result[..names.algo]);
        plan.workspace = workspace as usize;
        Ok(())
    }
}

impl VendorBlas for Lt {
    fn name(&self) -> &'static str {
        self.names.library
    }

    fn tf32(&self) -> bool {
        self.names.compute_tf32.is_some()
    }

    fn aligned_only(&self) -> bool {
        self.names.preferences.is_none()
    }

    fn applicable(&self, p: &BlasProblem) -> std::result::Result<(), String> {
        self.with_plan(p, true, |_| ())
    }

    fn workspace(&self, p: &BlasProblem) -> usize {
        self.with_plan(p, true, |plan| plan.workspace).unwrap_or(0)
    }

    unsafe fn gemm(
        &self,
        s: RawStream,
        p: &BlasProblem,
        alpha: f64,
        beta: f64,
        a: (RawMem, u64),
        b: (RawMem, u64),
        c: (RawMem, u64),
        d: (RawMem, u64),
        bias: Option<(RawMem, u64)>,
        workspace: Option<(RawMem, u64, usize)>,
    ) -> Result<()> {
        (self.enter)()?;
        let call = self.names.calls.matmul;
        let at = |(m, offset): (RawMem, u64)| m.0 + offset;
        let (first, second, c, d) = (at(b), at(a), at(c), at(d));
        let room = workspace.map_or(0, |w| w.2);
        let matrices_aligned = (first | second | c | d) % ALIGN == 0;
        let unsupported =
            |why: String| GpuError::Unsupported { op: call, device: self.device, why: why.into() };
        if !matrices_aligned && self.aligned_only() {
            return Err(unsupported("a matrix does not begin at a multiple of 16 bytes".into()));
        }
        let (single, double) = ((alpha as f32, beta as f32), (alpha, beta));
        let (alpha, beta): (*const c_void, *const c_void) = if p.dtype == DType::F64 {
            (ptr::from_ref(&double.0).cast(), ptr::from_ref(&double.1).cast())
        } else {
            (ptr::from_ref(&single.0).cast(), ptr::from_ref(&single.1).cast())
        };
        let invalid = |what: String| GpuError::driver(call, self.names.invalid_value.into(), what);
        let run = |plan: &Plan| -> Result<()> {
            if plan.workspace > room {
                return Err(invalid(format!("{} bytes of workspace needed, {room} given", plan.workspace)));
            }
            match (p.bias, bias) {
                (true, Some(bias)) => self.set_desc(plan.desc, 3, pointer(at(bias)).cast_const())?,
                (false, None) => {}
                _ => return Err(invalid("bias and problem disagree".into())),
            }
            let layout = |i: usize| pointer(plan.layouts[i]);
            let scratch = workspace.map_or(ptr::null_mut(), |(m, offset, _)| pointer(at((m, offset))));
            // SAFETY: handles and scalars are live; the memory is the caller's promise.
            let code = unsafe {
                (self.table.matmul)(
                    pointer(self.handle),
                    pointer(plan.desc),
                    alpha,
                    pointer(first),
                    layout(0),
                    pointer(second),
                    layout(1),
                    beta,
                    pointer(c),
                    layout(2),
                    pointer(d),
                    layout(3),
                    plan.algo.as_ptr().cast(),
                    scratch,
                    room,
                    pointer(s.0),
                )
            };
            self.check(call, code)
        };
        self.with_plan(p, matrices_aligned, run).map_err(unsupported)?
    }
}

impl Drop for Lt {
    fn drop(&mut self) {
        if self.handle == 0 || (self.enter)().is_err() {
            return;
        }
        self.plans.take().into_iter().for_each(|plan| self.destroy(plan));
        // SAFETY: the only owner; no plan is left.
        unsafe { (self.table.destroy)(pointer(self.handle)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::blas_reference::{element, problem};

    /// What the library does: column-major, D' = first second + C'.
    fn column_major(p: &BlasProblem, first: &[f64], second: &[f64], c: &[f64]) -> Vec<f64> {
        let ColumnMajor([x, y, cm, dm]) = ColumnMajor::of(p);
        let at = |m: &Matrix, z: usize, r: usize, col: usize| {
            let (r, col) = if m.transposed { (col, r) } else { (r, col) };
            assert!(r < m.rows && col < m.cols && m.rows <= m.ld);
            z * m.batch_stride + col * m.ld + r
        };
        let mut d = vec![0.0; p.batch * p.batch_stride[3]];
        for z in 0..p.batch {
            for r in 0..dm.rows {
                for col in 0..dm.cols {
                    let sum: f64 = (0..p.k).map(|l| first[at(&x, z, r, l)] * second[at(&y, z, l, col)]).sum();
                    d[at(&dm, z, r, col)] = sum + c[at(&cm, z, r, col)];
                }
            }
        }
        d
    }

    #[test]
    fn column_major_form_is_the_same_product() {
        for (ta, tb) in [(false, false), (false, true), (true, false), (true, true)] {
            let p = problem(3, 4, 5, 2, ta, tb);
            let data = |i: usize| -> Vec<f64> {
                (0..2 * p.batch_stride[i] + 64).map(|x| ((x * 7 + i) % 11) as f64 - 5.0).collect()
            };
            let (a, b, c) = (data(0), data(1), data(2));
            let got = column_major(&p, &b, &a, &c);
            for (z, i) in (0..p.batch).flat_map(|z| (0..p.m).map(move |i| (z, i))) {
                for j in 0..p.n {
                    let want = element(&p, [1.0, 1.0], [&a, &b, &c], [z, i, j]);
                    assert_eq!(got[z * p.batch_stride[3] + i * p.ld[3] + j], want, "{p:?}");
                }
            }
        }
    }

    #[test]
    fn refuses_what_it_does_not_serve() {
        #[cfg(feature = "driver-cuda")]
        let names = &crate::driver::cuda::cublaslt::NAMES;
        #[cfg(not(feature = "driver-cuda"))]
        let names = &crate::driver::hip::hipblaslt::NAMES;
        let eligible = |p: &BlasProblem| eligible(p, names);
        let p = problem(2, 2, 2, 1, false, false);
        eligible(&p).unwrap();
        eligible(&BlasProblem { k: 0, ..p }).unwrap_err();
        eligible(&BlasProblem { dtype: DType::I32, out_dtype: DType::I32, ..p }).unwrap_err();
        eligible(&BlasProblem { dtype: DType::F64, ..p }).unwrap_err();
        let double = BlasProblem { dtype: DType::F64, out_dtype: DType::F64, ..p };
        eligible(&double).unwrap();
        eligible(&BlasProblem { bias: true, ..double }).unwrap_err();
        eligible(&BlasProblem { dtype: DType::Bf16, ..p }).unwrap();
    }
}
