//! The kernel of a group.
//!
//! Every value is rounded to the type in which its own call would have stored it, and goes through an exclusive or with a 0 that the compiler does not
//! know: no product of one call and sum of the next become one operation. What a call computes from its operands is the text that its own kernel has.

use std::fmt::Write;

use super::access::Access;
use super::member::{Index, Member, Operand, Random, Scalar};
use crate::driver::Arg;
use crate::dtype::DType;
use crate::engine::capture::queued::{Place, Value};
use crate::engine::launch::dims;
use crate::engine::ops::magic;

/// A pointer of the kernel.
#[derive(Debug)]
pub(super) struct Pointer {
    /// The part that uses it.
    part: usize,
    pub(super) access: Access,
    place: Place,
    dtype: DType,
    index: Index,
    /// The value that is there after the last statement so far.
    value: Option<usize>,
    /// The value that was there before the first.
    loaded: Option<usize>,
    /// Whether the value is stored at the end.
    pub(super) stored: bool,
}

/// How the elements of a pointer are reached by a thread that takes `GK_W` of them.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Vector,
    /// One element for all.
    Repeated,
    Each,
}

/// A loop of the kernel: calls of one number of elements, which share nothing with those of others.
#[derive(Debug)]
struct Part {
    n: usize,
    statements: Vec<String>,
}

/// A kernel in the making.
pub(super) struct Text {
    pub(super) unit: DType,
    parts: Vec<Part>,
    pub(super) pointers: Vec<Pointer>,
    scalars: Vec<Scalar>,
    /// Random words, and the parts that use them.
    randoms: Vec<(usize, Random)>,
    /// Where the device's parts of their positions are read.
    more: Vec<Access>,
    values: usize,
}

/// A pointer to elements of this type in a unit for `unit`.
fn element(dtype: DType, unit: DType) -> &'static str {
    match dtype {
        d if d == unit => "gk_t",
        DType::F16 | DType::Bf16 => "gk_u16",
        DType::F64 => "double",
        DType::U8 => "gk_u8",
        _ => "float",
    }
}

fn load(dtype: DType, unit: DType, pointer: usize, at: &str) -> String {
    match dtype {
        d if d == unit => format!("gk_load(m{pointer}, {at})"),
        DType::F16 => format!("gk_f16_to_f32(m{pointer}[{at}])"),
        DType::Bf16 => format!("gk_bf16_to_f32(m{pointer}[{at}])"),
        _ => format!("(gk_f)m{pointer}[{at}]"),
    }
}

fn store(dtype: DType, unit: DType, pointer: usize, at: &str, value: usize) -> String {
    match dtype {
        d if d == unit => format!("gk_store(m{pointer}, {at}, v{value});"),
        DType::F16 => format!("m{pointer}[{at}] = gk_f32_to_f16(v{value});"),
        DType::Bf16 => format!("m{pointer}[{at}] = gk_f32_to_bf16(v{value});"),
        d => format!("m{pointer}[{at}] = ({})v{value};", element(d, unit)),
    }
}

/// The value as memory would have given it back.
fn rounded(dtype: DType, value: usize) -> String {
    match dtype {
        DType::F16 => format!("v{value} = gk_f16_to_f32(gk_f32_to_f16(v{value}));"),
        DType::Bf16 => format!("v{value} = gk_bf16_to_f32(gk_f32_to_bf16(v{value}));"),
        DType::F64 => format!("v{value} = gk_as_f64(gk_as_u64(v{value}) ^ (gk_u64)none);"),
        DType::F32 => format!("v{value} = gk_as_f32(gk_as_u32(v{value}) ^ none);"),
        _ => String::new(),
    }
}

impl Text {
    pub(super) fn new(unit: DType) -> Self {
        let (pointers, scalars, randoms) = (vec![], vec![], vec![]);
        Text { unit, parts: vec![], pointers, scalars, randoms, more: vec![], values: 0 }
    }

    /// The part with so many elements.
    fn part(&mut self, n: usize) -> usize {
        if let Some(at) = self.parts.iter().position(|p| p.n == n) {
            return at;
        }
        self.parts.push(Part { n, statements: vec![] });
        self.parts.len() - 1
    }

    fn value(&mut self) -> usize {
        self.values += 1;
        self.values - 1
    }

