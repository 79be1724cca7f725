//! The functions of CLBlast and what they are given.

use std::ffi::c_int;
use std::ptr;

use opencl3::types::{cl_command_queue, cl_event, cl_mem};

use crate::driver::BlasProblem;
use crate::driver::loader::DynLib;
use crate::error::Unavailable;

/// `CLBlastLayoutRowMajor`
const ROW_MAJOR: c_int = 101;
/// `CLBlastLayoutColMajor`
const COLUMN_MAJOR: c_int = 102;
/// `CLBlastTransposeNo`
const AS_IS: c_int = 111;
/// `CLBlastTransposeYes`
const TRANSPOSED: c_int = 112;

/// `CLBlastSgemmWithTempBuffer`, `CLBlastDgemmWithTempBuffer`
pub(super) type Gemm<T> = unsafe extern "C" fn(
    c_int,
    c_int,
    c_int,
    usize,
    usize,
    usize,
    T,
    cl_mem,
    usize,
    usize,
    cl_mem,
    usize,
    usize,
    T,
    cl_mem,
    usize,
    usize,
    *mut cl_command_queue,
    *mut cl_event,
    cl_mem,
) -> c_int;

/// `CLBlastSgemmStridedBatched`, `CLBlastDgemmStridedBatched`
pub(super) type GemmBatched<T> = unsafe extern "C" fn(
    c_int,
    c_int,
    c_int,
    usize,
    usize,
    usize,
    T,
    cl_mem,
    usize,
    usize,
    usize,
    cl_mem,
    usize,
    usize,
    usize,
    T,
    cl_mem,
    usize,
    usize,
    usize,
    usize,
    *mut cl_command_queue,
    *mut cl_event,
) -> c_int;

/// `CLBlastSGemmTempBufferSize`, `CLBlastDGemmTempBufferSize`
pub(super) type TempSize = unsafe extern "C" fn(
    c_int,
    c_int,
    c_int,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    *mut cl_command_queue,
    *mut usize,
) -> c_int;

/// The functions of one type.
#[derive(Clone, Copy)]
pub(super) struct Functions<T> {
    pub(super) gemm: Gemm<T>,
    pub(super) batched: GemmBatched<T>,
    pub(super) temp_size: TempSize,
}

impl<T> Functions<T> {
    /// Those whose names have this letter; versions before 1.5 lack some.
    pub(super) fn resolve(lib: &DynLib, letter: char) -> std::result::Result<Self, Unavailable> {
        // SAFETY: the prototypes are those of clblast_c.h.
        unsafe {
            Ok(Functions {
                gemm: lib.function(&format!("CLBlast{letter}gemmWithTempBuffer"))?,
                batched: lib.function(&format!("CLBlast{letter}gemmStridedBatched"))?,
                temp_size: lib.function(&format!("CLBlast{letter}GemmTempBufferSize"))?,
            })
        }
    }
}

/// One matrix of a product: its object, and where it begins and continues, in elements.
#[derive(Debug, Clone, Copy)]
pub(super) struct Matrix {
    pub(super) object: cl_mem,
    pub(super) offset: usize,
    pub(super) ld: usize,
    pub(super) stride: usize,
}

/// A product in the library's terms.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub(super) layout: c_int,
    /// How the first and the second operand lie.
    pub(super) ops: [c_int; 2],
    pub(super) size: [usize; 3],
    pub(super) first: Matrix,
    pub(super) second: Matrix,
    pub(super) result: Matrix,
    pub(super) batch: usize,
}

impl Call {
    /// Of A, B and D.
    pub(super) fn new(p: &BlasProblem, exchanged: bool, [a, b, d]: [Matrix; 3]) -> Self {
        let [ta, tb] = [p.trans_a, p.trans_b].map(|t| if t { TRANSPOSED } else { AS_IS });
        let (layout, ops, size, [first, second]) = match exchanged {
            false => (ROW_MAJOR, [ta, tb], [p.m, p.n, p.k], [a, b]),
            true => (COLUMN_MAJOR, [tb, ta], [p.n, p.m, p.k], [b, a]),
        };
        Call { layout, ops, size, first, second, result: d, batch: p.batch }
    }

    /// The product of one batch.
    pub(super) fn at(&self, batch: usize) -> Self {
        let of = |m: Matrix| Matrix { offset: m.offset + batch * m.stride, ..m };
        Call { first: of(self.first), second: of(self.second), result: of(self.result), batch: 1, ..*self }
    }

    /// Queues one product.
    ///
    /// # Safety
    /// The matrices lie within live memory of the queue's context, and the result apart from the operands.
    pub(super) unsafe fn one<T>(
        &self,
        f: Gemm<T>,
        [alpha, beta]: [T; 2],
        q: cl_command_queue,
        temporary: cl_mem,
    ) -> c_int {
        let ([m, n, k], [op_a, op_b]) = (self.size, self.ops);
        let (a, b, c) = (self.first, self.second, self.result);
        let mut q = q;
        // SAFETY: the memory is the caller's promise; no event is asked for.
        unsafe {
            f(
                self.layout,
                op_a,
                op_b,
                m,
                n,
                k,
                alpha,
                a.object,
                a.offset,
                a.ld,
                b.object,
                b.offset,
                b.ld,
                beta,
                c.object,
                c.offset,
                c.ld,
                &mut q,
                ptr::null_mut(),
                temporary,
            )
        }
    }

    /// Queues all products of the batch.
    ///
    /// # Safety
    /// As for [`Call::one`].
    pub(super) unsafe fn all<T>(
        &self,
        f: GemmBatched<T>,
        [alpha, beta]: [T; 2],
        q: cl_command_queue,
    ) -> c_int {
        let ([m, n, k], [op_a, op_b]) = (self.size, self.ops);
        let (a, b, c) = (self.first, self.second, self.result);
        let mut q = q;
        // SAFETY: the memory is the caller's promise; no event is asked for.
        unsafe {
            f(
                self.layout,
                op_a,
                op_b,
                m,
                n,
                k,
                alpha,
                a.object,
                a.offset,
                a.ld,
                a.stride,
                b.object,
                b.offset,
                b.ld,
                b.stride,
                beta,
                c.object,
                c.offset,
                c.ld,
                c.stride,
                self.batch,
                &mut q,
                ptr::null_mut(),
            )
        }
    }
}
