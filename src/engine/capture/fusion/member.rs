//! Elementwise calls, read back from their launches.

use std::ops::Range;

use super::super::queued::{Known, Place, Value};
use crate::driver::Arg;
use crate::dtype::DType;
use crate::spec::Role;

/// Where an operand's element for position i of the result lies; the result's own elements lie one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Index {
    /// At i.
    Flat,
    /// By the coordinates of i: sizes, the innermost last, and steps in elements.
    Axes(Vec<(usize, usize)>),
}

/// An operand of an elementwise call.
#[derive(Debug, Clone)]
pub(super) struct Operand {
    pub(super) place: Place,
    /// Its bytes, from the first element to the last.
    pub(super) bytes: Range<u64>,
    /// Its type; `None` for that of the unit.
    pub(super) dtype: Option<DType>,
    pub(super) index: Index,
}

/// Random words of a dropout.
#[derive(Debug, Clone)]
pub(super) struct Random {
    /// Seed, stream and offset.
    pub(super) key: [i64; 3],
    /// What the device adds to the offset.
    pub(super) more: Option<Place>,
}

/// A number that a call is given by value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Scalar {
    /// `gk_f`, as an argument of the unit.
    Real(Arg<'static>),
    /// `float`
    F32(f32),
    /// `gk_u32`
    Word(u32),
}

/// A call that computes every element of its results from the elements of its operands at the same position.
#[derive(Debug, Clone)]
pub(in crate::engine::capture) struct Member {
    /// Elements.
    pub(super) n: usize,
    /// Storage types of the units in which it computes the same bits.
    pub(super) units: Vec<DType>,
    pub(super) inputs: Vec<Operand>,
    /// `None` for a result that the call does not store.
    pub(super) outputs: Vec<Option<Operand>>,
    pub(super) scalars: Vec<Scalar>,
    pub(super) random: Option<Random>,
    /// C statement: `i0`, `i1`, .. stand for the inputs, `o0`, .. for the outputs, `s0`, .. for the scalars, `w` for the random word, in braces.
    pub(super) code: String,
}

/// The arguments of a launch by name.
struct Args<'a> {
    known: &'a Known,
    values: &'a [Value],
}

impl<'a> Args<'a> {
    fn find(&self, name: &str) -> Option<Arg<'a>> {
        let at = self.known.spec.args.iter().position(|a| a.name == name);
        if let Some(value) = at.and_then(|at| self.values.get(at)) {
            return Some(value.arg());
        }
        // A member of the struct that comes last.
        let Some(Role::Struct(members)) = self.known.spec.args.last().map(|a| a.role) else { return None };
        let Some(Arg::Struct(bytes)) = self.values.last().map(Value::arg) else { return None };
        let real = crate::spec::real(self.known.dtype, 0.0).bytes().len();
        let mut from = 0;
        for m in members {
            let size = match m.role {
                Role::Dims => 64,
                Role::I64 => 8,
                Role::Real => real,
                _ => 4,
            };
            let own = bytes.get(from..from + size)?;
            if m.name == name {
                return Some(match m.role {
                    Role::Dims => Arg::Struct(own),
                    Role::I64 => Arg::I64(i64::from_ne_bytes(own.try_into().ok()?)),
                    Role::Real if real == 8 => Arg::F64(f64::from_ne_bytes(own.try_into().ok()?)),
                    Role::Real | Role::F32 => Arg::F32(f32::from_ne_bytes(own.try_into().ok()?)),
                    _ => Arg::I32(i32::from_ne_bytes(own.try_into().ok()?)),
                });
            }
            from += size;
        }
        None
    }

    fn place(&self, name: &str) -> Option<Place> {
        match self.find(name) {
            Some(Arg::Mem(place)) => place,
            _ => None,
        }
    }

    fn number(&self, name: &str) -> Option<usize> {
        match self.find(name)? {
            Arg::I64(x) => usize::try_from(x).ok(),
            Arg::I32(x) => usize::try_from(x).ok(),
            _ => None,
        }
    }

    /// A flag; absent is 0.
    fn flag(&self, name: &str) -> i32 {
        match self.find(name) {
            Some(Arg::I32(x)) => x,
            _ => 0,
        }
    }

    fn word(&self, name: &str) -> Option<Scalar> {
        match self.find(name)? {
            Arg::U32(x) => Some(Scalar::Word(x)),
            _ => None,
        }
    }

    fn long(&self, name: &str) -> Option<i64> {
        match self.find(name)? {
            Arg::I64(x) => Some(x),
            _ => None,
        }
    }

    fn real(&self, name: &str) -> Option<Scalar> {
        Some(Scalar::Real(match self.find(name)? {
            Arg::F32(x) => Arg::F32(x),
            Arg::F64(x) => Arg::F64(x),
            _ => return None,
        }))
    }

    fn dims(&self, name: &str, rank: usize) -> Option<Vec<usize>> {
        let Arg::Struct(bytes) = self.find(name)? else { return None };
        let all = bytes.chunks_exact(8).map(|b| i64::from_ne_bytes(b.try_into().unwrap_or_default()));
        all.take(rank).map(|x| usize::try_from(x).ok()).collect()
    }

    /// Sizes and steps of an operand. `wide`: the innermost axis counts vectors, along which the operand moves or repeats.
    fn axes(&self, steps: &str, wide: Option<bool>) -> Option<Vec<(usize, usize)>> {
        let rank = self.number("rank")?;
        let (shape, steps) = (self.dims("shape", rank)?, self.dims(steps, rank)?);
        let mut axes: Vec<_> = shape.into_iter().zip(steps).collect();
        if let (Some(moves), Some(last)) = (wide, axes.last_mut()) {
            *last = (last.0 * (16 / self.known.dtype.size()), usize::from(moves));
        }
        Some(axes)
    }
}