    fn pointer(&mut self, part: usize, o: &Operand, access: &Access) -> usize {
        let dtype = o.dtype.unwrap_or(self.unit);
        let same = |p: &Pointer| {
            let place = p.access.spot == access.spot && p.access.bytes == access.bytes;
            place && p.part == part && p.index == o.index
        };
        if let Some(at) = self.pointers.iter().position(same) {
            return at;
        }
        let (place, index, access) = (o.place, o.index.clone(), access.clone());
        let (value, loaded, stored) = (None, None, false);
        self.pointers.push(Pointer { part, access, place, dtype, index, value, loaded, stored });
        self.pointers.len() - 1
    }

    fn scalar(&mut self, s: Scalar) -> usize {
        if let Some(at) = self.scalars.iter().position(|x| *x == s) {
            return at;
        }
        self.scalars.push(s);
        self.scalars.len() - 1
    }

    /// Appends what a call computes; `list` is what it uses, in the order of its operands.
    pub(super) fn push(&mut self, m: &Member, list: &[Access]) {
        let (part, mut names) = (self.part(m.n), vec![]);
        for (i, (o, access)) in m.inputs.iter().zip(list).enumerate() {
            let p = self.pointer(part, o, access);
            let value = match self.pointers[p].value {
                Some(v) => v,
                None => {
                    let v = self.value();
                    (self.pointers[p].value, self.pointers[p].loaded) = (Some(v), Some(v));
                    v
                }
            };
            names.push((format!("{{i{i}}}"), format!("v{value}")));
        }
        for (i, s) in m.scalars.iter().enumerate() {
            names.push((format!("{{s{i}}}"), format!("c{}", self.scalar(*s))));
        }
        if let Some(r) = &m.random {
            names.push(("{w}".into(), format!("GK_WORD(r{})", self.randoms.len())));
            self.randoms.push((part, r.clone()));
        }
        let outputs: Vec<usize> = m.outputs.iter().map(|_| self.value()).collect();
        let declared: Vec<String> = outputs.iter().map(|v| format!("v{v}")).collect();
        names.extend(declared.iter().enumerate().map(|(i, v)| (format!("{{o{i}}}"), v.clone())));
        let code = names.iter().fold(m.code.clone(), |code, (name, by)| code.replace(name, by));
        let mut statements = vec![format!("gk_f {};", declared.join(", ")), code];
        let mut own = list[m.inputs.len()..].iter();
        for (o, &v) in m.outputs.iter().zip(&outputs) {
            let Some((o, access)) = o.as_ref().and_then(|o| Some((o, own.next()?))) else { continue };
            let p = self.pointer(part, o, access);
            statements.push(rounded(self.pointers[p].dtype, v));
            (self.pointers[p].value, self.pointers[p].stored) = (Some(v), true);
        }
        self.more.extend(own.cloned());
        self.parts[part].statements.extend(statements);
    }

    fn aligned(&self, p: &Pointer) -> bool {
        p.place.1.is_multiple_of(16)
    }

    fn width(&self) -> usize {
        16 / self.unit.size()
    }

    fn way(&self, p: &Pointer) -> Way {
        let vector = p.dtype == self.unit && self.aligned(p);
        match &p.index {
            Index::Flat if vector => Way::Vector,
            Index::Flat => Way::Each,
            Index::Axes(axes) => {
                let Some((&(size, step), outer)) = axes.split_last() else { return Way::Each };
                let whole = size.is_multiple_of(self.width());
                let even = outer.iter().all(|(_, s)| s.is_multiple_of(self.width()));
                match step {
                    0 if whole => Way::Repeated,
                    1 if whole && even && vector => Way::Vector,
                    _ => Way::Each,
                }
            }
        }
    }

    fn used(&self) -> impl Iterator<Item = (usize, &Pointer)> {
        self.pointers.iter().enumerate().filter(|(_, p)| p.loaded.is_some() || p.stored)
    }

    fn used_by(&self, part: usize) -> impl Iterator<Item = (usize, &Pointer)> {
        self.used().filter(move |(_, p)| p.part == part)
    }

    /// Position of pointer `k` for element `e`, with the statement that finds it.
    fn at(&self, k: usize, e: &str) -> (String, String) {
        match self.pointers[k].index {
            Index::Flat => (String::new(), e.to_string()),
            Index::Axes(_) => {
                let step = format!("at{k} += r * step{k}.v[d];");
                let part = self.pointers[k].part;
                let find = format!(
                    "gk_i64 at{k} = 0; GK_AXES({e}, n{part}, rank{k}, shape{k}, magic{k}, {{ {step} }});"
                );
                (find, format!("at{k}"))
            }
        }
    }

