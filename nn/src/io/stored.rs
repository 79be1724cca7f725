//! Tensors as they lie in a file: dtypes and blocks of the formats, and what they become when they are read.

use half::f16;
use safetensors::tensor::Dtype;
use trefoil::DType;

use crate::core::error::Result;
use crate::core::limits;
use crate::io::tensor_file::to_format;

/// Elements in a block of a quantized tensor.
pub(super) const BLOCK: usize = 32;

/// How elements are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// One by one.
    Plain(Dtype),
    /// ggml's `Q8_0`: blocks of an f16 scale and 32 signed bytes.
    Q8_0,
    /// ggml's `Q4_0`: blocks of an f16 scale and 32 numbers of 4 bits, less 8; the first half of a block in the low bits.
    Q4_0,
    /// A type of ggml that is not read, by its number.
    Ggml(u32),
}

impl Form {
    /// The dtype in which elements are handed out: the same, or one that holds all of their values. `None`: they cannot be read.
    pub(super) fn read_as(self) -> Option<DType> {
        Some(match self {
            Form::Plain(Dtype::BOOL) => DType::U8,
            Form::Plain(Dtype::I8 | Dtype::I16 | Dtype::U16) => DType::I32,
            Form::Plain(Dtype::U32) => DType::I64,
            Form::Plain(d) => return DType::ALL.into_iter().find(|&t| to_format(t) == Some(d)),
            Form::Q8_0 | Form::Q4_0 => DType::F32,
            Form::Ggml(_) => return None,
        })
    }

    /// Elements that are stored together, and the bytes that they take.
    pub(super) fn block(self) -> (usize, usize) {
        match self {
            Form::Plain(d) => (1, d.bitsize() / 8),
            Form::Q8_0 => (BLOCK, 2 + BLOCK),
            Form::Q4_0 => (BLOCK, 2 + BLOCK / 2),
            Form::Ggml(_) => (1, 0),
        }
    }

    /// Stored blocks as elements of [`read_as`](Form::read_as). Errors: `OutOfMemory`.
    pub(super) fn widen(self, raw: Vec<u8>) -> Result<Vec<u8>> {
        match self {
            Form::Plain(Dtype::I8) => each(&raw, |x| i32::from(i8::from_le_bytes(x)).to_le_bytes()),
            Form::Plain(Dtype::I16) => each(&raw, |x| i32::from(i16::from_le_bytes(x)).to_le_bytes()),
            Form::Plain(Dtype::U16) => each(&raw, |x| i32::from(u16::from_le_bytes(x)).to_le_bytes()),
            Form::Plain(Dtype::U32) => each(&raw, |x| i64::from(u32::from_le_bytes(x)).to_le_bytes()),
            Form::Q8_0 => blocks(&raw, self, |q, i| f32::from(q[i] as i8)),
            Form::Q4_0 => blocks(&raw, self, |q, i| {
                let byte = q[i % (BLOCK / 2)];
                let bits = if i < BLOCK / 2 { byte & 15 } else { byte >> 4 };
                f32::from(bits) - 8.0
            }),
            Form::Plain(_) | Form::Ggml(_) => Ok(raw),
        }
    }
}

fn each<const N: usize, const M: usize>(raw: &[u8], wide: impl Fn([u8; N]) -> [u8; M]) -> Result<Vec<u8>> {
    let mut out = vec![];
    limits::reserve(&mut out, (raw.len() / N).saturating_mul(M))?;
    for c in raw.chunks_exact(N) {
        let mut x = [0; N];
        x.copy_from_slice(c);
        out.extend_from_slice(&wide(x));
    }
    Ok(out)
}

/// Blocks of a scale and of numbers as f32: scale times number.
fn blocks(raw: &[u8], form: Form, number: impl Fn(&[u8], usize) -> f32) -> Result<Vec<u8>> {
    let (_, size) = form.block();
    let mut out = vec![];
    limits::reserve(&mut out, (raw.len() / size).saturating_mul(4 * BLOCK))?;
    for block in raw.chunks_exact(size) {
        let (scale, numbers) = block.split_at(2);
        let scale = f16::from_le_bytes([scale[0], scale[1]]).to_f32();
        for i in 0..BLOCK {
            out.extend_from_slice(&(scale * number(numbers, i)).to_le_bytes());
        }
    }
    Ok(out)
}

/// A tensor of a file.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) shard: usize,
    /// Offset of the first element (of its block) in the file.
    pub(super) start: u64,
    pub(super) form: Form,
    pub(super) shape: Vec<usize>,
    /// Elements between neighbours of each axis, where they do not lie in row-major order.
    pub(super) strides: Option<Vec<usize>>,
    /// In a checkpoint.
    pub(super) sum: Option<String>,
}

impl Stored {
    /// Where an element lies, by its position in row-major order: a position in the stored order.
    pub(super) fn place(&self, mut at: usize) -> usize {
        let Some(strides) = &self.strides else { return at };
        let mut place = 0;
        for (&n, &stride) in self.shape.iter().zip(strides).rev() {
            place += at % n.max(1) * stride;
            at /= n.max(1);
        }
        place
    }
}

/// The row-major strides of a shape.
#[cfg(feature = "archives")]
pub(super) fn row_major(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1usize; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i].saturating_mul(shape[i]);
    }
    strides
}
