//! Calls with hostile parameters: random cases of every kernel of the table, in which sizes, shapes, dtypes and numbers are replaced by the
//! worst there are. The library answers Ok or a typed error, in bounded time; it never panics. (Sums that the table itself makes of such
//! numbers may overflow in the table: only panics in the library's own files count.)

use std::panic;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use parity_tests::backends;
use parity_tests::cases::KERNELS;
use parity_tests::device::{Pattern, Placement};
use parity_tests::runner::execute;
use parity_tests::sampler::draw;
use parity_tests::suite::{Case, Strided};
use serde_json::{Value, json};
use trefoil::{DType, IGpuBackend};

/// Seeds per kernel; `TREFOIL_HOSTILE` sets another number.
const ROUNDS: u64 = 6;
/// The longest time of a call.
const LONGEST: Duration = Duration::from_secs(5);

/// SplitMix64.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n.max(1) as u64) as usize
    }

    fn size(&mut self) -> usize {
        // Nothing in between: a tensor of a few GiB is legitimate, and slow.
        let edges = [0, 1, 2, 3, 7, 255, 1 << 16, 1 << 40, 1 << 61];
        edges[self.below(edges.len())]
    }

    fn integer(&mut self) -> Value {
        let edges =
            [i64::MIN, i64::MAX, i64::MIN + 1, -1, -2, -(1 << 31), -(1 << 62), 1 << 31, 1 << 32, 1 << 62];
        match self.below(3) {
            0 => json!(u64::MAX >> self.below(4)),
            1 => json!(edges[self.below(edges.len())]),
            _ => json!(self.size()),
        }
    }

    fn real(&mut self) -> Value {
        let edges = [
            json!("nan"),
            json!("inf"),
            json!("-inf"),
            json!(0.0),
            json!(-1.0),
            json!(1e308),
            json!(-1e-308),
        ];
        edges[self.below(edges.len())].clone()
    }
}

/// Replaces a number of `v`, or one inside it.
fn replace(v: &mut Value, d: &mut Draw) {
    match v {
        Value::Array(a) if !a.is_empty() && d.below(5) > 0 => {
            let at = d.below(a.len());
            replace(&mut a[at], d);
        }
        Value::Array(a) if d.below(2) == 0 => a.clear(),
        Value::Array(a) => (0..9).for_each(|_| a.push(json!(1))),
        Value::Number(n) if n.is_f64() => *v = d.real(),
        Value::Number(_) | Value::Null => *v = d.integer(),
        Value::Bool(b) => *b = !*b,
        _ => {}
    }
}

/// Replaces the view of an input: other sizes over the same elements, repeated ones, other ranks.
fn reshape(case: &mut Case, d: &mut Draw) {
    if case.inputs.is_empty() {
        return;
    }
    let at = d.below(case.inputs.len());
    let (name, t) = &mut case.inputs[at];
    if d.below(4) == 0 {
        let all = [DType::F32, DType::F16, DType::Bf16, DType::F64, DType::I32, DType::I64, DType::U8];
        *t = t.to_dtype(all[d.below(all.len())]);
        return;
    }
    let mut shape = t.shape.clone();
    match d.below(4) {
        0 => shape.clear(),
        1 => shape = vec![1; 8],
        2 if !shape.is_empty() => shape[d.below(t.shape.len())] = d.size(),
        _ => shape.push(d.size()),
    }
    shape.truncate(8);
    if t.numel() > 0 {
        let strides = vec![0; shape.len()];
        case.strides.insert(name.clone(), Strided { shape, strides, offset: 0 });
    }
}

/// Panics in the library's files since the last question.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn watch_panics() {
    let library = |file: &str| {
        let path = Path::new(file);
        path.starts_with("src") || (path.is_absolute() && file.contains("/trefoil/src/"))
    };
    panic::set_hook(Box::new(move |info| {
        let at = info.location().map_or(String::new(), ToString::to_string);
        if library(&at) {
            PANICS.lock().unwrap_or_else(|p| p.into_inner()).push(info.to_string());
        }
    }));
}

/// How long a call may take. Thousands of millions of rows may be a request that memory has room for: then it takes the time to write them.
fn longest(case: &Case) -> Duration {
    let rows = 1 << 28..1 << 33;
    let many = case.args.values().any(|v| v.as_u64().is_some_and(|n| rows.contains(&n)));
    if many { 20 * LONGEST } else { LONGEST }
}

fn attack(name: &str, gpu: &dyn IGpuBackend, rounds: u64) -> (usize, Vec<String>) {
    let (mut calls, mut wrong) = (0, vec![]);
    for (number, kernel) in KERNELS.iter().enumerate() {
        for round in 0..rounds {
            let mut d = Draw((number as u64) << 32 | round);
            let dtype = kernel.dtypes[d.below(kernel.dtypes.len())];
            let Ok((mut case, _)) = draw(kernel, dtype, 2, round, true) else { continue };
            for (key, value) in kernel.defaults() {
                case.args.entry(key).or_insert(value);
            }
            for _ in 0..=d.below(3) {
                let keys: Vec<String> = case.args.keys().cloned().collect();
                match keys.is_empty() || d.below(3) == 0 {
                    true => reshape(&mut case, &mut d),
                    false => replace(&mut case.args[&keys[d.below(keys.len())]], &mut d),
                }
            }
            let start = Instant::now();
            let run = execute(gpu, kernel, &case, Pattern::Finite, Placement::Aligned);
            calls += 1;
            let found = std::mem::take(&mut *PANICS.lock().unwrap_or_else(|p| p.into_inner()));
            let again = || {
                // The first call of a kernel may wait for the platform's compiler.
                let start = Instant::now();
                execute(gpu, kernel, &case, Pattern::Finite, Placement::Aligned);
                start.elapsed() > longest(&case)
            };
            let late = start.elapsed() > longest(&case) && again();
            let strides: Vec<_> = case.strides.iter().map(|(n, s)| format!("{n} {:?}", s.shape)).collect();
            let what = format!("{name} {} round {round} {:?} {strides:?}", kernel.name, case.args);
            wrong.extend(found.into_iter().map(|p| format!("{what}: {p}")));
            // Rows of several calls may be refused after the first of them.
            let steps = case.args.get("steps").map_or(Some(1), Value::as_u64);
            let one = kernel.ops.len() == 1 && !kernel.composite && steps == Some(1);
            let damage = run.problems.into_iter().filter(|p| one || !p.contains("by a call that failed"));
            wrong.extend(damage.map(|p| format!("{what}: {p}")));
            if late {
                wrong.push(format!("{what}: {:?}", start.elapsed()));
            }
        }
    }
    (calls, wrong)
}

#[test]
fn no_parameters_make_the_library_panic() {
    let rounds = std::env::var("TREFOIL_HOSTILE").ok().and_then(|v| v.parse().ok()).unwrap_or(ROUNDS);
    watch_panics();
    let mut wrong = vec![];
    for candidate in backends::all(&[]) {
        let Ok(gpu) = candidate.handle else { continue };
        // Compilation on the GPU's side is what the time goes to there: fewer rounds.
        let rounds = if gpu.caps().is_cpu && candidate.name == "cpu" { rounds } else { rounds.div_ceil(6) };
        let (calls, found) = attack(candidate.name, &*gpu, rounds);
        println!("{}: {calls} calls, {} wrong", candidate.name, found.len());
        wrong.extend(found);
    }
    let _ = panic::take_hook();
    assert!(wrong.is_empty(), "{} calls:\n{}", wrong.len(), wrong.join("\n"));
}