    /// A part's statements for the element `e`, `GK_W` at a time where `vectors`.
    fn body(&self, part: usize, vectors: bool, out: &mut String) {
        let way = |p: &Pointer| if vectors { self.way(p) } else { Way::Each };
        for (k, p) in self.used_by(part).filter(|(_, p)| way(p) != Way::Each) {
            if p.loaded.is_some() {
                let (find, at) = self.at(k, "i * GK_W");
                let load = match way(p) {
                    Way::Vector => format!("gk_vec l{k} = gk_loadv(m{k}, {at});"),
                    _ => format!("gk_f l{k} = {};", load(p.dtype, self.unit, k, &at)),
                };
                let _ = writeln!(out, "        {find} {load}");
            }
            if p.stored {
                let _ = writeln!(out, "        gk_vec t{k};");
            }
        }
        for (k, _) in self.randoms.iter().enumerate().filter(|(_, r)| r.0 == part) {
            let block = if vectors { "(i * GK_W / 4 + j)" } else { "(e / 4)" };
            let blocks = if vectors { "GK_BLOCKS" } else { "1" };
            let _ = writeln!(
                out,
                "        gk_words r{k}[{blocks}];\n        GK_UNROLL for (int j = 0; j < {blocks}; j++) \
                 r{k}[j] = gk_philox(first{k} + (gk_u64){block}, (gk_u64)stream{k}, (gk_u64)seed{k});"
            );
        }
        if vectors {
            let _ = writeln!(
                out,
                "        GK_UNROLL for (int k = 0; k < GK_W; k++) {{\n        gk_i64 e = i * GK_W + k;"
            );
        }
        for (k, p) in self.used_by(part) {
            let Some(v) = p.loaded else { continue };
            let _ = match way(p) {
                Way::Vector => writeln!(out, "        gk_f v{v} = l{k}.v[k];"),
                Way::Repeated => writeln!(out, "        gk_f v{v} = l{k};"),
                Way::Each => {
                    let (find, at) = self.at(k, "e");
                    writeln!(out, "        {find} gk_f v{v} = {};", load(p.dtype, self.unit, k, &at))
                }
            };
        }
        for s in self.parts[part].statements.iter().filter(|s| !s.is_empty()) {
            let _ = writeln!(out, "        {s}");
        }
        for (k, p) in self.used_by(part).filter(|(_, p)| p.stored) {
            let Some(v) = p.value else { continue };
            let _ = match way(p) {
                Way::Vector => writeln!(out, "        t{k}.v[k] = v{v};"),
                _ => writeln!(out, "        {}", store(p.dtype, self.unit, k, "e", v)),
            };
        }
        if vectors {
            out.push_str("        }\n");
        }
        for (k, _) in self.used_by(part).filter(|(_, p)| p.stored && way(p) == Way::Vector) {
            let _ = writeln!(out, "        gk_storev(m{k}, i * GK_W, t{k});");
        }
    }

    /// Whether a thread takes `GK_W` elements of a part where it can.
    fn vectors(&self, part: usize) -> bool {
        self.parts[part].n >= self.width() && self.used_by(part).any(|(_, p)| self.way(p) == Way::Vector)
    }

    /// Threads that have something to do.
    pub(super) fn items(&self) -> usize {
        let of = |(at, p): (usize, &Part)| if self.vectors(at) { p.n.div_ceil(self.width()) } else { p.n };
        self.parts.iter().enumerate().map(of).max().unwrap_or(0)
    }

    /// The kernel, for a text that begins with [`HEADER`]; its name is [`NAME`].
    pub(super) fn kernel(&self) -> String {
        let (mut parameters, mut binds) = (vec![], String::new());
        for (k, p) in self.used() {
            let (way, c) = (if p.stored { "OUT" } else { "IN" }, element(p.dtype, self.unit));
            parameters.push(format!("GK_{way}({c}, m{k})"));
            let _ = write!(binds, " GK_BIND_{way}({c}, m{k});");
        }
        for k in 0..self.randoms.len() {
            parameters
                .push(format!("GK_IN(gk_i64, more{k}), gk_i64 seed{k}, gk_i64 stream{k}, gk_i64 offset{k}"));
            let first =
                format!("gk_u64 first{k} = (gk_u64)offset{k} + (more{k} ? (gk_u64)more{k}[0] : 0ul);");
            let _ = write!(binds, " GK_BIND_IN(gk_i64, more{k}); {first}");
        }
        for (k, _) in self.strided() {
            parameters.push(format!("int rank{k}, GK_DIMS(shape{k}), GK_DIMS(magic{k}), GK_DIMS(step{k})"));
        }
        for (k, s) in self.scalars.iter().enumerate() {
            let c = match s {
                Scalar::Real(_) => "gk_f",
                Scalar::F32(_) => "float",
                Scalar::Word(_) => "gk_u32",
            };
            parameters.push(format!("{c} c{k}"));
        }
        parameters.extend((0..self.parts.len()).map(|part| format!("gk_i64 n{part}")));
        parameters.push("gk_u32 none".into());
        let mut text = format!("GK_KERNEL({NAME})({})\n{{\n   {binds}\n", parameters.join(",\n    "));
        (0..self.parts.len()).for_each(|part| self.loops(part, &mut text));
        text.push_str("}\n");
        text
    }

