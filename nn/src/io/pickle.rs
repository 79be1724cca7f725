//! The pickles in files of `torch.save`: a machine for their instructions that makes tensors, numbers, texts and containers and nothing else. What
//! a pickle calls is compared with the names of the functions that rebuild tensors; no other is called, and no code of the file runs.
//! Source: Python's `pickletools` (protocols 2 to 5), `torch/_utils.py`, `torch/serialization.py`.

use std::collections::HashMap;

use safetensors::tensor::Dtype;

use crate::core::host_tensor::numel;
use crate::core::limits;

/// What is wrong with a pickle, and at which byte.
pub(super) type Fault = (usize, String);
type Done<T> = std::result::Result<T, Fault>;

/// Containers within containers.
const DEPTH: usize = 32;
/// Entries that are looked at for tensors: a container may stand in many places of another.
const VISITS: usize = 1 << 22;

/// Bytes of a tensor's name.
const NAME: usize = 4096;

/// A value's place among all.
type Id = usize;

/// A tensor in one of the archive's storages.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Pickled {
    /// Name of the storage's entry.
    pub(super) key: String,
    pub(super) dtype: Dtype,
    /// Elements of the storage.
    pub(super) len: usize,
    /// First element.
    pub(super) offset: usize,
    pub(super) shape: Vec<usize>,
    pub(super) strides: Vec<usize>,
}

#[derive(Debug, Clone)]
enum Node {
    None,
    Int(i64),
    Text(String),
    /// A tuple, or a list.
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    /// `module name`.
    Global(String),
    Storage {
        key: String,
        dtype: Option<Dtype>,
        len: usize,
    },
    Tensor(Box<Pickled>),
    /// Something that is no tensor and holds none that are looked for: what made it.
    Other(String),
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    nodes: Vec<Node>,
    stack: Vec<Id>,
    /// Heights of the stack at the marks.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
}

/// The dtype of a class of storages.
fn storage(name: &str) -> Option<Dtype> {
    Some(match name.strip_prefix("torch ")? {
        "FloatStorage" => Dtype::F32,
        "DoubleStorage" => Dtype::F64,
        "HalfStorage" => Dtype::F16,
        "BFloat16Storage" => Dtype::BF16,
        "LongStorage" => Dtype::I64,
        "IntStorage" => Dtype::I32,
        "ShortStorage" => Dtype::I16,
        "CharStorage" => Dtype::I8,
        "ByteStorage" => Dtype::U8,
        "BoolStorage" => Dtype::BOOL,
        _ => return None,
    })
}

/// A dtype by its name in PyTorch.
fn dtype(name: &str) -> Option<Dtype> {
    Some(match name.strip_prefix("torch ")? {
        "float32" => Dtype::F32,
        "float64" => Dtype::F64,
        "float16" => Dtype::F16,
        "bfloat16" => Dtype::BF16,
        "int64" => Dtype::I64,
        "int32" => Dtype::I32,
        "int16" => Dtype::I16,
        "int8" => Dtype::I8,
        "uint8" => Dtype::U8,
        "uint16" => Dtype::U16,
        "uint32" => Dtype::U32,
        "bool" => Dtype::BOOL,
        _ => return None,
    })
}

impl<'a> Machine<'a> {
    fn fault<T>(&self, what: impl Into<String>) -> Done<T> {
        Err((self.at, what.into()))
    }

