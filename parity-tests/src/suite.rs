//! Golden suites: a list of cases in JSON, their tensors in a safetensors file next to it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use serde_json::{Map, Value};
use trefoil::DType;

/// A tensor in host memory: row-major bytes of one dtype.
#[derive(Debug, Clone, PartialEq)]
pub struct HostTensor {
    /// Element type.
    pub dtype: DType,
    /// Sizes.
    pub shape: Vec<usize>,
    /// Little-endian elements.
    pub bytes: Vec<u8>,
}

/// v with its lower 32 bits folded into one that 16-bit floats do not have: `half` drops them, and would take what is just beside the middle of two
/// numbers for the middle.
fn sticky(v: f64) -> f64 {
    let bits = v.to_bits();
    f64::from_bits(if bits as u32 == 0 { bits } else { bits >> 32 << 32 | 1 << 32 })
}

fn elements<T: bytemuck::AnyBitPattern>(bytes: &[u8]) -> impl Iterator<Item = T> + '_ {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned)
}

impl HostTensor {
    /// A tensor of `values`, each rounded to nearest even (floats) or truncated (integers).
    pub fn from_f64(dtype: DType, shape: &[usize], values: &[f64]) -> Self {
        let mut bytes = Vec::with_capacity(values.len() * dtype.size());
        for &v in values {
            match dtype {
                DType::F32 => bytes.extend((v as f32).to_le_bytes()),
                DType::F16 => bytes.extend(f16::from_f64(sticky(v)).to_le_bytes()),
                DType::Bf16 => bytes.extend(bf16::from_f64(sticky(v)).to_le_bytes()),
                DType::F64 => bytes.extend(v.to_le_bytes()),
                DType::I32 => bytes.extend((v as i32).to_le_bytes()),
                DType::I64 => bytes.extend((v as i64).to_le_bytes()),
                _ => bytes.push(v as u8),
            }
        }
        HostTensor { dtype, shape: shape.to_vec(), bytes }
    }

    /// An integer tensor of `values`, wrapped to the dtype.
    pub fn from_i64(dtype: DType, shape: &[usize], values: &[i64]) -> Self {
        let mut bytes = Vec::with_capacity(values.len() * dtype.size());
        for &v in values {
            bytes.extend_from_slice(&v.to_le_bytes()[..dtype.size()]);
        }
        HostTensor { dtype, shape: shape.to_vec(), bytes }
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    /// The elements as f64 (i64 values beyond 2^53 lose digits).
    pub fn to_f64(&self) -> Vec<f64> {
        let b = &self.bytes[..];
        match self.dtype {
            DType::F32 => elements::<f32>(b).map(f64::from).collect(),
            DType::F16 => elements::<[u8; 2]>(b).map(|x| f16::from_le_bytes(x).to_f64()).collect(),
            DType::Bf16 => elements::<[u8; 2]>(b).map(|x| bf16::from_le_bytes(x).to_f64()).collect(),
            DType::F64 => elements::<f64>(b).collect(),
            _ => self.to_i64().into_iter().map(|x| x as f64).collect(),
        }
    }

    /// The elements of an integer tensor.
    pub fn to_i64(&self) -> Vec<i64> {
        let b = &self.bytes[..];
        match self.dtype {
            DType::I32 => elements::<i32>(b).map(i64::from).collect(),
            DType::I64 => elements::<i64>(b).collect(),
            DType::U8 => b.iter().map(|&x| x.into()).collect(),
            _ => self.to_f64().into_iter().map(|x| x as i64).collect(),
        }
    }

    /// The same values in another dtype.
    pub fn to_dtype(&self, dtype: DType) -> Self {
        if dtype == self.dtype {
            return self.clone();
        }
        HostTensor::from_f64(dtype, &self.shape, &self.to_f64())
    }
}

/// How closely an output must agree.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Tol {
    /// Equal bits, the sign of zero ignored.
    Exact,
    /// |got - want| <= atol + rtol*|want|.
    Close {
        /// relative part
        rtol: f64,
        /// absolute part
        atol: f64,
    },
}

/// A strided view over the stored elements of an input.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Strided {
    /// Sizes of the view.
    pub shape: Vec<usize>,
    /// Steps in elements.
    pub strides: Vec<usize>,
    /// First element.
    pub offset: usize,
}

/// Which outputs a case asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Wanted {
    /// Everything that the kernel can produce.
    All,
    /// The named ones (required outputs are always produced).
    Named(BTreeSet<String>),
}