    /// The loops of a part: of vectors, and of the elements behind them.
    fn loops(&self, part: usize, text: &mut String) {
        let vectors = self.vectors(part);
        let _ = writeln!(
            text,
            "    gk_i64 items{part} = {};",
            if vectors { format!("n{part} / GK_W") } else { "0".into() }
        );
        if vectors {
            text.push_str("#define GK_WORD(r) GK_WORD_OF_VECTOR(r)\n");
            let _ = writeln!(text, "    for (gk_i64 i = gk_gid(); i < items{part}; i += gk_gsize()) {{");
            self.body(part, true, text);
            text.push_str("    }\n#undef GK_WORD\n");
        }
        text.push_str("#define GK_WORD(r) (r)[0].w[e & 3]\n");
        let _ = writeln!(
            text,
            "    for (gk_i64 e = items{part} * GK_W + gk_gid(); e < n{part}; e += gk_gsize()) {{"
        );
        self.body(part, false, text);
        text.push_str("    }\n#undef GK_WORD\n");
    }

    /// Its arguments, and bits of those that are written. `locate`: where a place is in the end.
    pub(super) fn args(&self, locate: impl Fn(&Access, Place) -> Place) -> (Vec<Value>, u64) {
        let (mut args, mut outputs) = (vec![], 0u64);
        for (_, p) in self.used() {
            outputs |= u64::from(p.stored) << args.len();
            args.push(Value::Plain(Arg::Mem(Some(locate(&p.access, p.place)))));
        }
        let mut more = self.more.iter();
        for (_, r) in &self.randoms {
            let place = r.more.and_then(|place| Some(locate(more.next()?, place)));
            args.push(Value::Plain(Arg::Mem(place)));
            args.extend(r.key.map(|x| Value::Plain(Arg::I64(x))));
        }
        for (_, axes) in self.strided() {
            args.push(Value::Plain(Arg::I32(axes.len() as i32)));
            let (sizes, steps) = (axes.iter().map(|a| a.0), axes.iter().map(|a| a.1));
            for d in [dims(sizes.clone()), magic(sizes), dims(steps)] {
                args.push(Value::Struct(bytemuck::cast_slice(&d.0).into()));
            }
        }
        args.extend(self.scalars.iter().map(|s| {
            Value::Plain(match *s {
                Scalar::Real(arg) => arg,
                Scalar::F32(x) => Arg::F32(x),
                Scalar::Word(x) => Arg::U32(x),
            })
        }));
        args.extend(self.parts.iter().map(|p| Value::Plain(Arg::I64(p.n as i64))));
        args.push(Value::Plain(Arg::U32(0)));
        (args, outputs)
    }

    /// Pointers with coordinates.
    fn strided(&self) -> impl Iterator<Item = (usize, &Vec<(usize, usize)>)> {
        self.used().filter_map(|(k, p)| match &p.index {
            Index::Axes(axes) => Some((k, axes)),
            Index::Flat => None,
        })
    }

    /// What is read and written: of a value that nobody wants nothing.
    pub(super) fn accesses(&self) -> Vec<Access> {
        let own = self.used().map(|(_, p)| Access {
            read: p.loaded.is_some(),
            write: p.stored,
            ..p.access.clone()
        });
        own.chain(self.more.iter().cloned()).collect()
    }
}

/// What stands for the name of a kernel.
pub(super) const NAME: &str = "GK_NAME";

/// What kernels need.
pub(super) const HEADER: &str = r#"#include "common/prelude/coordinates.h"
#include "common/elementwise/unary_ops.h"
#include "common/elementwise/binary_ops.h"
#include "common/elementwise/ternary_ops.h"
/* Blocks of random words, four each, of the elements that a thread takes; and the word of one of them. */
#define GK_BLOCKS (GK_W >= 4 ? GK_W / 4 : 1)
#if GK_W >= 4
#define GK_WORD_OF_VECTOR(r) (r)[k / 4].w[k & 3]
#else
#define GK_WORD_OF_VECTOR(r) (r)[0].w[e & 3]
#endif
"#;