    fn take(&mut self, n: usize) -> Done<&'a [u8]> {
        match self.bytes.get(self.at..self.at.saturating_add(n)) {
            Some(part) => {
                self.at += n;
                Ok(part)
            }
            None => self.fault("an instruction that is cut off"),
        }
    }

    fn array<const N: usize>(&mut self) -> Done<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    fn length(&mut self, width: usize) -> Done<usize> {
        let mut wide = [0; 8];
        wide[..width].copy_from_slice(self.take(width)?);
        let n = u64::from_le_bytes(wide);
        usize::try_from(n).or_else(|_| self.fault(format!("a length of {n}")))
    }

    fn line(&mut self) -> Done<String> {
        let rest = &self.bytes[self.at..];
        let Some(end) = rest.iter().position(|&b| b == b'\n') else {
            return self.fault("a line without end");
        };
        let text = self.take(end)?.to_vec();
        self.at += 1;
        String::from_utf8(text).or_else(|_| self.fault("a name that is not UTF-8"))
    }

    fn text(&mut self, n: usize) -> Done<String> {
        let text = self.take(n)?.to_vec();
        String::from_utf8(text).or_else(|_| self.fault("a text that is not UTF-8"))
    }

    fn push(&mut self, node: Node) -> Done<()> {
        let id = self.nodes.len();
        let room = limits::push(&mut self.nodes, node).and_then(|()| limits::push(&mut self.stack, id));
        room.or_else(|e| self.fault(e.to_string()))
    }

    fn pop(&mut self) -> Done<Id> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.pop() {
            Some(id) if self.stack.len() >= floor => Ok(id),
            _ => self.fault("an instruction that finds no value"),
        }
    }

    fn popped(&mut self, n: usize) -> Done<Vec<Id>> {
        let mut all = (0..n).map(|_| self.pop()).collect::<Done<Vec<Id>>>()?;
        all.reverse();
        Ok(all)
    }

    /// The values above the last mark.
    fn marked(&mut self) -> Done<Vec<Id>> {
        match self.marks.pop() {
            Some(height) if height <= self.stack.len() => Ok(self.stack.split_off(height)),
            _ => self.fault("an instruction that finds no mark"),
        }
    }

    fn top(&self) -> Done<Id> {
        self.stack.last().copied().map_or_else(|| self.fault("an instruction that finds no value"), Ok)
    }

    fn remember(&mut self, key: usize) -> Done<()> {
        let id = self.top()?;
        self.memo.insert(key as u32, id);
        Ok(())
    }

    fn recall(&mut self, key: usize) -> Done<()> {
        match self.memo.get(&(key as u32)) {
            Some(&id) => {
                self.stack.push(id);
                Ok(())
            }
            None => self.fault(format!("value {key}, which was not remembered")),
        }
    }

    fn global(&self, id: Id) -> &str {
        match &self.nodes[id] {
            Node::Global(name) | Node::Other(name) => name,
            Node::Text(text) => text,
            _ => "a value",
        }
    }

    fn count(&self, id: Id) -> Done<usize> {
        match self.nodes[id] {
            Node::Int(n) if n >= 0 => Ok(n as usize),
            _ => self.fault("no size where one is expected"),
        }
    }

    fn counts(&self, id: Id) -> Done<Vec<usize>> {
        match &self.nodes[id] {
            Node::List(all) => all.iter().map(|&i| self.count(i)).collect(),
            _ => self.fault("no sizes where they are expected"),
        }
    }

    /// `("storage", class, key, place, elements)`.
    fn persistent(&mut self) -> Done<()> {
        let id = self.pop()?;
        let Node::List(parts) = &self.nodes[id] else { return self.fault("a reference to no storage") };
        let &[kind, class, key, _, len] = parts.as_slice() else {
            return self.fault("a reference to no storage");
        };
        let (Node::Text(kind), Node::Text(key)) = (&self.nodes[kind], &self.nodes[key]) else {
            return self.fault("a reference to no storage");
        };
        if kind != "storage" {
            return self.fault(format!("a reference to `{kind}`"));
        }
        let made =
            Node::Storage { key: key.clone(), dtype: storage(self.global(class)), len: self.count(len)? };
        self.push(made)
    }

    /// A call of the functions that are known; of any other, what it would have made is something without tensors.
    fn reduce(&mut self) -> Done<()> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        let name = self.global(function).to_string();
        let Node::List(arguments) = self.nodes[arguments].clone() else {
            return self.fault(format!("a call of `{name}` without arguments"));
        };
        match (name.as_str(), arguments.as_slice()) {
            (
                "torch._utils _rebuild_tensor_v2" | "torch._utils _rebuild_tensor",
                &[of, offset, shape, strides, ..],
            ) => self.tensor(of, offset, shape, strides, None),
            ("torch._utils _rebuild_tensor_v3", &[of, offset, shape, strides, _, _, kind, ..]) => {
                let Some(kind) = dtype(self.global(kind)) else {
                    return self.fault(format!("a tensor of dtype `{}`", self.global(kind)));
                };
                self.tensor(of, offset, shape, strides, Some(kind))
            }
            (
                "torch._utils _rebuild_parameter" | "torch._utils _rebuild_parameter_with_state",
                &[data, ..],
            ) => {
                self.stack.push(data);
                Ok(())
            }
            ("collections OrderedDict", []) => self.push(Node::Dict(vec![])),
            _ => self.push(Node::Other(name)),
        }
    }

    fn tensor(&mut self, of: Id, offset: Id, shape: Id, strides: Id, kind: Option<Dtype>) -> Done<()> {
        let Node::Storage { key, dtype, len } = self.nodes[of].clone() else {
            return self.fault("a tensor without a storage");
        };
        let (offset, shape, strides) = (self.count(offset)?, self.counts(shape)?, self.counts(strides)?);
        if shape.len() != strides.len() || shape.len() > 64 {
            return self.fault(format!("a tensor of shape {shape:?} with strides {strides:?}"));
        }
        let Some(own) = kind.or(dtype) else {
            return self.push(Node::Other("a storage of an unknown class".into()));
        };
        // The length of an untyped storage counts bytes.
        let len = if kind.is_some() && dtype.is_none() { len / (own.bitsize() / 8).max(1) } else { len };
        // The last element: within the storage, computed without overflow.
        let mut last = Some(offset);
        for (&n, &stride) in shape.iter().zip(&strides) {
            last = last.zip(n.saturating_sub(1).checked_mul(stride)).and_then(|(a, b)| a.checked_add(b));
        }
        // Expanded tensors, with more elements than are stored, would take any amount of memory.
        let more = numel(&shape).is_none_or(|n| n > len);
        if !shape.contains(&0) && (more || last.is_none_or(|last| last >= len)) {
            let what =
                format!("shape {shape:?}, strides {strides:?} at {offset} in a storage of {len} elements");
            return self.fault(what);
        }
        self.push(Node::Tensor(Box::new(Pickled { key, dtype: own, len, offset, shape, strides })))
    }

    fn set_items(&mut self, pairs: &[Id]) -> Done<()> {
        let dict = self.top()?;
        match &mut self.nodes[dict] {
            Node::Dict(items) if pairs.len().is_multiple_of(2) => {
                items.extend(pairs.chunks_exact(2).map(|p| (p[0], p[1])))
            }
            Node::Other(_) => {}
            _ => return self.fault("items for no dictionary"),
        }
        Ok(())
    }

    fn append(&mut self, items: &[Id]) -> Done<()> {
        let list = self.top()?;
        match &mut self.nodes[list] {
            Node::List(all) => all.extend_from_slice(items),
            Node::Other(_) => {}
            _ => return self.fault("elements for no list"),
        }
        Ok(())
    }

    /// A whole number of up to 8 bytes; longer ones are values without a meaning here.
    fn long(&mut self, n: usize) -> Done<()> {
        let bytes = self.take(n)?;
        if n > 8 {
            return self.push(Node::Other("a long number".into()));
        }
        let negative = bytes.last().is_some_and(|b| b & 0x80 != 0);
        let mut wide = if negative { [0xff; 8] } else { [0; 8] };
        wide[..n].copy_from_slice(bytes);
        self.push(Node::Int(i64::from_le_bytes(wide)))
    }

    /// Runs until the end, and gives the value.
    fn run(&mut self) -> Done<Id> {
        loop {
            let op = self.take(1)?[0];
            match op {
                b'.' => return self.pop(),
                // Protocol, frames: lengths that nothing depends on.
                0x80 => drop(self.take(1)?),
                0x95 => drop(self.take(8)?),
                b'(' => self.marks.push(self.stack.len()),
                b'0' => drop(self.pop()?),
                b'1' => drop(self.marked()?),
                b'2' => {
                    let id = self.top()?;
                    self.stack.push(id);
                }
                _ => self.value(op)?,
            }
            if self.stack.len() > self.bytes.len() {
                return self.fault("more values than bytes");
            }
        }
    }

    fn value(&mut self, op: u8) -> Done<()> {
        match op {
            b'N' => self.push(Node::None),
            0x88 | 0x89 => self.push(Node::Int(i64::from(op == 0x88))),
            b'K' | b'M' => {
                let n = self.length(if op == b'K' { 1 } else { 2 })?;
                self.push(Node::Int(n as i64))
            }
            b'J' => {
                let n = i32::from_le_bytes(self.array()?);
                self.push(Node::Int(n.into()))
            }
            0x8a | 0x8b => {
                let n = self.length(if op == 0x8a { 1 } else { 4 })?;
                self.long(n)
            }
            b'G' => {
                self.take(8)?;
                self.push(Node::None)
            }
            b'X' | 0x8c | 0x8d => {
                let n = self.length(match op {
                    0x8c => 1,
                    b'X' => 4,
                    _ => 8,
                })?;
                let text = self.text(n)?;
                self.push(Node::Text(text))
            }
            // Bytes, and texts of Python 2.
            b'B' | b'C' | 0x8e | b'T' | b'U' => {
                let n = self.length(match op {
                    b'C' | b'U' => 1,
                    0x8e => 8,
                    _ => 4,
                })?;
                self.take(n)?;
                self.push(Node::None)
            }
            b'}' => self.push(Node::Dict(vec![])),
            b']' | b')' => self.push(Node::List(vec![])),
            0x8f => self.push(Node::Other("a set".into())),
            _ => self.compound(op),
        }
    }

    fn compound(&mut self, op: u8) -> Done<()> {
        match op {
            b't' | b'l' => {
                let all = self.marked()?;
                self.push(Node::List(all))
            }
            0x85..=0x87 => {
                let all = self.popped(usize::from(op - 0x84))?;
                self.push(Node::List(all))
            }
            b'd' => {
                let all = self.marked()?;
                self.push(Node::Dict(vec![]))?;
                self.set_items(&all)
            }
            b'u' => {
                let all = self.marked()?;
                self.set_items(&all)
            }
            b's' => {
                let pair = self.popped(2)?;
                self.set_items(&pair)
            }
            b'a' => {
                let one = self.popped(1)?;
                self.append(&one)
            }
            b'e' => {
                let all = self.marked()?;
                self.append(&all)
            }
            // Elements of a set.
            0x90 => self.marked().map(drop),
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.push(Node::Global(format!("{module} {name}")))
            }
            0x93 => {
                let pair = self.popped(2)?;
                let name = format!("{} {}", self.global(pair[0]), self.global(pair[1]));
                self.push(Node::Global(name))
            }
            b'Q' => self.persistent(),
            b'R' => self.reduce(),
            0x81 | 0x92 => {
                let all = self.popped(if op == 0x81 { 2 } else { 3 })?;
                let made = self.global(all[0]).to_string();
                self.push(Node::Other(made))
            }
            // The state of an object, which is not made.
            b'b' => self.pop().map(drop),
            b'q' | b'r' => {
                let key = self.length(if op == b'q' { 1 } else { 4 })?;
                self.remember(key)
            }
            0x94 => self.remember(self.memo.len()),
            b'h' | b'j' => {
                let key = self.length(if op == b'h' { 1 } else { 4 })?;
                self.recall(key)
            }
            _ => self.fault(format!("the instruction {op:#04x}, which no state dictionary needs")),
        }
    }

    /// The tensors in a value, under the keys that lead to them, joined by dots.
    fn collect(
        &self,
        id: Id,
        name: &str,
        depth: usize,
        visits: &mut usize,
        out: &mut Vec<(String, Pickled)>,
    ) -> Done<()> {
        *visits += 1;
        if depth > DEPTH || *visits > VISITS {
            return self.fault(format!("containers of more than {VISITS} entries or {DEPTH} levels"));
        }
        if name.len() > NAME {
            return self.fault(format!("a name of more than {NAME} bytes"));
        }
        let below = |key: &str| if name.is_empty() { key.to_string() } else { format!("{name}.{key}") };
        match &self.nodes[id] {
            Node::Tensor(t) => {
                let room = limits::push(out, (name.to_string(), (**t).clone()));
                room.or_else(|e| self.fault(e.to_string()))
            }
            Node::List(all) => {
                let mut all = all.iter().enumerate();
                all.try_for_each(|(i, &v)| self.collect(v, &below(&i.to_string()), depth + 1, visits, out))
            }
            Node::Dict(items) => items.iter().try_for_each(|&(key, v)| {
                let key = match &self.nodes[key] {
                    Node::Text(key) => key.clone(),
                    Node::Int(key) => key.to_string(),
                    _ => return Ok(()),
                };
                self.collect(v, &below(&key), depth + 1, visits, out)
            }),
            _ => Ok(()),
        }
    }
}

/// The tensors in a pickle of `torch.save`, by name. Errors: the byte and what is wrong there; a pickle without tensors.
pub(super) fn tensors(bytes: &[u8]) -> Done<Vec<(String, Pickled)>> {
    let mut machine =
        Machine { bytes, at: 0, nodes: vec![], stack: vec![], marks: vec![], memo: HashMap::new() };
    let top = machine.run()?;
    let mut out = vec![];
    machine.collect(top, "", 0, &mut 0, &mut out)?;
    if out.is_empty() {
        let of = match &machine.nodes[top] {
            Node::Other(name) => format!("an object of `{name}`"),
            _ => "a value without tensors".into(),
        };
        return Err((0, format!("{of}; save the model's state_dict() instead")));
    }
    Ok(out)
}