/// One call of a kernel: inputs, arguments and what is expected.
#[derive(Debug, Clone)]
pub struct Case {
    /// Unique name.
    pub id: String,
    /// Kernel name.
    pub kernel: String,
    /// Storage type of the data tensors.
    pub dtype: DType,
    /// Arguments (without `strides`).
    pub args: Map<String, Value>,
    /// Inputs in order.
    pub inputs: Named,
    /// Views over inputs.
    pub strides: BTreeMap<String, Strided>,
    /// Previous contents of outputs that accumulate.
    pub accumulate: BTreeMap<String, HostTensor>,
    /// Outputs to produce.
    pub wanted: Wanted,
    /// Expected outputs.
    pub expected: BTreeMap<String, (Tol, HostTensor)>,
    /// Expected kind of error.
    pub error: Option<String>,
}

impl Case {
    /// The input of that name.
    pub fn input(&self, name: &str) -> Option<&HostTensor> {
        self.inputs.iter().find(|(n, _)| n == name).map(|(_, t)| t)
    }
}

#[derive(Deserialize)]
struct RawCase {
    id: String,
    kernel: String,
    dtype: String,
    args: Map<String, Value>,
    #[serde(rename = "in")]
    inputs: Vec<String>,
    out: BTreeMap<String, RawTol>,
    #[serde(default)]
    accumulate: Vec<String>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct RawTol {
    exact: Option<bool>,
    rtol: Option<f64>,
    atol: Option<f64>,
}

/// Tensors by name.
pub type Named = Vec<(String, HostTensor)>;

/// A case whose tensors cannot be represented.
#[derive(Debug, Clone)]
pub struct Unreadable {
    /// Kernel name.
    pub kernel: String,
    /// The case and what is wrong with it.
    pub why: String,
}

/// Loads `path` and the safetensors file next to it.
pub fn load(path: &Path) -> Result<Vec<Result<Case, Unreadable>>, String> {
    let text = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let cases: Vec<RawCase> =
        serde_json::from_slice(&text).map_err(|e| format!("{}: {e}", path.display()))?;
    let data = path.with_extension("safetensors");
    let bytes = std::fs::read(&data).map_err(|e| format!("{}: {e}", data.display()))?;
    let tensors = SafeTensors::deserialize(&bytes).map_err(|e| format!("{}: {e}", data.display()))?;
    Ok(cases
        .into_iter()
        .map(|raw| {
            let (id, kernel) = (raw.id.clone(), raw.kernel.clone());
            build(raw, &tensors).map_err(|e| Unreadable { kernel, why: format!("{id}: {e}") })
        })
        .collect())
}

fn build(raw: RawCase, tensors: &SafeTensors<'_>) -> Result<Case, String> {
    let tensor = |side: &str, name: &str| host(tensors, &format!("{}|{side}|{name}", raw.id));
    let mut args = raw.args;
    let strides = match args.remove("strides") {
        Some(v) => serde_json::from_value(v).map_err(|e| format!("strides: {e}"))?,
        None => BTreeMap::new(),
    };
    let inputs =
        raw.inputs.iter().map(|n| Ok((n.clone(), tensor("in", n)?))).collect::<Result<_, String>>()?;
    let accumulate =
        raw.accumulate.iter().map(|n| Ok((n.clone(), tensor("in", n)?))).collect::<Result<_, String>>()?;
    let mut expected = BTreeMap::new();
    for (name, t) in &raw.out {
        let tol = match (t.exact, t.rtol, t.atol) {
            (Some(true), None, None) => Tol::Exact,
            (None, Some(rtol), Some(atol)) => Tol::Close { rtol, atol },
            _ => return Err(format!("output {name}: tolerance is neither exact nor rtol with atol")),
        };
        expected.insert(name.clone(), (tol, tensor("out", name)?));
    }
    let dtype = DType::from_name(&raw.dtype).ok_or_else(|| format!("dtype {} is unknown", raw.dtype))?;
    let wanted = Wanted::Named(raw.out.into_keys().collect());
    Ok(Case {
        id: raw.id,
        kernel: raw.kernel,
        dtype,
        args,
        inputs,
        strides,
        accumulate,
        wanted,
        expected,
        error: raw.error,
    })
}

fn host(tensors: &SafeTensors<'_>, key: &str) -> Result<HostTensor, String> {
    let t = tensors.tensor(key).map_err(|e| format!("tensor {key}: {e}"))?;
    let dtype = match t.dtype() {
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::Bf16,
        Dtype::F64 => DType::F64,
        Dtype::I32 => DType::I32,
        Dtype::I64 => DType::I64,
        // Signed bytes travel in u8 buffers, as the operations that read them take them.
        Dtype::U8 | Dtype::I8 | Dtype::BOOL => DType::U8,
        other => return Err(format!("tensor {key}: the library has no dtype {other:?}")),
    };
    Ok(HostTensor { dtype, shape: t.shape().to_vec(), bytes: t.data().to_vec() })
}