/// Whether the axes step through memory one element after the other.
fn dense(axes: &[(usize, usize)]) -> bool {
    let mut next = 1;
    axes.iter().rev().all(|&(size, step)| {
        let fits = step == next || size == 1;
        next *= size;
        fits
    })
}

fn operand(
    place: Place,
    dtype: Option<DType>,
    size: usize,
    n: usize,
    axes: Option<Vec<(usize, usize)>>,
) -> Operand {
    let index = match axes {
        Some(axes) if !dense(&axes) => Index::Axes(axes),
        _ => Index::Flat,
    };
    let last = match &index {
        Index::Flat => n - 1,
        Index::Axes(axes) => axes.iter().map(|&(size, step)| (size - 1) * step).sum(),
    };
    Operand { place, bytes: place.1..place.1 + ((last + 1) * size) as u64, dtype, index }
}

/// Storage types in which a unit that moves bits of this type's size may do so.
fn same_size(dtype: DType) -> Vec<DType> {
    match dtype.size() {
        2 => vec![DType::Bf16, DType::F16],
        4 => vec![DType::F32],
        8 => vec![DType::F64],
        _ => vec![],
    }
}

/// How the operands of a kernel are called.
struct Form {
    /// Pointers that are read: the parameter of their steps, their bit of `wide`, their type if it is not the unit's.
    inputs: &'static [(&'static str, &'static str, i32, Option<DType>)],
    /// Pointers that are written: the parameter of their steps, their type if it is not the unit's.
    outputs: &'static [(&'static str, &'static str, Option<DType>)],
    scalars: &'static [&'static str],
}

const MASK: Option<DType> = Some(DType::U8);
const UNARY: Form =
    Form { inputs: &[("x", "sx", 0, None)], outputs: &[("y", "sy", None)], scalars: &["p", "q", "s"] };
const UNARY_MASK: Form = Form { outputs: &[("y", "sy", MASK)], ..UNARY };
const UNARY_BWD: Form = Form {
    inputs: &[("dy", "sdy", 0, None), ("x", "sx", 0, None)],
    outputs: &[("dx", "sdx", None)],
    scalars: &["p", "q", "s"],
};
const BINARY: Form = Form {
    inputs: &[("a", "sa", 1, None), ("b", "sb", 2, None)],
    outputs: &[("y", "sy", None)],
    scalars: &["p", "q"],
};
const BINARY_MASK: Form = Form { outputs: &[("y", "sy", MASK)], ..BINARY };
const BINARY_BWD: Form = Form {
    inputs: &[("dy", "sdy", 3, None), ("a", "sa", 1, None), ("b", "sb", 2, None)],
    outputs: &[("da", "sda", None), ("db", "sdb", None)],
    scalars: &["p", "q"],
};
const TERNARY: Form = Form {
    inputs: &[("a", "sa", 1, None), ("b", "sb", 2, None), ("c", "sc", 3, None)],
    outputs: &[("y", "sy", None)],
    scalars: &["p"],
};
const TERNARY_BWD: Form = Form {
    inputs: &[("dy", "sdy", 0, None), ("a", "sa", 0, None), ("b", "sb", 0, None), ("c", "sc", 0, None)],
    outputs: &[("da", "sda", None), ("db", "sdb", None), ("dc", "sdc", None)],
    scalars: &["p"],
};
const WHERE: Form = Form {
    inputs: &[("c", "sc", 0, MASK), ("a", "sa", 0, None), ("b", "sb", 0, None)],
    outputs: &[("y", "sy", None)],
    scalars: &[],
};
const WHERE_BWD: Form = Form {
    inputs: &[("dy", "sdy", 0, None), ("c", "sc", 0, MASK)],
    outputs: &[("da", "sda", None), ("db", "sdb", None)],
    scalars: &[],
};
const DROPOUT: Form = Form {
    inputs: &[("x", "", 0, None)],
    outputs: &[("y", "", None), ("mask", "", MASK)],
    scalars: &["scale"],
};
const DROPOUT_MASKED: Form = Form {
    inputs: &[("x", "", 0, None), ("mask", "", 0, MASK)],
    outputs: &[("y", "", None)],
    scalars: &["scale"],
};
const CAST: Form = Form { inputs: &[("x", "sx", 0, None)], outputs: &[("y", "sy", None)], scalars: &[] };

impl Member {
    /// What a launch computes; `None` for what is not elementwise, adds to earlier results, or has results with gaps.
    pub(super) fn of(known: &Known, values: &[Value]) -> Option<Member> {
        let args = Args { known, values };
        let op = known.op;
        let float = known.dtype.is_float();
        if known.spec.entry == "fill_flat" {
            return fill(&args);
        }
        let (form, code) = match known.spec.entry {
            "unary_flat" | "unary_nd" if float => {
                (&UNARY, format!("{{o0}} = {op}_fwd({{i0}}, {{s0}}, {{s1}}, {{s2}});"))
            }
            "unary_mask" => (&UNARY_MASK, format!("{{o0}} = {op}_fwd({{i0}}, {{s0}}, {{s1}}, {{s2}}) != 0;")),
            "unary_bwd_flat" | "unary_bwd_nd" => {
                (&UNARY_BWD, format!("{{o0}} = {op}_bwd({{i0}}, {{i1}}, {{s0}}, {{s1}}, {{s2}});"))
            }
            "binary_flat" | "binary_nd" if float => {
                (&BINARY, format!("{{o0}} = {op}_fwd({{i0}}, {{i1}}, {{s0}}, {{s1}});"))
            }
            "binary_mask" if float => {
                (&BINARY_MASK, format!("{{o0}} = {op}_fwd({{i0}}, {{i1}}, {{s0}}, {{s1}}) != 0;"))
            }
            "binary_bwd_nd" => {
                (&BINARY_BWD, format!("{op}_bwd({{i0}}, {{i1}}, {{i2}}, {{s0}}, {{s1}}, &{{o0}}, &{{o1}});"))
            }
            "ternary_nd" => (&TERNARY, format!("{{o0}} = {op}_fwd({{i0}}, {{i1}}, {{i2}}, {{s0}});")),
            "ternary_bwd_nd" => {
                let outputs = "&{o0}, &{o1}, &{o2}";
                (&TERNARY_BWD, format!("{op}_bwd({{i0}}, {{i1}}, {{i2}}, {{i3}}, {{s0}}, {outputs});"))
            }
            "where_nd" => (&WHERE, "{o0} = {i0} != 0 ? {i1} : {i2};".into()),
            "where_bwd" => (
                &WHERE_BWD,
                "{o0} = {i1} != 0 ? {i0} : GK_R(0.0); {o1} = {i1} != 0 ? GK_R(0.0) : {i0};".into(),
            ),
            "dropout" => {
                (&DROPOUT, "{o1} = gk_unit({w}) < {s1}; {o0} = {o1} != 0 ? {i0} * {s0} : GK_R(0.0);".into())
            }
            "dropout_masked" => (&DROPOUT_MASKED, "{o0} = {i1} != 0 ? {i0} * {s0} : GK_R(0.0);".into()),
            "cast_nd" => (&CAST, "{o0} = {i0};".into()),
            _ => return None,
        };
        ["accumulate", "acc_a", "acc_b"].iter().all(|flag| args.flag(flag) == 0).then_some(())?;
        let mut m = of_form(&args, form, code)?;
        match known.spec.entry {
            "where_nd" => m.units = same_size(known.dtype),
            "cast_nd" => cast(&mut m, known.dtype, op)?,
            "dropout" => {
                let Some(Arg::F32(keep)) = args.find("keep") else { return None };
                m.scalars.push(Scalar::F32(keep));
                let key = [args.long("seed")?, args.long("stream")?, args.long("offset")?];
                m.random = Some(Random { key, more: args.place("more") });
            }
            _ => {}
        }
        m.in_place_only().then_some(m)
    }

    /// Whether results lie apart from the operands, or exactly on them, and apart from each other.
    fn in_place_only(&self) -> bool {
        let apart = |a: &Operand, b: &Operand| {
            a.place.0 != b.place.0 || a.bytes.start >= b.bytes.end || b.bytes.start >= a.bytes.end
        };
        let outputs = || self.outputs.iter().flatten();
        let same = |a: &Operand, b: &Operand| a.bytes == b.bytes && a.index == b.index && a.dtype == b.dtype;
        let inputs_fit = outputs().all(|o| self.inputs.iter().all(|i| apart(o, i) || same(o, i)));
        let outputs_fit = outputs().enumerate().all(|(k, a)| outputs().skip(k + 1).all(|b| apart(a, b)));
        inputs_fit && outputs_fit && outputs().next().is_some()
    }
}

/// The operands of a launch whose parameters are called as in `form`.
fn of_form(args: &Args<'_>, form: &Form, code: String) -> Option<Member> {
    let dtype = args.known.dtype;
    let strided = args.known.spec.args.iter().any(|a| matches!(a.role, Role::Struct(_)) || a.name == "rank");
    // Only these count vectors; for others `wide` means that nothing has gaps.
    let vectors = matches!(args.known.spec.entry, "binary_nd" | "binary_bwd_nd" | "ternary_nd");
    let wide = if vectors { args.flag("wide") } else { 0 };
    let n = args.number("n")? * if wide == 0 { 1 } else { 16 / dtype.size() };
    if n == 0 {
        return None;
    }
    let size = |d: Option<DType>| d.unwrap_or(dtype).size();
    let mut inputs = vec![];
    for &(name, steps, bit, d) in form.inputs {
        let moves = (wide != 0).then_some(wide >> bit & 1 == 1);
        let axes = if strided { Some(args.axes(steps, moves)?) } else { None };
        inputs.push(operand(args.place(name)?, d, size(d), n, axes));
    }
    let mut outputs = vec![];
    for &(name, steps, d) in form.outputs {
        let Some(place) = args.place(name) else {
            outputs.push(None);
            continue;
        };
        let axes = if strided { Some(args.axes(steps, (wide != 0).then_some(true))?) } else { None };
        let o = operand(place, d, size(d), n, axes);
        (o.index == Index::Flat).then_some(())?;
        outputs.push(Some(o));
    }
    let scalars = form.scalars.iter().map(|s| args.real(s)).collect::<Option<_>>()?;
    Some(Member { n, units: vec![dtype], inputs, outputs, scalars, random: None, code })
}

/// A conversion between float types, one of which is f32, or from bytes.
fn cast(m: &mut Member, from: DType, op: &str) -> Option<()> {
    let to = DType::ALL.into_iter().find(|d| op.strip_prefix("gk_to_") == Some(d.name()))?;
    m.units = match (from, to) {
        (DType::F32, DType::F16 | DType::Bf16) => vec![DType::F32, to],
        (DType::F16 | DType::Bf16, DType::F32) => vec![DType::F32, from],
        (DType::U8, DType::F32 | DType::F16 | DType::Bf16) => vec![to],
        _ => return None,
    };
    let size = |axes: &Index| match axes {
        Index::Flat => m.n - 1,
        Index::Axes(axes) => axes.iter().map(|&(size, step)| (size - 1) * step).sum::<usize>(),
    };
    let ends = [size(&m.inputs[0].index), size(&m.outputs[0].as_ref()?.index)];
    m.inputs[0].dtype = Some(from);
    let bytes =
        |o: &mut Operand, last: usize, d: DType| o.bytes.end = o.place.1 + ((last + 1) * d.size()) as u64;
    bytes(&mut m.inputs[0], ends[0], from);
    let y = m.outputs[0].as_mut()?;
    y.dtype = Some(to);
    bytes(y, ends[1], to);
    Some(())
}

/// One bit pattern everywhere.
fn fill(args: &Args<'_>) -> Option<Member> {
    let (dtype, n) = (args.known.dtype, args.number("n")?);
    let units = same_size(dtype);
    let code = match dtype.size() {
        2 => "{o0} = gk_decode(gk_half_from_bits((gk_u16){s0}));",
        4 => "{o0} = gk_as_f32({s0});",
        8 => "{o0} = gk_as_f64((gk_u64){s1} << 32 | {s0});",
        _ => return None,
    };
    if n == 0 {
        return None;
    }
    let y = operand(args.place("y")?, None, dtype.size(), n, None);
    let scalars = vec![args.word("lo")?, args.word("hi")?];
    let outputs = vec![Some(y)];
    Some(Member { n, units, inputs: vec![], outputs, scalars, random: None, code: code.into() })
}
